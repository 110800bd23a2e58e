"""A property that becomes write-only after values of it were published: none of them is read any more, at any door."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.bindings.messaging_node.support import SM, connected
from tests.bindings.messaging_node.support import client as node_client
from tests.bindings.mqtt.support import Client
from tests.bindings.websocket.clients import web_thing_client
from tests.support import Account, Skep, skep
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

THING, PATH = "dtw:works:lamp", "/things/dtw:works:lamp"
CODE, LEVEL = "open-sesame", "half-full"


def td(**code: Any) -> dict[str, Any]:
    """A lamp with a level, and a code that is a text and what else is said."""
    return {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": "Lamp",
        "properties": {"level": {"type": "string"}, "code": {"type": "string", **code}},
    }


async def described(house: Skep, works: Account, description: dict[str, Any]) -> None:
    async with Client(house.mqtt_address, works.name, works.token, "describing") as agent:
        await agent.publish("agents/works/td/lamp", description)


@asynccontextmanager
async def http(house: Skep, vic: Account) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {vic.token}"}
    async with httpx2.AsyncClient(base_url=house.http, headers=headers, trust_env=False, timeout=30) as viewer:
        yield viewer


def asked(*paths: str, **headers: str) -> "Door":
    """A door of HTTP: what all of these answer."""

    async def read(house: Skep, vic: Account) -> str:
        async with http(house, vic) as viewer:
            return "".join([(await viewer.get(path, headers=headers)).text for path in paths])

    return read


def streamed(path: str, until: str, **headers: str) -> "Door":
    """A stream of events, up to what comes after the values."""

    async def read(house: Skep, vic: Account) -> str:
        told = ""
        async with (
            http(house, vic) as viewer,
            asyncio.timeout(30),
            viewer.stream("GET", path, headers=headers) as stream,
        ):
            lines = stream.aiter_lines()
            while until not in told:
                told += await anext(lines)
        return told

    return read


async def called(house: Skep, vic: Account) -> str:
    """What was different before, at the service."""
    async with http(house, vic) as viewer:
        given = {"thingID": THING, "from": "2020-01-01T00:00:00Z"}
        return (await viewer.post("/rpc/dtw:history:readings/difference", json=given)).text


async def retained(house: Skep, vic: Account) -> str:
    async with Client(house.mqtt_address, vic.name, vic.token) as watching:
        await watching.subscribe("things/works/lamp/property/+")
        found = [await watching.receive()]
        while not found[-1].topic.endswith("/lastSeen"):  # which comes after the values
            found.append(await watching.receive())
        return json.dumps([each.value for each in found])


async def over_websocket(house: Skep, vic: Account) -> str:
    async with web_thing_client(house, vic) as socket:
        answers = [
            await socket.request("readproperty", THING, name="level"),
            await socket.request("readproperty", THING, name="code"),
            await socket.request("readmultipleproperties", THING, names=["code"]),
            await socket.request("readallproperties", THING),
        ]
        return json.dumps(answers)


async def on_the_node(house: Skep, vic: Account) -> str:
    address = "thing://localhost/works/lamp"
    async with node_client(house, "v", vic.token) as one:
        return json.dumps(
            [
                (await one.ask("read", address))["body"],
                (await one.ask("read", address, {"attribute": "code"}))["body"],
                (await one.ask("subscribe", f"{address}/subscription"))["body"],
            ]
        )


Door = Callable[[Skep, Account], Awaitable[str]]

DOORS: dict[str, Door] = {
    "values": asked(f"{PATH}/properties", f"{PATH}/properties/code"),
    "history": asked(f"{PATH}/history", f"{PATH}/history?name=code", "/history?after=0"),
    "csv": asked(f"{PATH}/history", accept="text/csv"),
    "windows": asked(f"{PATH}/history?window=1h&agg=last", f"{PATH}/history?name=code&points=5&agg=last"),
    "as of": asked(*(f"{PATH}/{each}?asof=2100-01-01T00:00:00Z" for each in ("properties", "properties/code"))),
    "difference": called,
    "latest of a stream": streamed(
        "/stream?agent=works&kind=property&latest=true", "lastSeen", accept="text/event-stream"
    ),
    "replay of a stream": streamed("/stream?agent=works", LEVEL, accept="text/event-stream", **{"last-event-id": "0"}),
    "long poll": asked("/stream?agent=works&after=0&wait=0"),
    "mqtt": retained,
    "websocket": over_websocket,
    "node": on_the_node,
}


async def published(house: Skep, works: Account) -> None:
    await described(house, works, td())
    async with Client(house.mqtt_address, works.name, works.token) as agent:
        await agent.publish("agents/works/property/lamp/code", CODE)
        await agent.publish("agents/works/property/lamp/level", LEVEL)


async def test_values_of_a_property_that_became_write_only_leave_by_no_door(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, vic = await house.add("works", "agent"), await house.add("vic", role="viewer")
        await published(house, works)
        for door, read in DOORS.items():
            assert CODE in await read(house, vic), f"{door} shows what may be read"

        await described(house, works, td(writeOnly=True))

        for door, read in DOORS.items():
            assert CODE not in await read(house, vic), door

    async with skep(tmp_path) as house:
        for door, read in DOORS.items():
            found = await read(house, vic)
            assert CODE not in found, f"{door} after a restart"
            assert LEVEL in found, f"{door} goes on showing the other property"

        await described(house, works, td())

        for door, read in DOORS.items():
            assert CODE in await read(house, vic), f"{door} shows what may be read again"


async def test_search_finds_nothing_by_a_value_that_is_not_read(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, vic = await house.add("works", "agent"), await house.add("vic", role="viewer")
        await published(house, works)
        async with http(house, vic) as viewer:

            async def found(given: str) -> list[str]:
                return [each["id"] for each in (await viewer.get("/things", params={"filter": given})).json()]

            assert await found(f"code = {CODE}") == [THING]

            await described(house, works, td(writeOnly=True))

            assert await found(f"code = {CODE}") == []
            assert await found(f"level = {LEVEL}") == [THING]


async def test_values_that_wait_for_a_client_are_not_given_once_they_are_not_read(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, vic = await house.add("works", "agent"), await house.add("vic", role="viewer")
        await published(house, works)
        async with (
            Client(house.mqtt_address, vic.name, vic.token, "watching", clean=False) as leaving,
            node_client(house, "v", vic.token) as node,
        ):
            await leaving.subscribe("things/works/lamp/property/+")
            await leaving.settle()
            await node.ask("subscribe", SM, {"resources": ["thing://localhost/works/lamp/changes"]})
            await leaving.break_off()
            await node.socket.close()
            async with Client(house.mqtt_address, works.name, works.token) as agent:
                await agent.publish("agents/works/property/lamp/code", CODE)
                await agent.publish("agents/works/property/lamp/level", LEVEL)

            await described(house, works, td(writeOnly=True))

            async with Client(house.mqtt_address, vic.name, vic.token, "watching", clean=False) as back:
                # The code was published before it.
                received: list[Any] = []
                while LEVEL not in received:
                    received.append((await back.receive()).value)
                assert CODE not in received
            async with connected(house, node.runtime, vic.token) as again:
                assert (await again.reopen(node.session))["body"]["code"] == 200
                told: list[Any] = []
                while LEVEL not in told:
                    told.append((await again.next())["body"]["value"])
                assert CODE not in told


@pytest.mark.parametrize("spelling", ["writeOnly", "write\\u004fnly"])
def test_description_names_its_write_only_properties_however_they_are_spelled(spelling: str) -> None:
    text = json.dumps(td(writeOnly=True)).replace("writeOnly", spelling)

    assert ThingDescription.parse(text, agent=True).write_only == {"code"}
    assert ThingDescription.of(td(), agent=True).write_only == frozenset()
