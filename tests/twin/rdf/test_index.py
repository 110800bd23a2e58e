"""The index process from the runtime's side: made when asked, followed, ended, and never anybody's memory of rights."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.twin.conftest import Clock
from tests.twin.doubles import All
from things.errors import Invalid, QueueFull
from things.identity import AccountType, Principal
from things.td import ThingDescription
from twin.rdf.index import MAX_WAITING_EACH, RdfIndex
from twin.store import Twin, open_twin

pytestmark = pytest.mark.anyio

ANN = Principal(account="ann", type=AccountType.CONSUMER, role="viewer")
NAMES = "SELECT ?name { ?one <https://www.w3.org/2019/wot/td#name> ?name } ORDER BY ?name"
DAY_US = 86_400_000_000


def td(**properties: dict[str, Any]) -> ThingDescription:
    return ThingDescription.of(
        {"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "properties": properties}, agent=True
    )


@asynccontextmanager
async def indexed(twin: Twin, rights: All, **options: Any) -> AsyncIterator[RdfIndex]:
    index = RdfIndex(twin.directory, rights, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(index.serve)
        yield index
        tasks.cancel_scope.cancel()


@pytest.fixture
async def twin(tmp_path: Path, clock: Clock) -> AsyncIterator[Twin]:
    async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as opened:
        await opened.directory.put("dtw:a:lamp", td(level={}, secret={}), agent="a")
        await opened.directory.put("dtw:a:desk", td(height={}), agent="a")
        yield opened


async def names(index: RdfIndex) -> list[str]:
    answer = await index.ask(ANN, NAMES, ["text/csv"])
    return answer.text.decode().split()[1:]


async def test_there_is_no_process_before_the_first_query_and_none_after_a_while(twin: Twin) -> None:
    async with indexed(twin, All(), idle_s=0.05) as index:
        assert index.pid is None
        assert await names(index) == ["height", "level", "secret"]
        with anyio.fail_after(10):
            while index.pid is not None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert await names(index) == ["height", "level", "secret"]


async def test_rights_that_change_count_from_the_next_query_on(twin: Twin) -> None:
    rights = All()
    async with indexed(twin, rights) as index:
        assert await names(index) == ["height", "level", "secret"]

        rights.hidden, rights.version = ("secret", "dtw:a:desk"), 1
        assert await names(index) == ["level"]

        rights.hidden, rights.version = (), 2
        assert await names(index) == ["height", "level", "secret"]


async def test_conditional_rights_are_asked_each_time(twin: Twin) -> None:
    rights = All()
    rights.is_conditional = True
    async with indexed(twin, rights) as index:
        await names(index)

        rights.hidden = ("dtw:a:lamp",)

        assert await names(index) == ["height"]


async def test_an_expired_registration_is_not_found_before_it_is_purged(twin: Twin, clock: Clock) -> None:
    async with indexed(twin, All()) as index:
        await twin.directory.put("urn:gate", td(opening={}), agent=None, expires=clock.now + DAY_US)
        assert "opening" in await names(index)

        clock.now += 2 * DAY_US

        assert "opening" not in await names(index)
        await twin.directory.put("urn:gate", td(opening={}), agent=None)
        assert "opening" in await names(index)


async def test_one_account_waits_for_itself_and_is_refused_over_the_bound(twin: Twin) -> None:
    async with indexed(twin, All()) as index:
        refused: list[str] = []

        async def ask() -> None:
            try:
                await index.ask(ANN, "ASK {}")
            except QueueFull as error:
                refused.append(error.code)

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_WAITING_EACH + 3):
                tasks.start_soon(ask)

        assert refused == ["queue-full"] * 3


async def test_a_cancelled_question_leaves_an_index_that_answers(twin: Twin) -> None:
    async with indexed(twin, All()) as index:
        with anyio.move_on_after(0.001):
            await index.ask(ANN, "ASK {}")

        answer = await index.ask(ANN, "ASK {}")

        assert json.loads(answer.text) == {"head": {}, "boolean": True}


async def test_what_is_no_query_is_refused_by_its_own_words(twin: Twin) -> None:
    async with indexed(twin, All()) as index:
        with pytest.raises(Invalid, match="not a SPARQL query"):
            await index.ask(ANN, "SELECT nothing")
