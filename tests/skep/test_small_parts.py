"""Outbox, back-off, patterns, moments, error classes: the SDK's small parts."""

import errno

import pytest

from skep.backoff import Backoff
from skep.cli.failures import exit_code, told
from skep.cli.moments import moment
from skep.cli.output import cell
from skep.cli.plain import plain
from skep.handlers import Report
from skep.memory import RequestMemory
from skep.outbox import ReadingOutbox, Signal
from skep.patterns import ChangePattern
from things.delivery import State
from things.errors import BadAddress, Invalid, SkepError, UnknownThing, error_named

NOW = 1_767_225_600_000_000


def an_outbox(max_items: int = 10, max_bytes: int = 1_000) -> ReadingOutbox[str]:
    return ReadingOutbox(Signal(), max_items=max_items, max_bytes=max_bytes, size=len)


def test_outbox_gives_back_what_was_under_way_in_its_old_order() -> None:
    outbox = an_outbox()
    for text in "abcde":
        outbox.put(text)

    first = outbox.take(2, 100)
    outbox.take(1, 100)
    outbox.confirm([number for number, _ in first])
    outbox.recall()

    assert [item for _, item in outbox.take(10, 100)] == ["c", "d", "e"]


def test_code_that_several_classes_share_is_raised_as_the_one_that_brought_it() -> None:
    assert type(error_named("invalid", "no")) is Invalid
    assert type(error_named("unknown-thing", "no")) is UnknownThing


def test_outbox_takes_at_least_one_item_and_no_more_than_fit() -> None:
    outbox = an_outbox()
    outbox.put("x" * 50)
    outbox.put("y" * 50)

    assert len(outbox.take(10, 20)) == 1
    assert len(outbox.take(10, 200)) == 1
    assert outbox.take(10, 200) == []


@pytest.mark.parametrize(("max_items", "max_bytes"), [(3, 1_000), (10, 30)])
def test_full_outbox_drops_its_oldest_waiting_item(max_items: int, max_bytes: int) -> None:
    outbox = an_outbox(max_items, max_bytes)
    for letter in "abcd":
        outbox.put(letter * 10)

    assert outbox.dropped == 1
    assert [item[0] for _, item in outbox.take(10, 1_000)] == ["b", "c", "d"]


def test_back_off_doubles_to_its_bound_and_begins_anew() -> None:
    backoff = Backoff(1.0, 4.0, seed=1)

    delays = [backoff.delay_s() for _ in range(5)]
    backoff.reset()

    assert all(
        low <= delay <= high
        for delay, (low, high) in zip(delays, [(0.5, 1), (1, 2), (2, 4), (2, 4), (2, 4)], strict=True)
    )
    assert backoff.delay_s() <= 1.0


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("dtw:*", []),
        ("dtw:pumps:*", [("agent", "pumps")]),
        ("dtw:pumps:pump-1", [("agent", "pumps"), ("thing", "pump-1")]),
        ("dtw:pumps:pump-1/flow", [("agent", "pumps"), ("thing", "pump-1"), ("name", "flow")]),
        ("pumps/pump-1/flow", [("agent", "pumps"), ("thing", "pump-1"), ("name", "flow")]),
        ("dtw:pumps:urn:x/temp*", [("agent", "pumps"), ("thing", "urn:x")]),
    ],
)
def test_patterns_ask_for_whole_levels(text: str, query: list[tuple[str, str]]) -> None:
    assert ChangePattern.parse(text).query() == query


def test_patterns_sift_inside_levels() -> None:
    pattern = ChangePattern.parse("dtw:pumps:pump-*/temp*", kind="property")

    assert pattern.matches("dtw:pumps:pump-1", "property", "temperature")
    assert not pattern.matches("dtw:pumps:valve-1", "property", "temperature")
    assert not pattern.matches("dtw:pumps:pump-1", "event", "temperature")


@pytest.mark.parametrize("text", ["", "dtw:", "dtw:a:b/c/d"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        ChangePattern.parse(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", NOW),
        ("10m", NOW - 600_000_000),
        ("10 minutes ago", NOW - 600_000_000),
        ("1 hour ago", NOW - 3_600_000_000),
        ("2d", NOW - 172_800_000_000),
        ("2026-01-01T00:00:00Z", NOW),
        ("2026-01-01", NOW),
        ("2026-01-01 00:00", NOW),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, at: int) -> None:
    assert moment(text, now=NOW) == at


@pytest.mark.parametrize("text", ["", "soon", "10 lightyears ago", "2026-13-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        moment(text, now=NOW)


def test_memory_of_requests_is_bounded_and_keeps_outcomes() -> None:
    memory = RequestMemory(limit=2)

    assert memory.begin("a")
    assert not memory.begin("a")
    memory.end(Report(request_id="a", state=State.COMPLETED, output=1))
    assert memory.outcome("a") == Report(request_id="a", state=State.COMPLETED, output=1)
    assert memory.begin("b")
    assert memory.begin("c")
    assert memory.begin("a")


def test_unknown_fault_is_told_without_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = told(ExceptionGroup("tasks", [ZeroDivisionError("division by zero")]))

    assert code == 70
    assert "Traceback" not in capsys.readouterr().err


def test_every_error_class_has_an_exit_code() -> None:
    classes = [SkepError]
    for kind in classes:
        classes += kind.__subclasses__()

    codes = {kind.code: exit_code(error_named(kind.code, "")) for kind in classes if kind.__module__ == "things.errors"}

    assert codes.pop("internal") == 1
    assert set(codes.values()) <= set(range(1, 10))


def test_text_of_others_cannot_steer_the_terminal() -> None:
    assert plain("Pump \x1b[2J\x07\u202eend\n") == r"Pump \x1b[2J\x07\u202eend\n"
    assert plain("Füße · نمی\u200cخواهم · 温度") == "Füße · نمی\u200cخواهم · 温度"
    assert cell("[red]\x9b31m") == r"\[red]\x9b31m"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_by_its_own_exit_code(capsys: pytest.CaptureFixture[str], number: int) -> None:
    assert told(OSError(number, "No space left on device", "/srv/home/x")) == 8
    assert capsys.readouterr().err.startswith("storage-full: no space left")
