"""What was published while nobody took it, read again by row."""

from pathlib import Path

import pytest

from runtime.ports import Pattern
from runtime.publications.missed import MissedRows, is_stored
from tests.runtime.harness import House, house
from things.addresses import Kind

pytestmark = pytest.mark.anyio

EVENTS = [Pattern(agent=None, thing=None, kind=Kind.EVENT, name=None)]


async def published(h: House) -> str:
    pump = await h.publish_td("mill", "pump")
    for text in ("a", "b", "c"):
        await h.event(pump, "alarm", text)
        await h.value(pump, "flow", 1)
    return pump


def everything(_thing_id: str, _kind: Kind, _name: str) -> bool:
    return True


async def test_missed_events_come_in_their_order_from_the_row_that_was_seen_last(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await published(h)
        missed = MissedRows(h.twin.history, h.twin.history.last_row)

        first = await missed.after(EVENTS, 0, limit=2, may_see=everything)
        rest = await missed.after(EVENTS, first.last_row, limit=2, may_see=everything)

        assert [one.value for one in first.publications] == ["a", "b"]
        assert first.has_more
        assert [one.value for one in rest.publications] == ["c"]
        assert not rest.has_more
        assert rest.last_row == h.twin.history.last_row


async def test_a_piece_ends_where_its_bytes_do_and_the_next_goes_on_there(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await published(h)
        missed, after, found = MissedRows(h.twin.history, h.twin.history.last_row), 0, []
        while True:
            piece = await missed.after(EVENTS, after, limit=10, max_bytes=4, may_see=everything)
            found.append([one.value for one in piece.publications])
            after = piece.last_row
            if not piece.has_more:
                break

        assert found == [["a", "b"], ["c"]], "a text of one letter has three bytes"
        assert after == h.twin.history.last_row


async def test_what_may_not_be_seen_is_left_out_and_passed_over(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await published(h)

        found = await MissedRows(h.twin.history, h.twin.history.last_row).after(
            EVENTS, 0, limit=10, may_see=lambda *_: False
        )

        assert not found.publications
        assert found.last_row == h.twin.history.last_row


async def test_what_was_not_told_yet_is_left_to_whoever_is_subscribed_then(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await published(h)

        found = await MissedRows(h.twin.history, published_row=1).after(EVENTS, 0, limit=10, may_see=everything)

        assert [one.value for one in found.publications] == ["a"]
        assert found.last_row == 1


def test_descriptions_are_not_in_history() -> None:
    assert is_stored(EVENTS)
    assert is_stored([Pattern(agent=None, thing=None, kind=None, name=None)])
    assert not is_stored([Pattern(agent=None, thing=None, kind=Kind.TD, name=None)])
