"""Clients with a persistent session find, when they come back, what they asked for while they were away."""

import gc
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from bindings.mqtt.engines.native import NativeEngine, SessionStore
from bindings.mqtt.engines.seam import Limits, Listener
from bindings.mqtt.missed import Depth
from runtime.clocks import wall_clock
from tests.bindings.mqtt.engines.contract import DEADLINE_S, EngineType
from tests.bindings.mqtt.support import LAMP, Client, House, house, lamp_house
from things.addresses import Kind
from things.identity import AccountType, Principal, Role
from things.parsing import parsed
from things.records import Reading

pytestmark = pytest.mark.anyio

EVENTS = "things/lights/lamp/event/#"
LEVEL = "things/lights/lamp/property/level"


def watcher(lamp: House, account: str = "viewer1", *, v5: bool = False, **options: Any) -> Client:
    """A client whose session outlives its connection."""
    if v5:
        options["connect_properties"] = {"SessionExpiryInterval": 3_600}
    return lamp.client(account, "watcher", v5=v5, clean=False, **options)


async def left(lamp: House, account: str = "viewer1") -> None:
    """Return when the runtime knows that the client is gone, and what it asked for waits."""

    def is_left() -> bool:
        return any(each.principal.account == account for each in lamp.binding._away.values())

    with anyio.fail_after(DEADLINE_S):
        while not is_left():  # noqa: ASYNC110 - the client is gone when the server has read so
            await anyio.sleep(0.005)


async def caught_up(lamp: House) -> None:
    """Return when every client that is back has been given what it has missed."""
    engine = lamp.binding._engine
    assert isinstance(engine, NativeEngine)
    with anyio.fail_after(DEADLINE_S):
        while any(session.behind for session in engine.sessions):  # noqa: ASYNC110 - nobody is told
            await anyio.sleep(0.005)


async def overheated(lamp: House, *values: int) -> None:
    async with lamp.client("lights", "sender") as agent:
        for value in values:
            await agent.publish("agents/lights/event/lamp/overheated", value)


@asynccontextmanager
async def stored_house(home: Path, tokens: dict[str, str]) -> AsyncIterator[House]:
    """The house once more, with its sessions on disk."""

    def engine(listeners: Sequence[Listener], limits: Limits) -> NativeEngine:
        return NativeEngine(listeners, limits, SessionStore(home / "mqtt-sessions.db", wall_clock, limits))

    async with house(home, engine) as opened:
        if tokens:
            opened.tokens = tokens
        yield opened


@pytest.mark.parametrize("v5", [False, True])
async def test_events_and_values_wait_for_a_client_that_is_away(lamp_5: House, v5: bool) -> None:
    async with watcher(lamp_5, v5=v5) as client:
        await client.subscribe(EVENTS)
        await client.subscribe("things/lights/lamp/property/#")
    await left(lamp_5)

    await overheated(lamp_5, 81, 82)
    async with lamp_5.client("lights", "sender") as agent:
        await agent.publish("agents/lights/property/lamp/level", 5)
        await agent.publish("agents/lights/property/lamp/level", 6)

    async with watcher(lamp_5, v5=v5) as client:
        assert client.session_present
        await caught_up(lamp_5)
        found = [each for each in await client.settle() if not each.retain]
        assert [each.value for each in found] == [81, 82, 5, 6]
        await overheated(lamp_5, 83)
        assert (await client.receive_on("things/lights/lamp/event/overheated")).value == 83


async def test_nothing_waits_for_clean_sessions_nor_for_filters_of_qos_0(lamp_5: House) -> None:
    async with watcher(lamp_5) as client:
        await client.subscribe(EVENTS, 0)
    await left(lamp_5)
    async with lamp_5.client("manager1", "short") as client:
        await client.subscribe(EVENTS)

    await overheated(lamp_5, 81)

    async with watcher(lamp_5) as client, lamp_5.client("manager1", "short") as other:
        assert await client.settle() == []
        assert await other.settle() == []


@pytest.mark.parametrize("v5", [False, True])
async def test_what_was_missed_is_bounded_in_bytes_and_a_gap_is_told(
    tmp_path: Path, v5: bool, caplog: pytest.LogCaptureFixture
) -> None:
    depth = Depth(seconds=3_600.0, max_bytes=3 * (256 + 1))
    async with lamp_house(tmp_path / "home", NativeEngine, depth=depth) as lamp:
        async with watcher(lamp, v5=v5) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
        await overheated(lamp, *range(10))

        async with watcher(lamp, v5=v5) as client, lamp.client("admin1") as admin:
            found = [await client.receive() for _ in range(3)]
            assert [each.value for each in found] == [7, 8, 9]
            told = [[value for name, value in each.user_properties if name == "gap"] for each in found]
            assert told == ([["7"], [], []] if v5 else [[]] * 3)
            await admin.subscribe("$SYS/mqtt/gaps")
            assert (await admin.receive()).value == 1
    assert "a session has missed more than it can be given" in caplog.text


async def test_what_was_missed_is_bounded_in_time(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", NativeEngine, depth=Depth(seconds=0.0, max_bytes=1_000_000)) as lamp:
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
        await overheated(lamp, 81, 82)

        async with watcher(lamp) as client:
            await caught_up(lamp)
            assert await client.settle() == []
            await overheated(lamp, 83)
            assert (await client.receive()).value == 83


async def test_what_retention_dropped_is_a_gap_and_the_rest_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lamp_house(tmp_path / "home", NativeEngine) as lamp:
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
        await overheated(lamp, 81)
        tomorrow = wall_clock() + 2 * 86_400_000_000
        await lamp.twin.history.append(
            [
                Reading(
                    thing_id="dtw:lights:lamp",
                    kind=Kind.EVENT,
                    name="overheated",
                    value=b"82",
                    created=tomorrow,
                    received=tomorrow,
                    sender="lights",
                )
            ]
        )
        await lamp.twin.history.drop(lamp.twin.history.days[0])
        await overheated(lamp, 83)

        async with watcher(lamp) as client:
            assert [(await client.receive()).value for _ in range(2)] == [82, 83]
    assert "a session has missed more than it can be given" in caplog.text


async def test_an_agent_that_is_away_is_not_reachable_and_its_requests_come_from_the_ledger(lamp_5: House) -> None:
    async with watcher(lamp_5, "lights") as agent:
        await agent.subscribe("inbox/lights/#")
        await agent.subscribe("things/lights/lamp/event/#")
    await left(lamp_5, "lights")

    async with lamp_5.client("operator1") as caller:
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1")
        assert (await caller.receive_on("inbox/operator1/status/r1")).value["state"] == "pending"

        async with watcher(lamp_5, "lights") as agent:
            request = await agent.receive()
            assert request.topic.startswith("inbox/lights/action/lamp/blink/")
            assert await agent.settle() == [], "once, and not twice"


@pytest.mark.parametrize("act", ["disable", "remove", "role"])
async def test_what_waits_ends_with_the_rights_of_its_account(lamp_5: House, act: str) -> None:
    async with watcher(lamp_5) as client:
        await client.subscribe(EVENTS)
    await left(lamp_5)
    await overheated(lamp_5, 81)

    administration = lamp_5.authenticator.administration
    if act == "role":
        await administration.set_role("viewer1", Role.NONE, by="test")
    elif act == "disable":
        await administration.disable("viewer1", by="test")
        await administration.enable("viewer1", by="test")
    else:
        await administration.remove("viewer1", by="test")
        await lamp_5.account("viewer1", AccountType.CONSUMER, Role.VIEWER)
    await overheated(lamp_5, 82)

    async with watcher(lamp_5) as client:
        assert not client.session_present
        assert await client.settle() == []


async def test_what_waits_survives_a_restart_and_goes_on_waiting(tmp_path: Path) -> None:
    home, tokens = tmp_path / "home", dict[str, str]()
    async with stored_house(home, tokens) as lamp:
        await lamp.account("lights", AccountType.AGENT, Role.AGENT)
        await lamp.account("viewer1", AccountType.CONSUMER, Role.VIEWER)
        tokens = lamp.tokens
        async with lamp.client("lights") as agent:
            await agent.publish("agents/lights/td/lamp", LAMP)
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
        await overheated(lamp, 81)

    async with stored_house(home, tokens) as lamp:
        await overheated(lamp, 82)

        async with watcher(lamp) as client:
            assert client.session_present
            assert [(await client.receive()).value for _ in range(2)] == [81, 82]


@pytest.mark.parametrize("act", ["disable", "role"])
async def test_an_account_that_lost_its_rights_while_nothing_ran_has_no_session_after_it(
    tmp_path: Path, act: str
) -> None:
    home, tokens = tmp_path / "home", dict[str, str]()
    async with stored_house(home, tokens) as lamp:
        await lamp.account("lights", AccountType.AGENT, Role.AGENT)
        await lamp.account("viewer1", AccountType.CONSUMER, Role.VIEWER)
        tokens = lamp.tokens
        async with lamp.client("lights") as agent:
            await agent.publish("agents/lights/td/lamp", LAMP)
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
    async with house(home, NativeEngine) as offline:
        if act == "disable":
            await offline.authenticator.administration.disable("viewer1", by="test")
        else:
            await offline.authenticator.administration.set_role("viewer1", Role.NONE, by="test")

    async with stored_house(home, tokens) as lamp:
        await overheated(lamp, 82)
        if act == "disable":
            await lamp.authenticator.administration.enable("viewer1", by="test")

        async with watcher(lamp) as client:
            assert not client.session_present
            assert await client.settle() == []


async def test_a_bridge_without_local_is_not_given_its_own_when_it_catches_up(tmp_path: Path) -> None:
    """Too slow for its queue, and gone and back: both read history."""
    limits = Limits(max_inflight=1, max_queued=2)
    async with lamp_house(tmp_path / "home", NativeEngine, limits=limits) as lamp:
        async with watcher(lamp, "lights", v5=True) as bridge, lamp.client("lights", "other") as other:
            bridge.paho.manual_ack_set(True)
            await bridge.subscribe(EVENTS, noLocal=True)
            for number in range(8):
                sender = bridge if number % 2 else other
                await sender.publish("agents/lights/event/lamp/overheated", number)
            assert (await bridge.receive()).value == 0
        await left(lamp, "lights")
        async with lamp.client("lights", "other") as other:
            await other.publish("agents/lights/event/lamp/overheated", 8)

        async with watcher(lamp, "lights", v5=True) as bridge:
            assert [(await bridge.receive()).value for _ in range(5)] == [0, 2, 4, 6, 8]
            await caught_up(lamp)
            await bridge.publish("agents/lights/event/lamp/overheated", 9)
            assert await bridge.settle() == []


ROOT = Principal(account="admin1", type=AccountType.CONSUMER, role=Role.ADMIN)


async def denied(lamp: House, by: str) -> None:
    """Hide the lamp from viewer1."""
    if by == "rule":
        document = parsed(
            RuleDocument, {"id": "no", "effect": "deny", "thing": "dtw:lights:*", "accounts": ["viewer1"]}
        )
        await lamp.authorizer.put_rule(document, ROOT)
        return
    rule = {"id": "no", "effect": "block", "target": {"sender": "viewer1", "agent": "lights"}}
    policy = {"id": "no", "rules": [rule]}
    await lamp.authorizer.put_policy_set(set_document({"v": 1, "id": "no", "policies": [policy]}))


@pytest.mark.parametrize("by", ["rule", "policy"])
async def test_what_waits_is_judged_when_it_is_delivered(lamp_5: House, by: str) -> None:
    async with watcher(lamp_5) as client, watcher(lamp_5, "manager1") as other:
        for each in (client, other):
            await each.subscribe(EVENTS)
            await each.subscribe(LEVEL)
            await each.subscribe("things/lights/lamp/td")
    await left(lamp_5)
    await left(lamp_5, "manager1")
    await overheated(lamp_5, 81)
    async with lamp_5.client("lights", "sender") as agent:
        await agent.publish("agents/lights/property/lamp/level", 5)
        await agent.publish("agents/lights/td/lamp", {**LAMP, "title": "Secret"})

    await denied(lamp_5, by)

    async with watcher(lamp_5) as client, watcher(lamp_5, "manager1") as other:
        assert client.session_present
        await caught_up(lamp_5)
        assert await client.settle() == []
        assert {each.topic for each in await other.settle()} == {
            "things/lights/lamp/event/overheated",
            LEVEL,
            "things/lights/lamp/td",
        }


async def test_what_was_in_flight_is_not_sent_again_once_it_is_hidden(lamp_5: House) -> None:
    async with watcher(lamp_5) as client:
        await client.subscribe(EVENTS)
        client.paho.manual_ack_set(True)
        await overheated(lamp_5, 81)
        assert (await client.receive()).value == 81
        await client.break_off()
    await left(lamp_5)

    await denied(lamp_5, "rule")

    async with watcher(lamp_5) as client:
        assert client.session_present
        assert await client.settle() == []


async def test_what_a_slow_client_has_not_been_sent_is_judged_when_its_turn_comes(
    any_engine: EngineType, tmp_path: Path
) -> None:
    async with (
        lamp_house(tmp_path / "home", any_engine, limits=Limits(max_inflight=1)) as lamp,
        lamp.client("viewer1") as client,
    ):
        client.paho.manual_ack_set(True)
        await client.subscribe(EVENTS)
        await overheated(lamp, 81, 82)
        assert (await client.receive()).value == 81

        await denied(lamp, "rule")
        client.paho.ack(1, 1)

        assert await client.settle() == []


async def test_what_waits_is_judged_after_a_restart_too(tmp_path: Path) -> None:
    home, tokens = tmp_path / "home", dict[str, str]()
    async with stored_house(home, tokens) as lamp:
        await lamp.account("lights", AccountType.AGENT, Role.AGENT)
        await lamp.account("viewer1", AccountType.CONSUMER, Role.VIEWER)
        tokens = lamp.tokens
        async with lamp.client("lights") as agent:
            await agent.publish("agents/lights/td/lamp", LAMP)
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
        await overheated(lamp, 81)
    async with house(home, NativeEngine) as offline:
        await denied(offline, "rule")

    async with stored_house(home, tokens) as lamp, watcher(lamp) as client:
        assert client.session_present
        assert await client.settle() == []


async def test_a_session_without_its_client_takes_no_more_than_a_kibibyte(tmp_path: Path) -> None:
    count = 1_000
    async with stored_house(tmp_path / "home", {}) as lamp:
        lamp.runtime.sessions.max_per_account = count
        await lamp.account("viewer1", AccountType.CONSUMER, Role.VIEWER)
        async with watcher(lamp) as client:
            await client.subscribe(EVENTS)
        await left(lamp)
    with sqlite3.connect(tmp_path / "home" / "mqtt-sessions.db") as db:
        ((account, ends, state),) = db.execute("SELECT account, ends, state FROM sessions")
        db.executemany(
            "INSERT INTO sessions VALUES (?, ?, ?, ?)",
            [
                (account, f"watcher-{n:04}", ends, state.replace(b"lamp/event", b"lamp%d/event" % n))
                for n in range(count - 1)
            ],
        )
    db.close()

    def used() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        async with stored_house(tmp_path / "home", {}) as lamp:
            engine = lamp.binding._engine
            assert isinstance(engine, NativeEngine)
            assert len(engine.sessions) == count
            with_all = used()
            for session in list(engine.sessions):
                engine._server.lifetimes.end(session)
            assert len(lamp.binding._away) == 0
            assert (with_all - used()) / count <= 1_024
    finally:
        tracemalloc.stop()
