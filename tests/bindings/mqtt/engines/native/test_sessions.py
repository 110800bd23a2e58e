"""Sessions of the native engine: whose they are, take-over, what is kept, and what a restart keeps."""

import asyncio
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from bindings.mqtt.engines.native import SessionStore
from bindings.mqtt.engines.native.sessions import Session
from bindings.mqtt.engines.seam import (
    ACCEPTED,
    Closed,
    Flow,
    Grant,
    Limits,
    Link,
    Outcome,
    Publish,
    SubscribeOptions,
)
from runtime.clocks import wall_clock
from tests.bindings.mqtt.engines.native.peer import RecordingGate, ack, connect, props, publish, serving, subscribe
from things.errors import StorageDamaged

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


WEEK = b"\x11\x00\x09\x3a\x80"
"""Session expiry of a week, as a property."""


async def test_two_accounts_may_use_one_client_id_at_once() -> None:
    async with serving() as served, served.client() as alice, served.client() as bob:
        await alice.connect("same", user="alice")
        await bob.connect("same", user="bob")

        await alice.ping()
        await bob.ping()

        assert served.gate.events == ["opened alice/same", "opened bob/same"]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_wrong_password_with_a_victims_client_id_touches_nothing(clean: bool) -> None:
    async with serving() as served, served.client() as victim, served.client() as thief:
        await victim.connect("victim", clean=False)
        victim.send(subscribe("t"))
        await victim.expect(0x90)

        thief.send(connect("victim", password=b"wrong", clean=clean))
        await thief.expect(0x20, b"\0\5")
        await thief.closed()
        served.gate.publish(Publish(topic="t", payload=b"still here"))

        assert (await victim.publish_of())[1] == b"still here"
        assert served.gate.events == ["opened alice/victim", "subscribe t"]


async def test_the_live_session_keeps_its_sender_while_a_forger_is_being_judged() -> None:
    async with serving() as served, served.client() as mallory, served.client() as forger:
        await mallory.connect("c", user="mallory", clean=False)
        served.gate.admission.clear()
        forger.send(connect("c", user="admin", password=b"wrong", clean=False))
        await served.gate.until(lambda: len(served.gate.hellos) == 2)

        mallory.send(publish("t", b"", 1))
        await mallory.expect(0x40)
        served.gate.admission.set()
        await forger.expect(0x20, b"\0\5")

        assert served.gate.senders == ["mallory"]


@pytest.mark.parametrize("level", [4, 5])
async def test_a_second_connection_of_the_same_client_takes_over(level: int) -> None:
    async with serving() as served, served.client() as older, served.client() as newer:
        await older.connect(level=level, will=("w", b"", 0))
        await newer.connect(level=level)

        rest = await older.closed()

        assert rest == (b"" if level == 4 else b"\xe0\x01\x8e")
        assert served.gate.events == [
            "opened alice/c",
            "received w",
            "closed alice/c taken-over",
            "opened alice/c",
        ]
        await newer.ping()


async def test_a_refused_will_refuses_the_connect() -> None:
    async with serving() as served, served.client() as client:
        client.send(connect(will=("forbidden/topic", b"", 1)))

        await client.expect(0x20, b"\0\5")

        assert served.gate.events == []


async def test_a_client_that_leaves_while_it_is_judged_is_never_opened() -> None:
    async with serving() as served:
        served.gate.admission.clear()
        async with served.client() as client:
            client.send(connect())
            await served.gate.until(lambda: len(served.gate.hellos) == 1)
        await served.all_gone()
        served.gate.admission.set()
        await anyio.lowlevel.checkpoint()

        assert served.gate.events == []
        assert len(served.engine.sessions) == 0


@pytest.mark.parametrize("level", [4, 5])
async def test_a_persistent_session_gets_again_what_it_did_not_acknowledge(level: int) -> None:
    properties = props(WEEK) if level == 5 else b"\0"
    async with serving() as served:
        async with served.client() as client:
            assert await client.connect(level=level, clean=False, properties=properties)
            client.send(subscribe("t", qos=2, level=level))
            await client.expect(0x90)
            link = served.gate.links[0]
            for number in range(3):
                link.push(Publish(topic="t", payload=b"%d" % number, qos=1))
            link.push(Publish(topic="t", payload=b"two", qos=2))
            link.push(Publish(topic="t", payload=b"request", qos=1, flow=Flow.LEDGER))
            ids = [(await client.publish_of(level))[2] for _ in range(5)]
            client.send(ack(0x40, ids[1]), ack(0x50, ids[3]))
            await client.expect(0x62)
            await client.ping()
        await served.all_gone()

        async with served.client() as client:
            body = await client.connect(level=level, clean=False, properties=properties)
            assert body[0] == 1
            again = [await client.publish_of(level) for _ in range(2)]
            await client.expect(0x62, ids[3].to_bytes(2, "big"))
            client.send(ack(0x70, ids[3]))
            await client.ping()

        assert [(payload, packet_id, first & 8) for _, payload, packet_id, first in again] == [
            (b"0", ids[0], 8),
            (b"2", ids[2], 8),
        ]
        resumed = served.gate.events.index("opened alice/c resumed")
        assert served.gate.events[resumed - 1] == "subscribe t"


async def test_a_clean_start_ends_the_older_session() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe("t"))
            await client.expect(0x90)
        await served.all_gone()
        assert len(served.engine.sessions) == 1

        async with served.client() as client:
            assert (await client.connect(clean=True))[0] == 0

            assert "opened alice/c resumed" not in served.gate.events


async def test_a_session_ends_when_its_expiry_has_passed() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(level=5, clean=False, properties=props(b"\x11\0\0\0\1"))
        await served.all_gone()
        assert len(served.engine.sessions) == 1

        with anyio.fail_after(30):
            while len(served.engine.sessions):  # noqa: ASYNC110, a session ends without a word
                await asyncio.sleep(0.05)


async def test_an_expiry_over_the_limit_is_shortened_and_said() -> None:
    async with serving(Limits(max_session_expiry_s=60)) as served, served.client() as client:
        body = await client.connect(level=5, clean=False, properties=props(b"\x11\xff\xff\xff\xff"))

        assert b"\x11\0\0\0\x3c" in body


async def test_a_delayed_will_waits_and_a_reconnect_drops_it() -> None:
    options: dict[str, Any] = {
        "level": 5,
        "clean": False,
        "properties": props(WEEK),
        "will_properties": props(b"\x18\0\0\0\1"),
    }
    async with serving() as served:
        async with served.client() as client:
            await client.connect(will=("w", b"gone", 1), **options)
        await served.gate.until(lambda: "closed alice/c lost" in served.gate.events)
        async with served.client() as client:
            await client.connect(will=("w", b"gone", 1), **options)
            assert "received w" not in served.gate.events
        await served.gate.until(lambda: "received w" in served.gate.events)

        assert served.gate.events == [
            "opened alice/c",
            "closed alice/c lost",
            "opened alice/c resumed",
            "closed alice/c lost",
            "received w",
        ]


async def test_a_delayed_will_fires_at_once_when_a_clean_start_ends_its_session() -> None:
    async with serving() as served:
        async with served.client() as client:
            will_properties = props(b"\x18\0\0\x0e\x10")
            await client.connect(
                level=5, clean=False, properties=props(WEEK), will=("w", b"", 0), will_properties=will_properties
            )
        await served.gate.until(lambda: "closed alice/c lost" in served.gate.events)

        async with served.client() as client:
            await client.connect(level=5, clean=True)

            assert served.gate.events[-2:] == ["received w", "opened alice/c"]


async def test_sessions_of_an_account_are_bounded_and_the_oldest_left_behind_gives_way() -> None:
    async with serving(Limits(max_links_per_account=2)) as served:
        async with served.client() as first:
            await first.connect("first", clean=False)
        await served.gate.until(lambda: "closed alice/first lost" in served.gate.events)
        async with served.client() as second, served.client() as third, served.client() as fourth:
            await second.connect("second")
            await third.connect("third")
            fourth.send(connect("fourth", level=5))

            body = await fourth.expect(0x20)

            assert body[1] == 0x97
            assert len(served.engine.sessions) == 2


async def test_connections_over_the_bound_are_cut() -> None:
    async with serving(Limits(max_connections=1)) as served, served.client() as first:
        await first.connect()
        async with served.client() as second:
            second.send(connect("second"))

            assert await second.closed() == b""

        await first.ping()


async def test_a_persistent_session_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1), publish("once", b"", 2, 77))
        await client.expect(0x90)
        await client.expect(0x50, b"\0\x4d")
        served.gate.links[0].push(Publish(topic="t", payload=b"kept", qos=1, user_properties=[("a", "b")]))
        packet_id = (await client.publish_of())[2]
    gate = RecordingGate()

    async with serving(store=SessionStore(path, wall_clock), gate=gate) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 1
        assert await client.publish_of() == ("t", b"kept", packet_id, 0x3A)
        client.send(publish("once", b"", 2, 77, flags=8), ack(0x62, 77))
        await client.expect(0x50, b"\0\x4d")
        await client.expect(0x70, b"\0\x4d")

        assert gate.events == ["subscribe t", "opened alice/c resumed"]


async def test_a_session_that_ended_does_not_come_back_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served:
        async with served.client() as client:
            await client.connect(clean=False)
        await served.all_gone()
        async with served.client() as client:
            await client.connect(clean=True)

    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 0


async def test_a_delayed_will_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served:
        async with served.client() as client:
            await client.connect(
                level=5,
                clean=False,
                properties=props(WEEK),
                will=("w", b"gone", 1),
                will_properties=props(b"\x18\0\0\0\1"),
            )
        await served.gate.until(lambda: "closed alice/c lost" in served.gate.events)
    assert "received w" not in served.gate.events

    async with serving(store=SessionStore(path, wall_clock)) as served:
        await served.gate.until(lambda: "received w" in served.gate.events)

        assert served.gate.senders == ["alice"]


async def test_a_received_id_is_on_disk_before_pubrec_and_gone_before_pubcomp(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "sessions.db", wall_clock)
    async with serving(store=store) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(publish("t", b"", 2, 5))
        await client.expect(0x50)
        async with SessionStore(tmp_path / "sessions.db", wall_clock) as other:
            with_id = await asyncio.get_running_loop().run_in_executor(None, _received, tmp_path)
            assert with_id == [5]
            assert other is not store
        client.send(ack(0x62, 5))
        await client.expect(0x70)

        assert await asyncio.get_running_loop().run_in_executor(None, _received, tmp_path) == []


def _received(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "sessions.db") as db:
        return [row[0] for row in db.execute("SELECT packet_id FROM received")]


async def test_a_qos_2_commit_that_runs_across_a_take_over_is_routed_once() -> None:
    gate, waiting = RecordingGate(), list[asyncio.Future[Outcome]]()

    def answer(message: Publish) -> asyncio.Future[Outcome]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    gate.answer = answer
    async with serving(gate=gate) as served, served.client() as older, served.client() as newer:
        await older.connect(clean=False)
        older.send(publish("t", b"", 2, 5))
        await older.ping()
        await newer.connect(clean=False)
        newer.send(publish("t", b"", 2, 5, flags=8))
        await newer.ping()

        waiting[0].set_result(ACCEPTED)

        await newer.expect(0x50, b"\0\5")
        assert len(waiting) == 1


async def test_a_qos_2_publish_whose_commit_failed_is_routed_when_it_is_sent_again() -> None:
    gate, waiting = RecordingGate(), list[asyncio.Future[Outcome]]()

    def answer(message: Publish) -> asyncio.Future[Outcome]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    gate.answer = answer
    async with serving(gate=gate) as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(publish("t", b"", 2, 5))
            await client.ping()
            waiting[0].set_exception(OSError("disk"))
            assert await client.closed() == b""
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(publish("t", b"", 2, 5, flags=8))
            await client.ping()
            waiting[1].set_result(ACCEPTED)

            await client.expect(0x50, b"\0\5")


async def test_a_session_is_on_disk_before_the_engine_stops(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)
        served.gate.links[0].push(Publish(topic="t", payload=b"kept", qos=1))
        await client.publish_of()

        with anyio.fail_after(30):
            loaded: list[Session] = []
            while not loaded or not loaded[0].in_flight:  # as a runtime would find it after a crash
                await asyncio.sleep(0.05)
                async with SessionStore(path, wall_clock) as other:
                    loaded = await other.load()

        assert list(loaded[0].filters) == ["t"]
        assert [entry.message and entry.message.payload for entry in loaded[0].in_flight.values()] == [b"kept"]


async def test_time_goes_on_for_what_waits_while_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, week = tmp_path / "sessions.db", props(WEEK)
    async with serving(Limits(max_inflight=1), store=SessionStore(path, wall_clock)) as served:
        async with served.client() as client:
            await client.connect(level=5, clean=False, properties=week)
            client.send(subscribe("t", qos=1, level=5))
            await client.expect(0x90)
            for payload, expiry_s in ((b"in flight", None), (b"short", 100), (b"long", 100_000)):
                served.gate.links[0].push(Publish(topic="t", payload=payload, qos=1, expiry_s=expiry_s))
            assert (await client.publish_of(5))[1] == b"in flight"
        await served.gate.until(lambda: bool(served.gate.away_links))
    stopped = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: stopped + 1_000 * 10**9)

    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(level=5, clean=False, properties=week)
        assert (await client.publish_of(5))[1] == b"in flight"
        _, body = await client.read()

        assert body.endswith(b"long")
        left_s = int.from_bytes(body[body.index(b"\x02", 5) + 1 :][:4], "big")
        assert 98_990 <= left_s <= 99_000


async def test_the_end_of_the_engine_waits_for_its_last_write(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "sessions.db", wall_clock)
    async with serving(store=store) as served, served.client() as client:
        await client.connect(clean=False)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store._db.execute("SELECT 1")
    with sqlite3.connect(tmp_path / "sessions.db") as db:
        assert db.execute("SELECT client_id FROM sessions").fetchall() == [("c",)]


@pytest.mark.parametrize("content", [b"not a database" * 100, None], ids=["garbage", "a later schema"])
async def test_a_file_of_sessions_that_cannot_be_trusted_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sessions.db"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes(content)

    with pytest.RaisesGroup(StorageDamaged, allow_unwrapped=True, flatten_subgroups=True):
        async with serving(store=SessionStore(path, wall_clock)):
            pass


async def test_a_file_of_sessions_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with serving(store=SessionStore(tmp_path / "sessions.db", wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)

        assert {os.stat(each).st_mode & 0o777 for each in os.scandir(tmp_path)} == {0o600}


async def test_a_qos_2_publish_is_not_acknowledged_while_its_id_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served:
        with sqlite3.connect(path, isolation_level=None) as db:
            db.execute("DROP TABLE received")
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(publish("t", b"", 2, 5))
            assert await client.closed() == b""
        with sqlite3.connect(path, isolation_level=None) as db:
            db.execute(
                "CREATE TABLE received (account, client_id, packet_id, PRIMARY KEY (account, client_id, packet_id))"
            )
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(publish("t", b"", 2, 5, flags=8))

            await client.expect(0x50, b"\0\5")
            assert len(served.gate.messages) == 2


async def test_a_session_whose_account_is_gone_ends_with_its_connection() -> None:
    async with serving() as served:
        served.gate.keeps = False
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe("t", qos=1))
            await client.expect(0x90)
        await served.all_gone()

        async with served.client() as client:
            assert (await client.connect(clean=False))[0] == 0


async def test_a_gate_that_closes_what_stands_in_for_a_client_ends_the_session() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe("t", qos=1))
            await client.expect(0x90)
        await served.gate.until(lambda: bool(served.gate.away_links))

        served.gate.away_links[0].close(Closed.REFUSED)

        assert served.gate.away_links == []
        assert len(served.engine.sessions) == 0


@pytest.mark.parametrize(("reason", "present"), [(Closed.REFUSED, 0), (Closed.EXPIRED, 1)])
async def test_a_refused_link_takes_its_session_along_unless_only_its_credential_ran_out(
    tmp_path: Path, reason: Closed, present: int
) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1), publish("q", b"", 2, 7))
        await client.expect(0x90)
        await client.expect(0x50)

        served.gate.links[0].close(reason)

        assert len(served.engine.sessions) == len(served.gate.away_links) == present
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == present
        client.send(publish("q", b"", 2, 7))
        await client.expect(0x50)
        assert len(served.gate.messages) == 1 - present


async def test_a_publish_that_could_not_be_committed_leaves_the_session_and_what_it_asks_for_waits() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe("t", qos=1))
            await client.expect(0x90)
            broken: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            broken.set_exception(OSError("disk"))
            served.gate.answer = lambda _: broken
            client.send(publish("t", b"", 1))
            assert await client.closed() == b""

        assert len(served.gate.away_links) == 1
        async with served.client() as client:
            assert (await client.connect(clean=False))[0] == 1


async def test_a_link_closed_while_its_filters_come_back_is_opened_and_closed_once_and_keeps_them() -> None:
    class Closing(RecordingGate):
        def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
            if self.links:
                link.close(Closed.REFUSED)
                return 0x87
            return super().subscribe(link, topic_filter, options)

    async with serving(gate=Closing()) as served:
        async with served.client() as client:
            await client.connect(clean=False)
            served.gate.links.clear()
            client.send(subscribe("t", qos=1))
            await client.expect(0x90)
        await served.gate.until(lambda: bool(served.gate.away_links))
        served.gate.links.append(served.gate.away_links[0])
        served.gate.events.clear()

        async with served.client() as client:
            await client.connect(clean=False)
            await served.gate.until(lambda: len(served.gate.events) == 2)

        assert served.gate.events == ["opened alice/c resumed", "closed alice/c refused"]
        (session,) = served.engine.sessions
        assert list(session.filters) == ["t"]
