"""Searches in a process of their own: bounded in answer, time and number, and nobody else's business."""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from bindings.http.routes.search import MAX_QUERY_CHARS
from bindings.http.search_worker import MAX_ANSWER_BYTES
from bindings.http.searches import MAX_WAITING_EACH, Searches
from tests.bindings.http.support import LAMP, House, eventually, lamp_house
from tests.bindings.http.test_strangers import Dearest, dearest_callback
from things.errors import Invalid, QueueFull, TooLarge, Unavailable
from things.jsontext import encode

pytestmark = pytest.mark.anyio

ALL = "$[" + ",".join(["*"] * 900) + "]"
"""Every Thing nine hundred times."""


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


@asynccontextmanager
async def _searches(at_once: int = 1, **options: Any) -> AsyncIterator[Searches]:
    searches = Searches(at_once, **options)
    try:
        yield searches
    finally:
        await searches.close()


async def _things(*pages: Sequence[Any]) -> AsyncGenerator[Sequence[bytes], None]:
    for page in pages:
        yield [encode(thing) for thing in page]


async def test_what_is_found_in_all_pages_comes_in_order() -> None:
    pages = [[{"n": 1}, {"n": 2}], [], [{"n": 3}]]
    async with _searches() as searches:
        assert await searches.find("ann", "jsonpath", "$[*].n", _things(*pages)) == b"[1,2,3]"
        assert await searches.find("ann", "jsonpath", "$[-1].n", _things(*pages)) == b"[3]"
        assert await searches.find("ann", "xpath", "//thing[n='2']", _things(*pages)) == b'[{"n":2}]'
        assert await searches.find("ann", "jsonpath", "$[*].n", _things()) == b"[]"


@pytest.mark.parametrize(("language", "query"), [("jsonpath", "$["), ("xpath", "thing[")])
async def test_a_bad_query_is_refused_and_the_next_one_answered_by_the_same_process(language: str, query: str) -> None:
    async with _searches() as searches:
        with pytest.raises(Invalid):
            await searches.find("ann", language, query, _things([{"a": 1}]))
        (process,) = searches.idle

        assert await searches.find("ann", "jsonpath", "$[0].a", _things([{"a": 1}])) == b"[1]"
        assert searches.idle == [process]


async def test_an_answer_ends_where_it_passes_its_bound() -> None:
    text = "x" * (MAX_ANSWER_BYTES // 8 - 3)  # with its quotes and a comma an eighth, less what the brackets take
    async with _searches() as searches:
        found = await searches.find("ann", "jsonpath", "$[*]", _things([text] * 7, [text[:-2]]))
        assert len(found) == MAX_ANSWER_BYTES - 1
        with pytest.raises(TooLarge, match="answer is larger than 16777216 bytes"):
            await searches.find("ann", "jsonpath", "$[*]", _things([text] * 7, [text + "x"], [text] * 50))
        (process,) = searches.idle
        assert psutil.Process(process).memory_info().rss < 12 * MAX_ANSWER_BYTES

        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"


async def test_a_query_that_looks_at_too_much_is_stopped() -> None:
    async with _searches() as searches:
        with pytest.raises(Invalid, match="too much"):
            await searches.find("ann", "jsonpath", "$..[?count($..*) < 0]", _things([list(range(1_000))] * 100))

        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"


async def test_a_process_that_is_late_is_killed_and_another_serves() -> None:
    async with _searches(deadline_s=3.0) as searches:

        async def stopping() -> AsyncGenerator[Sequence[bytes], None]:
            yield [b"1"]
            os.kill(first, signal.SIGSTOP)

        await searches.find("ann", "jsonpath", "$[0]", _things([1]))
        (first,) = searches.idle
        with pytest.raises(Invalid, match="too much"):
            await searches.find("ann", "jsonpath", "$[0]", stopping())
        assert searches.idle == []

        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"
        await eventually(lambda: _is_gone(first))


async def test_a_process_that_dies_is_told_and_another_serves() -> None:
    async with _searches() as searches:

        async def murderous() -> AsyncGenerator[Sequence[bytes], None]:
            yield [b"1"]
            os.kill(first, signal.SIGKILL)
            for _ in range(1_000):
                yield [b'"%s"' % (b"x" * 10_000)]

        await searches.find("ann", "jsonpath", "$[0]", _things([1]))
        (first,) = searches.idle
        with pytest.raises(Unavailable):
            await searches.find("ann", "jsonpath", "$[*]", murderous())

        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"


async def test_what_things_cannot_be_had_is_told_as_it_is() -> None:
    async def refused() -> AsyncGenerator[Sequence[bytes], None]:
        yield [b"1"]
        raise QueueFull("ann", 1)

    async with _searches() as searches:
        with pytest.raises(QueueFull):
            await searches.find("ann", "jsonpath", "$[*]", refused())
        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"


async def test_no_process_runs_before_the_first_search_nor_when_none_came_for_a_while() -> None:
    async with _searches(idle_s=0.1) as searches:
        assert searches.idle == []
        await searches.find("ann", "jsonpath", "$[0]", _things([1]))
        (process,) = searches.idle

        await eventually(lambda: _is_gone(process))
        assert searches.idle == []
        assert await searches.find("ann", "jsonpath", "$[0]", _things([1])) == b"[1]"


async def test_one_account_does_not_take_every_turn() -> None:
    may_end = anyio.Event()
    order: list[str] = []

    async def slow() -> AsyncGenerator[Sequence[bytes], None]:
        yield [b"1"]
        await may_end.wait()

    async def ask(searches: Searches, account: str, things: AsyncGenerator[Sequence[bytes], None]) -> None:
        await searches.find(account, "jsonpath", "$[0]", things)
        order.append(account)

    async with _searches(at_once=2) as searches, anyio.create_task_group() as tasks:
        for _ in range(MAX_WAITING_EACH):
            tasks.start_soon(ask, searches, "ann", slow())
        await anyio.lowlevel.checkpoint()
        with pytest.raises(QueueFull):
            await ask(searches, "ann", _things([1]))

        with anyio.fail_after(30):
            await ask(searches, "bob", _things([1]))
        may_end.set()

    assert order == ["bob"] + ["ann"] * MAX_WAITING_EACH


async def test_a_search_that_multiplies_its_answer_ends_as_413_and_delays_nobody(
    lamps: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        for number in range(4):
            td = LAMP | {"description": "x" * 120_000}
            assert (await lights.put(f"/agent/things/big{number}", json=td)).status_code == 201
        await viewer.get("/search/jsonpath?query=$[0]")  # whatever is loaded with the first search
        before = psutil.Process().memory_info().rss

        tries: list[Dearest] = []
        for _ in range(3):  # the best of some: a processor that is shared does less in its time
            with dearest_callback(monkeypatch) as dearest:
                reply = await viewer.get("/search/jsonpath", params={"query": ALL})
            tries.append(dearest)
            assert (reply.status_code, reply.json()["code"]) == (413, "too-large")
            if dearest.seconds < 0.02:
                break

        assert min(one.seconds for one in tries) < 0.02, tries[-1].what
        assert psutil.Process().memory_info().rss - before < 2 * MAX_ANSWER_BYTES


async def test_searches_see_what_the_caller_may_see_and_refuse_what_is_no_query(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer, lamps.client() as nobody:
        found = await viewer.get("/search/jsonpath", params={"query": "$[?@.title == 'Lamp'].registration.created"})
        assert (found.status_code, len(found.json())) == (200, 1)
        for query in ("$ ", "$[01]", "$[?" + "!" * 1_900 + "@.a]", "$" + " " * MAX_QUERY_CHARS):
            assert (await viewer.get("/search/jsonpath", params={"query": query})).status_code == 400, query
        for query in ("thing[", "//[["):
            assert (await viewer.get("/search/xpath", params={"query": query})).status_code == 400, query
        assert (await nobody.get("/search/jsonpath?query=$")).status_code == 401


async def _is_gone(process: int) -> bool:
    return not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
