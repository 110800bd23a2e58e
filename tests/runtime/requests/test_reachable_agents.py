"""Sessions that speak for single Things of an account, beside those that take requests for all."""

from pathlib import Path

import pytest

from tests.runtime.doubles import RecordingSession, agent_principal
from tests.runtime.harness import House, house
from things.delivery import State
from things.errors import NotConnected

pytestmark = pytest.mark.anyio


def speaker(h: House, thing_id: str) -> RecordingSession:
    session = h.session(agent_principal("agent"))
    h.runtime.sessions.take_requests(session, thing_id)
    return session


def asked(session: RecordingSession) -> list[str]:
    return [request.thing for request in session.requests]


async def test_requests_go_to_whoever_speaks_for_the_thing_and_others_to_who_takes_all(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump, tank, door = [await h.publish_td("agent", name) for name in ("pump", "tank", "door")]
        for_pump, for_all, for_tank = speaker(h, pump), h.agent("agent"), speaker(h, tank)

        for thing in (pump, tank, door):
            await h.invoke(thing, "setSpeed", 3)
            await h.call(thing, "setSpeed", 4)
        await h.until(lambda: len(for_pump.requests) + len(for_all.requests) + len(for_tank.requests) == 6)

        assert [asked(one) for one in (for_pump, for_tank, for_all)] == [
            [name] * 2 for name in ("pump", "tank", "door")
        ]


async def test_thing_nobody_speaks_for_waits_while_others_of_its_account_are_served(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump, tank = await h.publish_td("agent", "pump"), await h.publish_td("agent", "tank")
        waiting = await h.invoke(tank, "setSpeed", 1)
        for_pump = speaker(h, pump)
        with pytest.raises(NotConnected):
            await h.call(tank, "setSpeed", 1)
        await h.invoke(pump, "setSpeed", 2)
        await h.until(lambda: for_pump.requests)
        row = await h.twin.ledger.get(waiting.request_id)
        assert (asked(for_pump), row.state if row else None) == (["pump"], State.PENDING)

        for_tank = speaker(h, tank)
        await h.until(lambda: for_tank.requests)

        assert (asked(for_pump), asked(for_tank)) == (["pump"], ["tank"])


async def test_unanswered_requests_go_to_the_older_speaker_and_then_to_who_takes_all(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        for_all, older, newer = h.agent("agent"), speaker(h, pump), speaker(h, pump)
        await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: newer.requests)

        newer.close("lost")
        await h.until(lambda: older.requests)
        h.runtime.sessions.stop_requests(older, pump)
        await h.until(lambda: for_all.requests)

        assert [len(one.requests) for one in (newer, older, for_all)] == [1, 1, 1]


async def test_agent_is_online_while_any_session_speaks_for_any_of_its_things(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump, tank = await h.publish_td("agent", "pump"), await h.publish_td("agent", "tank")

        def is_online() -> object:
            return h.runtime.presence.properties(pump)["online"]

        assert is_online() is False
        session = speaker(h, pump)
        h.runtime.sessions.take_requests(session, tank)
        call = await h.call(tank, "setSpeed", 1)
        assert is_online() is True
        h.runtime.sessions.stop_requests(session, pump)
        assert is_online() is True
        assert await h.runtime.final(call.request_id, 0.05) is None  # a call under way is not lost with another Thing
        h.runtime.sessions.stop_requests(session, tank)
        assert is_online() is False
        ended = await h.runtime.final(call.request_id, 2)
        assert ended is not None
        assert ended.state is State.FAILED
        h.runtime.sessions.take_requests(session, pump)
        assert is_online() is True
        session.close("lost")
        assert is_online() is False
