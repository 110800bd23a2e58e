"""Every case of the table through every door: the same rows, the same code, the same sentence, the same document."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.doors.contract import Accepted, Refused
from tests.doors.doors import DOORS
from tests.doors.page import is_as_said, page
from tests.doors.table import TABLE, Case, event, invoke
from tests.doors.world import House, Outcome, World, opened, world

pytestmark = pytest.mark.anyio

CASES = [case for cases in TABLE.values() for case in cases]
PAGE = Path(__file__).parents[2] / "docs" / "doors.md"
DOCUMENT = ("type", "title", "status", "code", "errors", "validationErrors", "stored", "rejected")
"""Members of a problem document that every door tells alike, as far as it tells them; and so `detail`."""
REASONS = {
    "forbidden": 0x87,
    "bad-address": 0x90,
    "unknown-thing": 0x90,
    "unknown-name": 0x90,
    "unknown-request": 0x90,
    "not-found": 0x90,
    "invalid": 0x99,
    "malformed": 0x99,
    "too-deep": 0x99,
    "td-invalid": 0x99,
    "too-large": 0x99,
    "conflict": 0x83,
    "illegal-status": 0x83,
    "not-connected": 0x83,
}
"""Reason codes of MQTT 5 for the codes of the table."""
REFUSES_OVER_RATE = {"HTTP", "web thing protocol"}
"""The other doors read who is over its rate more slowly."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("doors")) as found:
        yield found


@pytest.fixture(scope="module")
async def over_rate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    limits = {"messages_per_second": 20.0, "message_burst": 20.0}
    async with opened(tmp_path_factory.mktemp("doors") / "home", limits=limits) as house:
        yield house


def test_every_case_has_a_title_of_its_own() -> None:
    assert len({case.title for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
async def test_every_door_answers_alike(doors: World, case: Case) -> None:
    outcomes = {name: found for name, found in (await doors.outcomes(case)).items() if found.reason is None}

    assert not {name: _shown(found) for name, found in outcomes.items() if not is_as_said(case, found)}
    if case.code is not None:
        _agree(case, {name: found.answer.said for name, found in outcomes.items() if isinstance(found.answer, Refused)})


def _shown(found: Outcome) -> tuple[str | None, list[Any], Any]:
    answer = found.answer
    if isinstance(answer, Refused):
        return answer.code, list(found.left), answer.said.get("detail")
    assert isinstance(answer, Accepted)
    return None, list(found.left), answer.output


def _agree(case: Case, documents: Mapping[str, Mapping[str, Any]]) -> None:
    for member in (*DOCUMENT, "detail") if case.words else DOCUMENT:
        said = {name: document[member] for name, document in documents.items() if member in document}
        first = next(iter(said.values()), None)
        assert {name: each for name, each in said.items() if each != first} == {}, (member, first)
    if case.pointers is not None:
        found = [document["errors"] for document in documents.values() if "errors" in document]
        assert found
        assert [each["pointer"] for each in found[0]] == list(case.pointers)
    for name, document in documents.items():
        assert document.get("reason") in (None, REASONS[str(case.code)]), name


async def test_a_subscriber_of_everything_stays_through_all_of_them(doors: World) -> None:
    for case in CASES:
        await doors.outcomes(case)

    for engine, house in doors.houses.items():
        answer = await doors.references[engine].send(event('"last"'))
        assert isinstance(answer, Accepted)
        for watcher in house.watchers:
            while (await watcher.receive_on("things/pumps/pump-1/event/alarm")).value != "last":
                pass
            assert not watcher.lost.is_set()


async def test_the_page_says_what_was_found(doors: World) -> None:
    for case in CASES:
        await doors.outcomes(case)

    text = page(doors.found, list(doors.doors))

    if os.environ.get("SKEP_DOORS_PAGE") == "write":
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text


@pytest.mark.parametrize("door", ["messaging node", "MQTT 3.1.1", "MQTT 5", "HTTP", "HTTP batch", "web thing protocol"])
async def test_who_is_over_its_rate_is_refused_or_read_more_slowly(over_rate: House, door: str) -> None:
    stores, runtime = over_rate.skep.running.stores, over_rate.skep.running.runtime
    async with DOORS[door](over_rate.listeners) as opened_door:
        for sent in (event(), invoke()):
            case = Case("over its rate", sent)
            sender = stores.authenticator.verify(over_rate.listeners.accounts[sent.by].token)
            await over_rate.outcome(opened_door, case, opened_door)
            while runtime.owed_s(sender) < 0.5:
                runtime.charge(sender, 5)

            outcome = await over_rate.outcome(opened_door, case, opened_door)

            if outcome.reason is None and door in REFUSES_OVER_RATE:
                assert isinstance(outcome.answer, Refused)
                assert (outcome.answer.code, outcome.left) == ("rate-limited", [])
            elif outcome.reason is None:
                assert (outcome.answer, len(outcome.left)) == (Accepted(), 1)
