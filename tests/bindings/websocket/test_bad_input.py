"""Random and mutated messages: every one is answered or ends its own socket, none is a fault of ours, others go on."""

import json
import logging
import random
import string
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.bindings.websocket.clients import web_thing_client
from tests.support import PUMP, skep

pytestmark = pytest.mark.anyio

OPERATIONS = (
    *("readproperty", "writeproperty", "observeproperty", "unobserveproperty", "readallproperties"),
    *("readmultipleproperties", "writemultipleproperties", "observeallproperties", "unobserveallproperties"),
    *("invokeaction", "queryaction", "queryallactions", "cancelaction", "subscribeevent", "unsubscribeevent"),
    *("subscribeallevents", "unsubscribeallevents", "callrpc", "exposething", "destroything", "nonsense", ""),
)
MEMBERS = (
    *("name", "names", "value", "values", "input", "data", "actionID", "td", "wait", "expiresIn", "timestamp"),
    *("status", "error", "output", "correlationID"),
)
THINGS = (
    "pump-1",
    "dtw:works:pump-1",
    "dtw:other:pump-1",
    "dtw:",
    "urn:x",
    "",
    "x" * 2_000,
    "a b",
    "dtw:directory:things",
)
ROUNDS = 400


def anything(dice: random.Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    scalars: list[Any] = [None, True, 0, -1, 1e308, 2**70, "", "flow", "setSpeed", "\u0000", "\ud7ff", dice.random()]
    if depth > 3 or dice.random() < 0.6:
        return dice.choice(scalars)
    if dice.random() < 0.5:
        return [anything(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice((*MEMBERS, "state", "x")): anything(dice, depth + 1) for _ in range(dice.randrange(4))}


def message(dice: random.Random) -> str:
    found: dict[str, Any] = {
        "thingID": dice.choice(THINGS),
        "messageID": f"m{dice.randrange(50)}",
        "messageType": dice.choice(("request", "request", "response", "notification", "other")),
        "operation": dice.choice(OPERATIONS),
    }
    for member in dice.sample(MEMBERS, dice.randrange(5)):
        found[member] = dice.choice(("flow", "target", "setSpeed", "alarm")) if member == "name" else anything(dice)
    found["wait"] = 0
    for name in [name for name in found if dice.random() < 0.05]:
        found[name] = anything(dice)
    text = json.dumps(found)
    if dice.random() < 0.1:
        cut = dice.randrange(len(text))
        text = text[:cut] + dice.choice(string.printable) + text[cut + 1 :]
    return text


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("type_", ["agent", "consumer"])
async def test_no_message_is_a_fault_of_the_runtime(
    tmp_path: Path, seed: int, type_: str, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(seed)
    async with skep(tmp_path) as runtime:
        account = await runtime.add("works", type_)
        async with (
            web_thing_client(runtime, await runtime.add("canary")) as canary,
            web_thing_client(runtime, account) as client,
        ):
            if type_ == "agent":
                await client.request("exposething", "pump-1", td=PUMP)
            with caplog.at_level(logging.ERROR):
                for _ in range(ROUNDS):
                    await client.socket.send(message(dice))
                with anyio.fail_after(30):
                    alive = await client.request(
                        "callrpc", "dtw:directory:things", name="listTDs", input={"count": True}
                    )
            others = await canary.request("callrpc", "dtw:directory:things", name="listTDs", input={"count": True})

    assert "output" in alive
    assert "output" in others
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
