"""Event streams and long polls: what arrives, what is replayed, what a slow or revoked client gets."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from bindings.http.channels import CollectingChannel, StreamChannel
from bindings.http.config import HttpConfig
from bindings.http.sse import EventEncoder, Spelling, event, event_bytes
from runtime.ports import Publication
from tests.bindings.http.support import LAMP, PASSWORD, Events, House, eventually, lamp_house
from things.addresses import Kind, TwinID
from things.delivery import DeliveryStatus, State
from things.errors import Unauthenticated
from things.identity import AccountType, Principal, Role
from things.jsontext import encode

pytestmark = pytest.mark.anyio

LAMP_PATH = "/things/dtw:lights:lamp"
SSE = {"accept": "text/event-stream"}


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def _level(client: httpx.AsyncClient, value: int) -> None:
    reply = await client.post("/agent/things/lamp/properties", json={"level": value})
    assert reply.status_code == 204, reply.text


async def test_property_stream_gives_bare_values_named_by_the_property(lamps: House) -> None:
    async with (
        lamps.client("lights") as lights,
        lamps.client("viewer1") as viewer,
        viewer.stream("GET", f"{LAMP_PATH}/properties/level", headers=SSE) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        events = Events(response)
        await _level(lights, 5)
        found = await events.next()

    assert (found["event"], found["data"]) == ("level", "5")
    assert int(found["id"]) > 0


async def test_unnamed_stream_has_no_event_names(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        path = f"{LAMP_PATH}/events/overheated?sse=unnamed"
        async with viewer.stream("GET", path, headers=SSE) as response:
            events = Events(response)
            await lights.post("/agent/things/lamp/events/overheated", json=99)
            assert set(await events.next()) == {"id", "data"}
        assert (await viewer.get(f"{LAMP_PATH}/events/overheated?sse=odd")).status_code == 400


async def test_all_properties_and_all_events_have_a_stream_each(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        for path, kind in ((f"{LAMP_PATH}/properties", "property"), (f"{LAMP_PATH}/events", "event")):
            async with viewer.stream("GET", path, headers=SSE) as response:
                events = Events(response)
                await _level(lights, 1)
                await lights.post("/agent/things/lamp/events/touched", json=None)
                found = await events.next()
                assert found["event"] == ("level" if kind == "property" else "touched")


async def test_streams_of_what_is_not_there_are_404(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        for path in ("/properties/nothing", "/events/nothing"):
            reply = await viewer.get(LAMP_PATH + path, headers=SSE)
            assert (reply.status_code, reply.json()["code"]) == (404, "unknown-name")
        assert (await viewer.get("/things/dtw:x:y/events", headers=SSE)).status_code == 404
        assert (await viewer.get("/things/urn:x:y/events", headers=SSE)).status_code == 404
        json_only = await viewer.get(f"{LAMP_PATH}/events", headers={"accept": "application/json"})
        assert (json_only.status_code, json_only.json()["code"]) == (406, "not-acceptable")


async def test_one_stream_carries_many_subscriptions(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        path = "/stream?agent=lights&kind=property&kind=event&name=level&name=touched"
        async with viewer.stream("GET", path) as response:
            events = Events(response)
            await lights.post("/agent/things/lamp/properties", json={"mode": "dim"})
            await _level(lights, 8)
            await lights.post("/agent/things/lamp/events/touched", json="by hand")
            first, second = await events.next(), await events.next()

    assert first["event"] == "property"
    data = json.loads(first["data"])
    assert data.pop("created").endswith("Z")
    assert data == {"thingID": "dtw:lights:lamp", "kind": "property", "name": "level", "value": 8}
    assert (second["event"], json.loads(second["data"])["value"]) == ("event", "by hand")


async def test_new_descriptions_and_progress_of_actions_are_on_the_stream(lamps: House) -> None:
    async with (
        lamps.client("operator1") as operator,
        lamps.client("viewer1") as viewer,
        operator.stream("GET", "/stream?thing=dtw:lights:lamp&kind=action") as actions,
        viewer.stream("GET", "/stream?kind=td") as tds,
    ):
        progress, descriptions = Events(actions), Events(tds)
        await operator.post(f"{LAMP_PATH}/actions/blink")
        found = json.loads((await progress.next())["data"])
        assert (found["name"], found["value"]["state"]) == ("blink", "pending")
        async with lamps.client("lights") as lights:
            await lights.put(
                "/agent/things/second", json={"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "B"}
            )
        assert json.loads((await descriptions.next())["data"])["value"]["title"] == "B"


@pytest.mark.parametrize(
    "query", ["kind=odd", "thing=dtw:x:y&agent=z", "wait=soon", "after=x", "&".join(["name=a"] * 1_500)]
)
async def test_bad_stream_queries_are_400(lamps: House, query: str) -> None:
    async with lamps.client("viewer1") as viewer:
        assert (await viewer.get(f"/stream?{query}")).status_code == 400


async def test_a_role_that_may_see_nothing_gets_no_stream(lamps: House) -> None:
    await lamps.account("nobody1", AccountType.CONSUMER, Role.NONE)
    async with lamps.client("nobody1") as nobody:
        reply = await nobody.get("/stream")

    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")


async def test_what_was_missed_is_replayed_in_order_and_once(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        path = f"{LAMP_PATH}/properties/level"
        async with viewer.stream("GET", path, headers=SSE) as response:
            events = Events(response)
            await _level(lights, 0)
            last = (await events.next())["id"]
        for value in range(1, 30):
            await _level(lights, value)
            await lights.post("/agent/things/lamp/properties", json={"mode": str(value)})

        for stream in (path, "/stream?name=level", "/stream?agent=lights&thing=lamp&kind=property&name=level"):
            headers = {**SSE, "last-event-id": last}
            async with viewer.stream("GET", stream, headers=headers) as response:
                events = Events(response)
                values = [await events.data() for _ in range(29)]
                await _level(lights, 77)
                values.append(await events.data())
            if stream != path:
                values = [value["value"] for value in values]
            assert values == [*range(1, 30), 77]


async def test_latest_values_come_first_when_asked_for(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await _level(lights, 42)
        async with viewer.stream("GET", "/stream?kind=property&name=level&latest=true") as response:
            events = Events(response)
            assert (await events.data())["value"] == 42
            await _level(lights, 43)
            assert (await events.data())["value"] == 43


async def test_long_poll_reads_what_was_missed_then_waits(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        for value in (1, 2, 3):
            await _level(lights, value)
        path = "/stream?thing=dtw:lights:lamp&name=level"
        page = (await viewer.get(f"{path}&after=0&limit=2")).json()
        assert [item["value"] for item in page["items"]] == [1, 2]
        page = (await viewer.get(f"{path}&after={page['cursor']}&wait=60")).json()
        assert [item["value"] for item in page["items"]] == [3]

        found: list[Any] = []

        async def poll() -> None:
            found.append((await viewer.get(f"{path}&after={page['cursor']}&wait=60")).json())

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await _level(lights, 4)
        assert [item["value"] for item in found[0]["items"]] == [4]
        empty = (await viewer.get(f"{path}&after={found[0]['cursor']}&wait=0.05")).json()
        assert empty == {"items": [], "cursor": found[0]["cursor"]}


async def test_longpoll_subprotocol_waits_for_the_next_value(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        found: list[Any] = []

        async def poll(path: str) -> None:
            found.append((await viewer.get(path)).json())

        with anyio.fail_after(30):
            for path in (f"{LAMP_PATH}/properties/level?wait=3600", f"{LAMP_PATH}/events/overheated?wait=3600"):
                assert (await viewer.head(path)).status_code == 200
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(poll, path)
                    await eventually(lamps.some_session)
                    await _level(lights, 9)
                    await lights.post("/agent/things/lamp/events/overheated", json=99)
            assert found == [9, 99]
            assert (await viewer.get(f"{LAMP_PATH}/events/overheated?wait=0.05")).status_code == 204
            assert (await viewer.get(f"{LAMP_PATH}/properties/level?wait=0.05")).json() == 9


async def test_logout_and_disabling_end_open_streams(lamps: House) -> None:
    async with lamps.client() as nobody:
        login = (await nobody.post("/authn/login", json={"login": "viewer1", "password": PASSWORD})).json()
        bearer = {"authorization": f"Bearer {login['accessToken']}"}
        async with (
            nobody.stream("GET", "/stream", headers=bearer) as stream,
            nobody.stream("GET", "/inbox", headers=bearer) as inbox,
        ):
            with anyio.fail_after(30):
                assert (await nobody.post("/authn/logout", headers=bearer)).status_code == 200
                assert await Events(stream).ended()
                assert await Events(inbox).ended()

    async with lamps.client("viewer1") as viewer, viewer.stream("GET", "/stream") as stream:
        with anyio.fail_after(30):
            await lamps.authenticator.administration.disable("viewer1", by="test")
            assert await Events(stream).ended()


async def test_streams_of_one_account_are_bounded(tmp_path: Path) -> None:
    async with (
        lamp_house(tmp_path / "home", HttpConfig(max_streams_per_account=1)) as lamps,
        lamps.client("viewer1") as viewer,
        lamps.client("operator1") as operator,
    ):
        async with viewer.stream("GET", "/stream"):
            over = await viewer.get("/stream")
            assert (over.status_code, over.json()["code"]) == (429, "queue-full")
            assert "retry-after" in over.headers
            async with operator.stream("GET", "/stream") as other:
                assert other.status_code == 200
        await eventually(lamps.no_sessions)
        assert (await viewer.get("/stream?after=0")).status_code == 200


async def test_idle_streams_are_pinged(tmp_path: Path) -> None:
    async with (
        lamp_house(tmp_path / "home", HttpConfig(ping_s=0.1)) as lamps,
        lamps.client("viewer1") as viewer,
        viewer.stream("GET", "/stream") as response,
    ):
        seen = b""
        with anyio.fail_after(30):
            async for chunk in response.aiter_raw():
                seen += chunk
                if seen.count(b": ping\n") >= 2:
                    break


async def test_a_client_that_stops_reading_is_dropped_and_others_are_served(tmp_path: Path) -> None:
    config = HttpConfig(stream_events=50)
    async with lamp_house(tmp_path / "home", config) as lamps, lamps.client("lights") as lights:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(lamps.url.rpartition(":")[2]), limit=1_024)
        token = lamps.tokens["viewer1"]
        writer.write(f"GET /stream?kind=event HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode())
        await reader.readuntil(b": ok\n")
        async with lamps.client("operator1") as operator, operator.stream("GET", "/stream?kind=event") as response:
            events = Events(response)
            payload = "x" * 200_000
            with anyio.fail_after(30):
                for _ in range(200):
                    await lights.post("/agent/things/lamp/events/touched", json=payload)
                    assert (await events.data())["value"] == payload
                    if lamps.runtime.metrics.sessions["http"] == 1:
                        break
            assert lamps.runtime.metrics.sessions["http"] == 1
        writer.close()


async def test_shutdown_ends_streams_at_once(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", HttpConfig(graceful_s=60)) as lamps:
        async with lamps.client("viewer1") as viewer, viewer.stream("GET", "/stream") as stream:
            lamps.runtime.sessions.everyone()[0].close("shut-down")
            assert await Events(stream).ended()
        client = lamps.client("viewer1")
        response = await client.send(client.build_request("GET", "/stream"), stream=True)
        assert response.status_code == 200
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 30
    await client.aclose()


# ---------------------------------------------------------------- the channel by itself


class _NoSessions:
    """Registers nothing."""

    rights = 0

    def closed(self, session: object) -> None: ...

    def drained(self, session: object) -> None: ...

    def dropped(self, session: object, kind: str, reason: str) -> None: ...

    def may_see(self, principal: Principal, thing_id: str, kind: Kind, name: str) -> bool:
        return name != "hidden"


def _channel(**options: Any) -> StreamChannel:
    given = {"coalesce": False, "max_events": 3, "max_bytes": 10_000, "abort": None} | options
    return StreamChannel(
        _NoSessions(),  # type: ignore[arg-type]
        Principal(account="a", type=AccountType.CONSUMER, role="viewer"),
        session_id="s",
        source=None,
        encoder=EventEncoder(),
        spelling=Spelling.UNNAMED,
        **given,
    )


def _value(name: str, value: object, row_id: int = 1) -> Publication:
    return Publication(
        twin=TwinID.of("a", "b"),
        thing_id="dtw:a:b",
        kind=Kind.PROPERTY,
        name=name,
        value=value,  # type: ignore[arg-type]
        payload=encode(value),
        created=0,
        row_id=row_id,
    )


async def test_property_channel_keeps_the_newest_value_per_name() -> None:
    channel = _channel(coalesce=True)
    for row, (name, value) in enumerate([("x", 1), ("y", 1), ("x", 2), ("x", 3)], 1):
        channel.publish(_value(name, value, row), ())

    assert channel.take(b"") == b"id: 4\ndata: 3\n\nid: 2\ndata: 1\n\n"
    assert channel.closed_because is None
    assert channel.dropped == 2


async def test_event_channel_closes_when_it_overflows_and_cuts_a_writer_that_is_stuck() -> None:
    cut: list[bool] = []
    channel = _channel(abort=lambda: cut.append(True))
    channel.writing = True
    for row in range(1, 5):
        channel.publish(_value("x", row, row), ())

    assert channel.closed_because == "queue-full"
    assert channel.take(b"") == b""
    assert cut == [True]


def _collecting(sessions: "_NoSessions") -> CollectingChannel:
    return CollectingChannel(
        sessions,  # type: ignore[arg-type]
        Principal(account="a", type=AccountType.CONSUMER, role="viewer"),
        session_id="s",
        source=None,
        limit=10,
    )


async def test_a_long_poll_gives_nothing_that_came_before_its_client_was_cut_off() -> None:
    for reason in ("revoked", "ended", "token-expired"):
        channel = _collecting(_NoSessions())
        channel.publish(_value("x", 1), ())
        channel.close(reason)

        with pytest.raises(Unauthenticated):
            channel.publications()
        with pytest.raises(Unauthenticated):
            channel.statuses()


async def test_a_long_poll_gives_what_came_as_far_as_it_may_be_seen_by_then() -> None:
    sessions = _NoSessions()
    channel = _collecting(sessions)
    for name in ("x", "hidden"):
        channel.publish(_value(name, 1), ())
    assert [one.name for one in channel.publications()] == ["x", "hidden"]

    sessions.rights = 1

    assert [one.name for one in channel.publications()] == ["x"]


async def test_a_replaying_channel_drops_what_history_will_bring() -> None:
    channel = _channel()
    channel.holding = True
    for row in range(1, 5):
        channel.publish(_value("x", row, row), ())
    assert channel.missed
    assert channel.closed_because is None
    channel.publish(_value("x", 5, 5), ())
    channel.publish(_value("x", 6, 6), ())
    channel.skip_to(5)

    assert channel.take(b"") == b"id: 6\ndata: 6\n\n"


def test_line_breaks_cannot_forge_events() -> None:
    hostile = "x\nevent: forged\ndata: 1\n\n"

    assert event(b"1", name=hostile).count(b"\n") == 3
    publication = Publication(
        twin=TwinID.of("a", "b"),
        thing_id="dtw:a:b",
        kind=Kind.EVENT,
        name=hostile,
        value=[1],
        payload=b"[\n1]",
        created=0,
        row_id=1,
    )
    for spelling in Spelling:
        assert event_bytes(publication, spelling, 1).count(b"\n\n") == 1


def test_one_publication_is_encoded_once() -> None:
    encoder = EventEncoder()
    publication = _value("x", 1)

    assert encoder.spell(publication, Spelling.MANY) is encoder.spell(publication, Spelling.MANY)
    assert encoder.spell(publication, Spelling.NAMED) != encoder.spell(publication, Spelling.MANY)


async def test_one_stream_also_tells_statuses_and_changes_of_the_directory(lamps: House) -> None:
    async with (
        lamps.client("lights") as lights,
        lamps.client("operator1") as operator,
        operator.stream(
            "GET", "/stream?thing=dtw:lights:lamp&kind=property&inbox=true&changes=true", headers=SSE
        ) as response,
    ):
        events = Events(response)
        reply = await operator.post(f"{LAMP_PATH}/actions/blink")
        status = await events.next()
        assert "id" not in status  # ids are rows
        document = json.loads(status["data"])
        assert (status["event"], document["requestID"]) == ("status", reply.json()["requestID"])

        await _level(lights, 4)
        found = await events.next()
        assert (found["event"], json.loads(found["data"])["value"]) == ("property", 4)

        await lights.put("/agent/things/lantern", json=LAMP)
        created = await events.next()
        assert (created["event"], json.loads(created["data"])["id"]) == ("thing_created", "dtw:lights:lantern")


async def test_statuses_and_changes_in_a_stream_go_on_after_a_number(lamps: House) -> None:
    path = "/stream?thing=dtw:lights:lamp&kind=event"
    async with lamps.client("lights") as lights, lamps.client("operator1") as operator:
        async with operator.stream("GET", f"{path}&inbox=0&changes=true", headers=SSE) as response:
            events = Events(response)
            await operator.post(f"{LAMP_PATH}/actions/blink")
            seq = (await events.data())["seq"]
            await lights.put("/agent/things/lantern", json=LAMP)
            change = (await events.data())["change"]
        await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 3})
        await lights.delete("/agent/things/lantern")

        async with operator.stream("GET", f"{path}&inbox={seq}&changes={change}", headers=SSE) as response:
            events = Events(response)
            found = {one["event"]: json.loads(one["data"]) for one in (await events.next(), await events.next())}

        assert found["status"]["seq"] > seq
        assert found["thing_deleted"]["id"] == "dtw:lights:lantern"
        assert (await operator.get(f"{path}&inbox=soon", headers=SSE)).status_code == 400


async def test_statuses_of_others_do_not_come_into_a_stream(lamps: House) -> None:
    async with (
        lamps.client("manager1") as manager,
        lamps.client("operator1") as operator,
        operator.stream("GET", "/stream?kind=event&inbox=0", headers=SSE) as response,
    ):
        events = Events(response)
        await manager.post(f"{LAMP_PATH}/actions/blink")
        own = (await operator.post(f"{LAMP_PATH}/actions/blink")).json()["requestID"]
        assert (await events.data())["requestID"] == own


async def test_latest_values_of_a_named_thing_begin_with_whether_it_is_online(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await _level(lights, 6)
        path = "/stream?thing=dtw:lights:lamp&kind=property&latest=true"
        async with viewer.stream("GET", path, headers=SSE) as response:
            events = Events(response)
            found = [await events.data() for _ in range(3)]
    values = {one["name"]: one["value"] for one in found}
    assert values.pop("lastSeen") <= found[0]["created"]
    assert values == {"level": 6, "online": False}


async def test_latest_values_of_all_things_hold_whether_each_is_online(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        path = "/stream?kind=property&name=online&latest=true"
        async with viewer.stream("GET", path, headers=SSE) as response:
            events = Events(response)
            found: dict[str, bool] = {}
            while not found.keys() >= {"dtw:lights:lamp", "dtw:directory:things"}:
                event = await events.data()
                found[event["thingID"]] = event["value"]
    assert (found["dtw:lights:lamp"], found["dtw:directory:things"]) == (False, True)


def test_statuses_wait_in_the_ledger_while_a_stream_has_no_room() -> None:
    channel = _channel(max_events=2, with_statuses=True)
    status = DeliveryStatus(request_id="r", state=State.PENDING, seq=7)
    taken: list[int] = []

    room = [channel.report(status, lambda: taken.append(1)) for _ in range(3)]

    assert room == [True, True, False]
    assert channel.take(b"").count(b"event: status") == 2
    assert (len(taken), channel.report(status, lambda: None)) == (2, True)


async def test_returning_client_gets_what_it_missed_and_then_the_latest_values(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        path = "/stream?thing=dtw:lights:lamp&kind=property&kind=event&latest=true"
        async with viewer.stream("GET", path, headers=SSE) as response:
            events = Events(response)
            await _level(lights, 1)
            while (last := await events.next()).get("id") is None:
                pass
        await lights.post("/agent/things/lamp/events/overheated", json=99)
        await _level(lights, 2)

        async with viewer.stream("GET", path, headers={**SSE, "last-event-id": last["id"]}) as response:
            events = Events(response)
            found = [await events.data() for _ in range(5)]

    assert [(one["name"], one["value"]) for one in found[:4]] == [
        ("overheated", 99),
        ("level", 2),
        ("level", 2),
        ("online", False),
    ]
    assert found[4]["name"] == "lastSeen"
