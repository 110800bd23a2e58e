"""What the directory tells of itself afterwards: changes in order, over restarts, as many as are kept."""

import asyncio

import anyio
import pytest
from pydantic_core import from_json

from tests.twin.conftest import Clock, OpenTwin
from tests.twin.test_directory_contract import td
from twin.changes import MAX_CHANGES, MAX_PATCH_BYTES, shown_patch
from twin.store import Twin

pytestmark = pytest.mark.anyio


def told(twin: Twin, after: int = 0) -> list[tuple[str, str]]:
    return [(change.what.value, change.thing_id) for change in twin.directory.changes_since(after, MAX_CHANGES)]


async def test_changes_are_told_in_order_after_a_restart_too(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put("dtw:a:lamp", td("One"), agent="a")
            seen = twin.directory.last_change
            await twin.directory.put("dtw:a:lamp", td("Two"), agent="a")
            await twin.directory.put("dtw:a:lamp", td("Two"), agent="a")
            await twin.directory.set_overlay("dtw:a:lamp", {"title": "Hall"})
            await twin.directory.remove("dtw:a:lamp")
            before = told(twin)
        async with opened() as twin:
            again = twin.directory.changes_since(seen, 10)
            await twin.directory.put("urn:x", td(), agent=None)
            after = told(twin)

    lamp = "dtw:a:lamp"
    assert before == [("created", lamp), ("updated", lamp), ("updated", lamp), ("deleted", lamp)]
    assert after == [*before, ("created", "urn:x")]
    assert [from_json(change.patch) for change in again] == [{"title": "Two"}, {"title": "Hall"}, {}]


async def test_ids_rise_while_the_clock_stands_or_falls_back(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put("urn:a", td(), agent=None)
            await twin.directory.put("urn:b", td(), agent=None)
        clock.now -= 1_000_000
        async with opened() as twin:
            await twin.directory.put("urn:c", td(), agent=None)
            ids = [change.id for change in twin.directory.changes_since(0, 10)]

    assert len(ids) == 3
    assert ids == sorted(set(ids))


async def test_no_more_changes_are_kept_than_the_ring_holds(opened: OpenTwin) -> None:
    with anyio.fail_after(60):
        async with opened() as twin:
            async with asyncio.TaskGroup() as tasks:
                for number in range(MAX_CHANGES + 5):
                    tasks.create_task(twin.directory.put(f"urn:{number:05}", td(), agent=None))
            live = told(twin)
        async with opened() as twin:
            kept = told(twin)
            few = [change.thing_id for change in twin.directory.changes_since(0, 2)]

    assert kept == live == [("created", f"urn:{number:05}") for number in range(5, MAX_CHANGES + 5)]
    assert few == ["urn:00005", "urn:00006"]


async def test_what_was_committed_is_known_although_nobody_waited_for_it(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            writing = asyncio.ensure_future(twin.directory.put("urn:a", td(), agent=None))
            await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            await twin.directory.put("urn:b", td(), agent=None)

            assert list(twin.directory.ids()) == ["urn:a", "urn:b"]
            assert told(twin) == [("created", "urn:a"), ("created", "urn:b")]


def test_a_patch_of_a_twin_shows_what_its_consumer_sees() -> None:
    device = {"base": "http://10.0.0.9/", "properties": {"level": {"title": "New"}, "gone": None}, "title": "T"}
    seen = {"title": "Seen", "properties": {"level": {"title": "New", "forms": ["ours"]}}}

    assert shown_patch(device, "dtw:a:lamp", seen) == {
        "id": "dtw:a:lamp",
        "properties": {"level": {"title": "New", "forms": ["ours"]}, "gone": None},
        "title": "Seen",
    }
    assert shown_patch({"base": "http://x/"}, "urn:x", {}) == {"id": "urn:x", "base": "http://x/"}


@pytest.mark.parametrize("thing_id", ["urn:x", "dtw:a:lamp"])
async def test_of_a_large_patch_names_are_kept_and_values_read(opened: OpenTwin, thing_id: str) -> None:
    agent = "a" if thing_id.startswith("dtw") else None
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put(thing_id, td(note="x" * MAX_PATCH_BYTES, gone=1), agent=agent)
            await twin.directory.put(thing_id, td(note="y" * MAX_PATCH_BYTES), agent=agent)
            change = twin.directory.changes_since(0, 10)[-1]
            entry = twin.directory.get(thing_id)

    assert entry is not None
    assert from_json(change.patch) == {"note": None, "gone": None}
    assert shown_patch(from_json(change.patch), thing_id, entry.td.document) == {
        "id": thing_id,
        "note": "y" * MAX_PATCH_BYTES,
        "gone": None,
    }
