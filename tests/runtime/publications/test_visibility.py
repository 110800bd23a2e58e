"""A Thing that is hidden from somebody is answered as one that nobody has, whatever asks for its publications."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from authz.documents import RuleDocument
from runtime.ports import Pattern
from runtime.publications.visibility import may_subscribe
from tests.authz.rights import LAMP, PUMP, ROOT, VERA, authorizer, who
from tests.bindings.messaging_node.support import SM, client
from tests.bindings.mqtt.support import Client, Refused
from tests.support import PUMP as PUMP_TD
from tests.support import Account, Skep, skep
from things.addresses import Kind
from things.parsing import parsed

pytestmark = pytest.mark.anyio

HIDDEN, UNKNOWN, SHOWN = "hidden", "unknown", "shown"
WATCHING = ["observe", "subscribe"]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Skep]:
    """A gateway whose viewer Vic sees all Things of `works` but one."""
    async with skep(tmp_path) as opened:
        rule = {"id": "hide", "effect": "deny", "thing": f"dtw:works:{HIDDEN}", "accounts": ["vic"]}
        await opened.running.stores.authorizer.put_rule(parsed(RuleDocument, rule), ROOT)
        yield opened


async def accounts(house: Skep) -> tuple[Account, Account]:
    works, vic = await house.add("works", "agent"), await house.add("vic", role="viewer")
    async with Client(house.mqtt_address, works.name, works.token) as agent:
        for thing in (HIDDEN, SHOWN):
            await agent.publish(f"agents/works/td/{thing}", PUMP_TD)
            await agent.publish(f"agents/works/property/{thing}/flow", 1)
    return works, vic


@pytest.mark.parametrize("thing", [HIDDEN, UNKNOWN])
async def test_over_mqtt_a_hidden_thing_is_as_an_unknown_one(house: Skep, thing: str) -> None:
    works, vic = await accounts(house)
    async with (
        Client(house.mqtt_address, works.name, works.token) as agent,
        Client(house.mqtt_address, vic.name, vic.token) as watching,
    ):
        for topic_filter in (f"things/works/{thing}/property/flow", f"things/works/{thing}/#"):
            assert await watching.subscribe(topic_filter) == 1
        await agent.publish(f"agents/works/property/{HIDDEN}/flow", 2)
        await agent.publish(f"agents/works/event/{HIDDEN}/alarm", "hot")
        assert await watching.settle() == []
        # What nobody of its role may see is refused for both.
        with pytest.raises(Refused):
            await watching.subscribe(f"things/works/{thing}/action/+")


@pytest.mark.parametrize("thing", [HIDDEN, UNKNOWN])
async def test_over_http_a_hidden_thing_is_as_an_unknown_one(house: Skep, thing: str) -> None:
    works, vic = await accounts(house)
    async with httpx2.AsyncClient(
        base_url=house.http, headers={"authorization": f"Bearer {vic.token}"}, trust_env=False, timeout=30
    ) as viewer:
        query = f"/stream?thing=dtw:works:{thing}&thing=dtw:works:{SHOWN}&latest=true"
        async with viewer.stream("GET", query) as stream, Client(house.mqtt_address, "works", works.token) as agent:
            assert stream.status_code == 200
            for reporting in (HIDDEN, SHOWN):
                await agent.publish(f"agents/works/property/{reporting}/target", 3)
            lines = (line async for line in stream.aiter_lines() if line.startswith("data:"))
            told: list[dict[str, Any]] = []
            while not told or told[-1]["name"] != "target":
                told.append(json.loads((await anext(lines)).removeprefix("data:")))
        assert {one["thingID"] for one in told} == {f"dtw:works:{SHOWN}"}
        codes = [(await viewer.get(f"/things/dtw:works:{one}/properties/flow")).status_code for one in (thing, SHOWN)]
        assert codes == [404, 200]


async def test_on_the_node_a_hidden_thing_is_as_an_unknown_one(house: Skep) -> None:
    _, vic = await accounts(house)
    async with client(house, "v", vic.token) as one:
        for thing in (HIDDEN, UNKNOWN):
            assert await one.code("subscribe", SM, {"resources": [f"thing://localhost/works/{thing}/changes"]}) == 200
            assert await one.code("read", f"thing://localhost/works/{thing}") == 404
        assert await one.nothing()


async def test_who_may_read_a_thing_and_not_watch_it_is_told_so(tmp_path: Path) -> None:
    rights = authorizer(tmp_path)
    rule = {"id": "still", "effect": "deny", "thing": "dtw:pump:p1", "operations": WATCHING}
    await rights.put_rule(parsed(RuleDocument, rule), ROOT)

    assert not may_subscribe(rights, VERA, Pattern("pump", "p1", Kind.PROPERTY, "flow"))
    assert may_subscribe(rights, VERA, Pattern("pump", "p2", Kind.PROPERTY, "flow"))
    assert may_subscribe(rights, PUMP, Pattern("pump", "p2", Kind.PROPERTY, "flow"))


@pytest.mark.parametrize("hidden", ["dtw:pump:*", "dtw:pump:p1"])
async def test_an_agent_that_is_hidden_is_as_one_that_nobody_is(tmp_path: Path, hidden: str) -> None:
    rights = authorizer(tmp_path)
    await rights.put_rule(parsed(RuleDocument, {"id": "hide", "effect": "deny", "thing": hidden}), ROOT)

    for pattern in (Pattern("pump"), Pattern("pump", "p1"), Pattern("ghost"), Pattern("ghost", "p1"), Pattern()):
        assert may_subscribe(rights, VERA, pattern)
        assert not may_subscribe(rights, who("nora", "none"), pattern)
        # Agents see their own, and are told of others that there is nothing for them.
        assert may_subscribe(rights, LAMP, pattern) is (pattern.agent is None)


async def test_a_rule_about_single_names_does_not_tell_that_a_hidden_thing_exists(tmp_path: Path) -> None:
    rights = authorizer(tmp_path)
    rules = [
        {"id": "hide", "effect": "deny", "thing": "dtw:pump:p1"},
        {"id": "peek", "effect": "allow", "thing": "dtw:pump:p1", "name": "spare*", "operations": ["read"]},
    ]
    for rule in rules:
        await rights.put_rule(parsed(RuleDocument, rule), ROOT)

    for thing in ("p1", "unknown"):
        assert may_subscribe(rights, VERA, Pattern("pump", thing, Kind.PROPERTY, "flow"))
