"""Requests that wait for a response: silence ends as 408, provisional answers extend it, late ones are nobody's."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from bindings.messaging_node.pending import Asked, PendingResponses
from bindings.messaging_node.sessions import Pending
from tests.bindings.messaging_node.support import NODE, client, session
from tests.support import skep
from things.envelopes import Envelope, read
from things.errors import Conflict, QueueFull

pytestmark = pytest.mark.anyio

BRIEF: dict[str, Any] = {"open": True, "response_s": 0.3}


async def test_silent_hyperty_s_request_ends_as_408_and_its_late_answer_is_dropped(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=BRIEF) as house, client(house, "a") as a, client(house, "b") as b:
        (address,) = await b.allocate()
        number = await a.send("read", address)
        asked = await b.next()

        answer = await a.next()
        assert (answer["id"], answer["type"], answer["from"]) == (number, "response", address)
        assert (answer["body"]["code"], answer["body"]["desc"]) == (408, "Response timeout!")
        await b.send("response", asked["from"], {"code": 200}, id=number, **{"from": address})
        await b.send("ping", f"{a.runtime}/sm", id=77)
        assert (await a.next())["type"] == "ping"


async def test_provisional_answers_extend_the_wait(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=BRIEF) as house, client(house, "a") as a, client(house, "b") as b:
        (address,) = await b.allocate()
        number = await a.send("execute", address)
        asked = await b.next()
        for step in range(4):
            with anyio.move_on_after(0.15):
                await a.socket.recv()
            await b.send("response", asked["from"], {"code": 100, "value": step}, id=number, **{"from": address})
            assert (await a.next())["body"] == {"code": 100, "value": step}
        await b.send("response", asked["from"], {"code": 200}, id=number, **{"from": address})
        assert (await a.next())["body"] == {"code": 200}


async def test_news_and_other_types_wait_for_nothing(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=BRIEF) as house, client(house, "a") as a, client(house, "b") as b:
        (mine,) = await a.allocate("comm")
        (address,) = await b.allocate()
        await b.ask("subscribe", f"{NODE}/sm", {"resources": [f"{mine}/changes"]})
        await a.send("update", f"{mine}/changes", {"value": 1}, **{"from": mine})
        await a.send("ping", address)
        number = await a.send("read", address)

        assert (await a.next())["id"] == number
        assert await a.nothing()


def asked(number: int, sender: str = "a", to: str = "b") -> Envelope:
    return read({"id": number, "type": "read", "from": sender, "to": to})


def answer(number: int, code: int = 200) -> Envelope:
    return read({"id": number, "type": "response", "from": "b", "to": "a", "body": {"code": code}})


class Table:
    """A table of pending responses and what timed out."""

    def __init__(self, **limits: Any) -> None:
        self.over: list[int | str] = []
        self._told = anyio.Event()
        given: dict[str, Any] = {"wait_s": 0.05, "most": 100, "most_of_session": 100, "compatible": False} | limits
        self.pending = PendingResponses(timed_out=self._timed_out, **given)

    def _timed_out(self, key: Pending, asked: Asked) -> None:
        self.over.append(key[2])
        self._told.set()

    async def wait(self, count: int) -> None:
        with anyio.fail_after(30):
            while len(self.over) < count:
                self._told = anyio.Event()
                await self._told.wait()


async def test_one_timer_ends_many_waits_in_their_order() -> None:
    table, one = Table(most=5_000, most_of_session=5_000), session()
    for number in range(3_000):
        table.pending.add(asked(number), one, expects=True)
    table.pending.answered(answer(7), by_many=False)

    await table.wait(2_999)

    assert table.over == [number for number in range(3_000) if number != 7]


async def test_over_the_bound_the_oldest_are_told_early_and_one_session_cannot_take_all() -> None:
    table, one, other = Table(wait_s=60, most=3, most_of_session=2), session(), session("bob")
    for number in (1, 2):
        table.pending.add(asked(number), one, expects=True)
    with pytest.raises(QueueFull):
        table.pending.add(asked(3), one, expects=True)
    for number in (4, 5):
        table.pending.add(asked(number, "o"), other, expects=True)

    assert table.over == [1]
    assert len(table.pending) == 3
    table.pending.close()


async def test_answer_after_the_time_is_known_as_late_for_a_while_and_then_forgotten() -> None:
    table, one = Table(), session()
    table.pending.add(asked(1), one, expects=True)
    await table.wait(1)

    late = table.pending.answered(answer(1), by_many=False)
    assert late is not None
    assert late.is_over
    with anyio.fail_after(30):
        while len(table.pending):  # noqa: ASYNC110 - a timer's effect
            await anyio.sleep(0.005)
    assert table.pending.answered(answer(1), by_many=False) is None
    assert not one.pending
    assert table.over == [1]


async def test_requests_to_many_end_quietly_once_any_answered() -> None:
    table, one = Table(), session()
    table.pending.add(asked(1), one, expects=True)
    table.pending.add(asked(2), one, expects=True)
    for _ in range(2):
        found = table.pending.answered(answer(1), by_many=True)
        assert found is not None
        assert not found.is_over

    await table.wait(1)

    assert table.over == [2]


async def test_two_accounts_cannot_wait_for_the_same_answer() -> None:
    table = Table(wait_s=60)
    table.pending.add(asked(1), session(), expects=True)
    with pytest.raises(Conflict):
        table.pending.add(asked(1), session("eve"), expects=True)
    table.pending.close()
