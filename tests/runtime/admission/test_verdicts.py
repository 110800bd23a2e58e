"""What the checks found of one publication holds for the next like it, and never longer than it is true."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config
from runtime.admission.verdicts import Verdicts
from runtime.ports import Authorizer
from tests.runtime.doubles import Recorded, agent_principal
from tests.runtime.harness import PUMP, House, RoleOnly, house
from things.addresses import Address
from things.decisions import LOG, Context, Decision
from things.errors import Forbidden, Invalid, RateLimited, UnknownThing
from things.identity import Principal, Role
from things.messages import JSONValue, Message, Operation

pytestmark = pytest.mark.anyio

MILL = agent_principal("mill")


class Rights(RoleOnly):
    """Rights that count how often they are asked, and that change."""

    def __init__(self) -> None:
        self.version = 0
        self.is_conditional = False
        self.asked = 0
        self.is_closed = False
        self.obligations: tuple[str, ...] = ()

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision:
        self.asked += 1
        decision = super().decide(principal, operation, address, context)
        return Decision(allowed=decision.allowed and not self.is_closed, rule="test", obligations=self.obligations)


def judging(h: House, rights: Authorizer) -> Verdicts:
    router = h.runtime._routed(rights, Recorded())
    return Verdicts(router, rights, h.twin.directory)


def flow(h: House, thing_id: str, value: JSONValue = 1, **more: Any) -> Message:
    return h.message(Operation.PUBLISH_PROPERTY, more.pop("who", MILL), thing_id, "flow", value, **more)


async def test_rights_are_asked_once_for_many_publications_of_a_series(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        verdicts = judging(h, rights)

        for value in range(20):
            assert verdicts.check(flow(h, thing_id, value)).thing_id == thing_id

        assert rights.asked <= 2
        assert h.runtime.metrics.handled[Operation.PUBLISH_PROPERTY, "embedded"] == 20


async def test_rights_that_change_count_at_the_next_publication(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        verdicts = judging(h, rights)
        verdicts.check(flow(h, thing_id))

        rights.is_closed, rights.version = True, 1
        with pytest.raises(Forbidden):
            verdicts.check(flow(h, thing_id))
        rights.is_closed, rights.version = False, 2
        verdicts.check(flow(h, thing_id))

        assert h.runtime.metrics.refused[Operation.PUBLISH_PROPERTY, "embedded", "forbidden"] == 1


async def test_what_one_sender_may_says_nothing_of_another(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        verdicts = judging(h, rights)
        verdicts.check(flow(h, thing_id))

        with pytest.raises(Forbidden):
            verdicts.check(flow(h, thing_id, who=agent_principal("other")))
        with pytest.raises(Forbidden):
            verdicts.check(flow(h, thing_id, who=replace(MILL, role=Role.NONE)))


@pytest.mark.parametrize("kind", ["conditional", "obliged"])
async def test_what_hangs_on_the_message_is_decided_for_each(tmp_path: Path, kind: str) -> None:
    async with house(tmp_path) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        rights.is_conditional = kind == "conditional"
        rights.obligations = (LOG,) if kind == "obliged" else ()
        verdicts = judging(h, rights)

        for value in range(5):
            verdicts.check(flow(h, thing_id, value))

        assert rights.asked >= 5


async def test_a_value_is_judged_by_the_description_that_stands(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        verdicts = judging(h, rights)
        verdicts.check(flow(h, thing_id, 1))
        verdicts.check(flow(h, thing_id, 1_000))  # out of its range, and true all the same
        with pytest.raises(Invalid):
            verdicts.check(flow(h, thing_id, "fast"))
        with pytest.raises(Invalid):
            verdicts.check(flow(h, thing_id, None, has_data=False))

        await h.publish_td("mill", "pump", {**PUMP, "properties": {"flow": {"type": "string"}}})
        verdicts.check(flow(h, thing_id, "fast"))
        with pytest.raises(Invalid):
            verdicts.check(flow(h, thing_id, 1))

        await h.twin.directory.remove(thing_id)
        with pytest.raises(UnknownThing):
            verdicts.check(flow(h, thing_id, "fast"))


async def test_every_publication_is_paid_for(tmp_path: Path) -> None:
    config = Config.of({"limits": {"messages_per_second": 1, "message_burst": 5}})
    async with house(tmp_path, config) as h:
        thing_id, rights = await h.publish_td("mill", "pump"), Rights()
        verdicts, began = judging(h, rights), time.monotonic()

        def many() -> None:
            for value in range(50):
                verdicts.check(flow(h, thing_id, value))

        with pytest.raises(RateLimited):
            many()

        passed = h.runtime.metrics.handled[Operation.PUBLISH_PROPERTY, "embedded"]
        assert passed <= 6 + time.monotonic() - began
        assert h.runtime.metrics.refused[Operation.PUBLISH_PROPERTY, "embedded", "rate-limited"] == 1
