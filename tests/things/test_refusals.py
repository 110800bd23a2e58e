"""Refusals are logged the first time and counted from then on."""

import logging
from typing import Any

import pytest

from things.refusals import EVERY_S, MAX_CHARS, MAX_KNOWN, OTHERS, Refusals

log = logging.getLogger("tests.refusals")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock)


def written(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records]


def test_the_first_is_written_in_full_and_the_others_are_counted(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(1_000):
        refusals.note(log, "publish refused", who="pump", code="bad-address", topic=f"x/{number}")
    clock.now += EVERY_S
    refusals.note(log, "publish refused", who="pump", code="bad-address", topic="y")

    first, second = written(caplog)
    assert (first["who"], first["code"], first["topic"]) == ("pump", "bad-address", "x/0")
    assert (second["topic"], second["since_last_line"]) == ("y", 1_000)


def test_another_account_and_another_code_have_lines_of_their_own(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for who, code in [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")]:
        refusals.note(log, "refused", who=who, code=code)

    assert len(caplog.records) == 3


def test_what_was_counted_is_told_when_no_more_comes(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(5):
        refusals.note(log, "refused", who="a", code="x")
    refusals.tell()
    clock.now += EVERY_S
    refusals.tell()
    clock.now += EVERY_S
    refusals.tell()

    assert [line.get("since_last_line") for line in written(caplog)] == [None, 4]
    refusals.note(log, "refused", who="a", code="x", topic="again")
    assert written(caplog)[-1]["topic"] == "again"


def test_many_sources_are_counted_together_beyond_a_bound(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(3 * MAX_KNOWN):
        refusals.note(log, "connect refused", who=f"10.0.{number}", code="unauthenticated")

    assert len(caplog.records) == MAX_KNOWN + 1
    assert written(caplog)[-1]["who"] == OTHERS
    clock.now += EVERY_S
    refusals.note(log, "connect refused", who="new", code="unauthenticated")
    assert written(caplog)[-1]["who"] == "new"


def test_what_a_client_says_is_cut(refusals: Refusals, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    refusals.note(log, "publish refused", who="a", code="x", topic="t" * 10_000)

    assert len(written(caplog)[0]["topic"]) == MAX_CHARS


def test_nothing_is_kept_where_nothing_is_written(refusals: Refusals, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    refusals.note(log, "refused", who="a", code="x")
    caplog.set_level("INFO")
    refusals.note(log, "refused", who="a", code="x")

    assert len(caplog.records) == 1
