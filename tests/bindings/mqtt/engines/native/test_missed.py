"""What a kept session has missed is a row of history: after it the engine asks for pieces until it has caught up."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bindings.mqtt.engines.native import SessionStore, connection, reading, turns
from bindings.mqtt.engines.native.session_state import state_of
from bindings.mqtt.engines.native.sessions import Session
from bindings.mqtt.engines.native.store import PUBLISHED_ROWS
from bindings.mqtt.engines.seam import Closed, Flow, Limits, Publish
from runtime.clocks import wall_clock
from tests.bindings.mqtt.engines.native.peer import (
    Client,
    RecordingGate,
    Served,
    ack,
    connect,
    serving,
    subscribe,
    unsubscribe,
)

pytestmark = pytest.mark.anyio


async def left(served: Served, *, qos: int = 1) -> None:
    """A client with a kept session has subscribed `t` and is gone."""
    async with served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=qos))
        await client.expect(0x90)
    await served.gate.until(lambda: bool(served.gate.away_links))


async def given(client: Client, count: int, *, is_acked: bool = True) -> list[bytes]:
    """The next publishes, each acknowledged."""
    found = []
    for _ in range(count):
        _, payload, packet_id, _ = await client.publish_of()
        found.append(payload)
        if is_acked:
            client.send(ack(0x40, packet_id))
    return found


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def only(served: Served) -> Session:
    (session,) = served.engine.sessions
    return session


@pytest.mark.parametrize("count", [1, 16, 17, 1_500])
async def test_a_client_that_comes_back_is_given_all_in_order_and_then_what_is_pushed(count: int) -> None:
    async with serving() as served:
        await left(served)
        served.gate.tell(*numbered(count))

        async with served.client() as client:
            assert (await client.connect(clean=False))[0] == 1
            assert await given(client, count) == numbered(count)
            served.gate.tell(b"live")
            assert await given(client, 1) == [b"live"]
            await client.ping()

        assert only(served).position(served.gate.published_row) == count + 1


async def test_nothing_is_read_for_a_client_that_has_missed_nothing_or_asked_at_qos_0() -> None:
    async with serving() as served:
        await left(served)
        async with served.client() as client:
            await client.connect(clean=False)
            await client.ping()
            client.send(subscribe("t", qos=0))
            await client.expect(0x90)
        await served.gate.until(lambda: bool(served.gate.away_links))
        served.gate.tell(b"1")
        async with served.client() as client:
            await client.connect(clean=False)
            await client.ping()

        assert served.gate.asked == []


async def test_what_is_told_while_history_is_read_comes_once_and_behind_it() -> None:
    async with serving() as served:
        await left(served)
        served.gate.tell(*numbered(3))
        served.gate.reading.clear()
        async with served.client() as client:
            await client.connect(clean=False)
            await served.gate.until(lambda: bool(served.gate.asked))

            served.gate.tell(*numbered(3, 3))
            served.gate.publish(Publish(topic="t", payload=b"has no row", qos=1, flow=Flow.PROPERTY))
            assert await given(client, 1) == [b"has no row"]
            served.gate.reading.set()

            assert await given(client, 6) == numbered(6)
            served.gate.tell(b"live")
            assert await given(client, 1) == [b"live"]


async def test_what_was_told_while_history_was_read_is_judged_when_it_is_sent() -> None:
    async with serving(Limits(max_inflight=1)) as served:
        await left(served)
        served.gate.tell(*numbered(2))
        served.gate.reading.clear()
        async with served.client() as client:
            await client.connect(clean=False)
            await served.gate.until(lambda: bool(served.gate.asked))
            served.gate.tell(*numbered(3, 2))
            served.gate.reading.set()
            assert await given(client, 2) == numbered(2)

            served.gate.hidden, served.gate.rights = {b"3"}, 1

            assert await given(client, 2) == [b"2", b"4"]
            served.gate.tell(b"live")
            assert await given(client, 1) == [b"live"]


async def test_a_client_that_leaves_while_it_catches_up_goes_on_where_it_was() -> None:
    async with serving(Limits(max_inflight=2)) as served:
        await left(served)
        served.gate.tell(*numbered(6))
        async with served.client() as client:
            await client.connect(clean=False)
            assert await given(client, 1) == [b"0"]
            assert await given(client, 2, is_acked=False) == [b"1", b"2"]
        await served.gate.until(lambda: bool(served.gate.away_links))

        async with served.client() as client:
            await client.connect(clean=False)

            assert await given(client, 5) == numbered(5, 1)


async def test_a_slow_client_with_a_kept_session_loses_nothing_to_a_full_queue() -> None:
    async with serving(Limits(max_inflight=2, max_queued=3)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)

        served.gate.tell(*numbered(50))
        assert only(served).position(served.gate.published_row) == 2, "two are in flight"

        assert await given(client, 50) == numbered(50)
        assert served.gate.drops == {}
        served.gate.tell(b"live")
        assert await given(client, 1) == [b"live"]


async def test_a_slow_client_without_a_kept_session_loses_the_oldest() -> None:
    async with serving(Limits(max_inflight=1, max_queued=1)) as served, served.client() as client:
        await client.connect(clean=True)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)

        served.gate.tell(*numbered(4))

        assert await given(client, 2) == [b"0", b"3"]
        assert served.gate.drops == {("event", "queue-full"): 2}


async def test_filters_begin_where_they_were_asked_for_and_end_where_they_were_taken_back() -> None:
    async with serving() as served:
        served.gate.tell(b"before")
        await left(served)
        (filters,) = [each.filters for each in served.engine.sessions]
        assert filters["t"].since_row == 1
        async with served.client() as client:
            served.gate.tell(b"missed")
            await client.connect(clean=False)
            assert await given(client, 1) == [b"missed"]
            client.send(subscribe("t", qos=1), subscribe("u", qos=1, packet_id=2))
            await client.expect(0x90)
            await client.expect(0x90)
            assert (filters["t"].since_row, filters["u"].since_row) == (1, 2), "it was asked for again"
            client.send(unsubscribe("t"))
            await client.expect(0xB0)
        await served.gate.until(lambda: bool(served.gate.away_links))
        served.gate.tell(b"nobody's")

        async with served.client() as client:
            await client.connect(clean=False)
            await client.ping()
            served.gate.tell(b"u", topic="u")
            assert await given(client, 1) == [b"u"]


def _stop(path: Path, copy: Path) -> None:
    """The file as a kill leaves it now."""
    for each in path.parent.glob(f"{path.name}*"):
        (copy.parent / each.name.replace(path.name, copy.name)).write_bytes(each.read_bytes())


async def saved(served: Served, path: Path, is_saved: Callable[[Session], bool]) -> None:
    """Return when the engine has written all that changed."""
    file = served.engine._store
    assert file is not None
    file.save(served.engine.sessions, served.gate.published_row)
    assert is_saved(only(served))
    if file._writing is not None:
        await file._writing


async def test_a_killed_runtime_gives_again_what_was_not_confirmed_when_it_saved_last(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "killed.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)
        served.gate.tell(*numbered(3))
        assert await given(client, 3) == numbered(3)
        await client.ping()
        await saved(served, path, lambda session: not session.dirty)
        served.gate.tell(*numbered(3, 3))
        _stop(path, copy)
        history, published_row = served.gate.history, served.gate.published_row

    gate = RecordingGate()
    gate.history, gate.published_row = history, published_row
    async with serving(gate=gate, store=SessionStore(copy, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 1
        assert await given(client, 3) == numbered(3, 3)
        await client.ping()


async def test_sessions_that_had_nothing_to_save_do_not_read_old_rows_after_a_kill(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "killed.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)
        await saved(served, path, lambda session: not session.dirty)
        served.gate.tell(*[b""] * PUBLISHED_ROWS, topic="other")
        await saved(served, path, lambda session: not session.dirty)
        _stop(path, copy)
        history, published_row = served.gate.history, served.gate.published_row

    gate = RecordingGate()
    gate.history, gate.published_row = history, published_row
    async with serving(gate=gate, store=SessionStore(copy, wall_clock)) as served:
        assert only(served).cursor == PUBLISHED_ROWS
        await saved(served, copy, lambda session: not session.dirty)
        gate.tell(b"missed", *[b""] * PUBLISHED_ROWS)
        await saved(served, copy, lambda session: not session.dirty)
        _stop(copy, tmp_path / "again.db")
    again = RecordingGate()
    again.history, again.published_row = gate.history, gate.published_row
    async with serving(gate=again, store=SessionStore(tmp_path / "again.db", wall_clock)) as served:
        assert only(served).cursor == PUBLISHED_ROWS, "what others are told says nothing about one that is away"


async def test_a_history_that_was_lost_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    gate = RecordingGate()
    gate.published_row = 1_000
    async with serving(gate=gate, store=SessionStore(path, wall_clock)) as served:
        await left(served)

    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 1
        served.gate.tell(b"1")
        assert await given(client, 1) == [b"1"]


async def test_a_filter_is_on_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "killed.db"
    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("t", qos=1))
        await client.expect(0x90)
        _stop(path, copy)
        served.gate.tell(b"0")
        history, published_row = served.gate.history, served.gate.published_row

    gate = RecordingGate()
    gate.history, gate.published_row = history, published_row
    async with serving(gate=gate, store=SessionStore(copy, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 1
        assert await given(client, 1) == [b"0"]


async def reopened(path: Path) -> dict[str, int]:
    """The filters of the only session in a file, and their QoS."""
    async with serving(store=SessionStore(path, wall_clock)) as served:
        return {text: options.qos for text, options in only(served).filters.items()}


async def test_a_filter_of_a_session_that_is_on_disk_is_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, states = tmp_path / "sessions.db", list[str]()

    def counted(session: Session, *given: Any) -> dict[str, Any]:
        states.append(session.key[1])
        return state_of(session, *given)

    monkeypatch.setattr("bindings.mqtt.engines.native.store.state_of", counted)
    async with serving(store=SessionStore(path, wall_clock), clock=lambda: 0.0) as served, served.client() as client:
        await client.connect(clean=False)
        client.send(subscribe("first", qos=1))
        await client.expect(0x90)
        assert states == ["c"]
        for number in range(20):
            client.send(subscribe(f"t{number}", qos=1))
            await client.expect(0x90)
        assert states == ["c"], "and not once for each"
        client.send(subscribe("t1", qos=0), subscribe("u", qos=1), unsubscribe("u"))
        assert sorted([(await client.read())[0] for _ in range(3)]) == [0x90, 0x90, 0xB0]
        _stop(path, tmp_path / "killed.db")
        client.send(unsubscribe("first", "t0"))
        await client.expect(0xB0)
        await saved(served, path, lambda session: not session.dirty)
        _stop(path, tmp_path / "later.db")

    asked = {f"t{number}": int(number != 1) for number in range(20)}
    assert await reopened(tmp_path / "killed.db") == {"first": 1, **asked}
    assert await reopened(tmp_path / "later.db") == {text: qos for text, qos in asked.items() if text != "t0"}


async def test_filters_that_cannot_be_written_are_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store=SessionStore(tmp_path / "sessions.db", wall_clock)) as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe("t", qos=1))
            await client.expect(0x90)

            def full(*_: object) -> None:
                raise sqlite3.OperationalError("database or disk is full")

            with monkeypatch.context() as broken:
                broken.setattr(served.engine._store, "_write", full)
                client.send(subscribe("u", qos=1))
                assert await client.closed() == b""
        async with served.client() as client:
            assert (await client.connect(clean=False))[0] == 1
            client.send(subscribe("u", qos=1))
            await client.expect(0x90)


async def test_a_file_of_the_version_before_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with serving(store=SessionStore(path, wall_clock)) as served:
        await left(served)
    with sqlite3.connect(path) as db:
        db.executescript("DROP TABLE asked; PRAGMA user_version = 2;")
    db.close()

    async with serving(store=SessionStore(path, wall_clock)) as served, served.client() as client:
        assert (await client.connect(clean=False))[0] == 1
        assert list(only(served).filters) == ["t"]
        client.send(subscribe("u", qos=1))
        await client.expect(0x90)


def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLICE_S", 0.0)
    monkeypatch.setattr(reading, "SLICE_STEPS", 1)
    monkeypatch.setattr(turns, "TURN_S", 1e-9)


async def test_many_filters_stand_again_in_several_turns_and_nothing_is_lost_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_step_a_turn(monkeypatch)
    names = [f"t{number}" for number in range(50)]
    async with serving() as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe(*names, qos=1))
            await client.expect(0x90)
        await served.gate.until(lambda: bool(served.gate.away_links))
        served.gate.events.clear()
        async with served.client() as client:
            client.send(connect(clean=False), b"\xc0\0")
            await served.gate.until(lambda: "subscribe t20" in served.gate.events)
            assert "opened alice/c resumed" not in served.gate.events
            assert "subscribe t49" not in served.gate.events
            for name in names:
                served.gate.tell(name.encode(), topic=name)
            await client.expect(0x20)
            await client.expect(0xD0)

            assert sorted(await given(client, 50)) == sorted(name.encode() for name in names)
            assert served.gate.events[-1] == "opened alice/c resumed"
            served.gate.tell(b"live", topic="t49")
            assert await given(client, 1) == [b"live"]


async def test_a_link_that_is_taken_over_while_its_filters_come_to_stand_was_opened_and_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_step_a_turn(monkeypatch)
    async with serving() as served:
        async with served.client() as client:
            await client.connect(clean=False)
            client.send(subscribe(*[f"t{number}" for number in range(50)], qos=1))
            await client.expect(0x90)
        await served.gate.until(lambda: bool(served.gate.away_links))
        served.gate.events.clear()
        async with served.client() as client:
            client.send(connect(clean=False))
            await served.gate.until(lambda: "subscribe t2" in served.gate.events)
            (link,) = served.gate.filters
            link.close(Closed.TAKEN_OVER)
            ends = [event for event in served.gate.events if not event.startswith("subscribe")]

            assert ends == ["opened alice/c resumed", "closed alice/c taken-over"]
            assert await client.closed()
