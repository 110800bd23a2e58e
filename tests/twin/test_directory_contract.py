"""What any directory must do: read from memory, commit before it answers, keep every version."""

import anyio
import pytest

from tests.twin.conftest import Clock, OpenTwin
from things.errors import UnknownThing
from things.records import DirectoryChange, Entry, EntryChange
from things.td import ThingDescription

pytestmark = pytest.mark.anyio


def td(title: str = "Lamp", **members: object) -> ThingDescription:
    document = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "@type": "Light", "title": title, **members}
    return ThingDescription.of(document, agent=True)


async def test_what_was_put_is_read_back_and_survives_a_restart(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            put = await twin.directory.put("dtw:a:lamp", td(properties={"on": {"type": "boolean"}}), agent="a")
            assert twin.directory.get("dtw:a:lamp") is put
        async with opened() as twin:
            kept = twin.directory.get("dtw:a:lamp")

            assert kept is not None
            assert kept.td.text == put.td.text
            assert (kept.td.title, kept.td.types, list(kept.td.properties)) == ("Lamp", ("Light",), ["on"])
            assert (kept.etag, kept.version, kept.agent, kept.created) == (put.etag, 1, "a", put.created)
            assert (twin.directory.ids(), twin.directory.things_of("a")) == (["dtw:a:lamp"], ["dtw:a:lamp"])
            assert twin.directory.things_of("b") == []


async def test_the_same_text_again_changes_nothing(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            first = await twin.directory.put("dtw:a:lamp", td(), agent="a")
            told: list[EntryChange] = []
            twin.directory.on_changed(lambda change, before, after: told.append(change.what))
            clock.now += 1
            again = await twin.directory.put("dtw:a:lamp", td(), agent="a")

            assert again is first
            assert told == []
            assert len(await twin.directory.versions("dtw:a:lamp")) == 1


async def test_listeners_hear_of_each_committed_change(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            told: list[tuple[str, str | None, str | None]] = []

            def title(entry: Entry | None) -> str | None:
                return None if entry is None else entry.td.title

            def broken(change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
                raise RuntimeError("not the directory's fault")

            twin.directory.on_changed(broken)
            twin.directory.on_changed(
                lambda change, before, after: told.append((change.what.value, title(before), title(after)))
            )
            await twin.directory.put("dtw:a:lamp", td("One"), agent="a")
            await twin.directory.put("dtw:a:lamp", td("Two"), agent="a")
            removed = [await twin.directory.remove("dtw:a:lamp") for _ in range(2)]

            assert removed == [True, False]
            assert told == [("created", None, "One"), ("updated", "One", "Two"), ("deleted", "Two", None)]
            assert (twin.directory.get("dtw:a:lamp"), twin.directory.ids()) == (None, [])


async def test_versions_rise_over_removal_and_tell_what_was_when(opened: OpenTwin, clock: Clock) -> None:
    start = clock.now
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put("dtw:a:lamp", td("One"), agent="a")
            clock.now = start + 10
            await twin.directory.put("dtw:a:lamp", td("Two"), agent="a")
            clock.now = start + 20
            await twin.directory.remove("dtw:a:lamp")
            clock.now = start + 30
            entry = await twin.directory.put("dtw:a:lamp", td("Three"), agent="a")
        async with opened() as twin:
            versions = await twin.directory.versions("dtw:a:lamp")
            then = [await twin.directory.as_of("dtw:a:lamp", start + at) for at in (-1, 0, 9, 10, 25, 99)]

    assert entry.version == 4
    assert [(one.version, one.td and one.td.title) for one in versions] == [
        (1, "One"),
        (2, "Two"),
        (3, None),
        (4, "Three"),
    ]
    assert [one and one.td and one.td.title for one in then] == [None, "One", "One", "Two", None, "Three"]


async def test_an_overlay_outlives_the_next_publish_and_can_be_dropped(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            first = await twin.directory.put("dtw:a:lamp", td("One"), agent="a")
            laid = await twin.directory.set_overlay("dtw:a:lamp", {"title": "Hall", "description": "by the door"})
            await twin.directory.put("dtw:a:lamp", td("Two"), agent="a")
        async with opened() as twin:
            kept = twin.directory.get("dtw:a:lamp")
            dropped = await twin.directory.set_overlay("dtw:a:lamp", {"description": None})
            with pytest.raises(UnknownThing):
                await twin.directory.set_overlay("dtw:a:none", {"title": "x"})

    assert kept is not None
    assert (kept.td.title, kept.overlay) == ("Two", {"title": "Hall", "description": "by the door"})
    assert dropped.overlay == {"title": "Hall"}
    assert len({first.etag, laid.etag, kept.etag, dropped.etag}) == 4


async def test_an_expired_registration_is_hidden_at_once_and_purged_later(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put("urn:x", td(), agent=None, expires=clock.now + 10)
            await twin.directory.put("urn:y", td(), agent=None)
            clock.now += 10

            assert twin.directory.get("urn:x") is None
            assert twin.directory.ids() == ["urn:y"]
            assert await twin.directory.purge_expired() == 1
            assert await twin.directory.purge_expired() == 0
            fresh = await twin.directory.put("urn:x", td(), agent=None, expires=clock.now + 10)
            assert twin.directory.get("urn:x") is fresh


async def test_puts_at_the_same_time_all_land(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            async with anyio.create_task_group() as tasks:
                for number in range(50):

                    async def put(number: int = number) -> None:
                        await twin.directory.put(f"dtw:a:{number % 10}", td(f"T{number}"), agent="a")

                    tasks.start_soon(put)
            in_memory = {thing_id: twin.directory.get(thing_id) for thing_id in twin.directory.ids()}
        async with opened() as twin:
            for thing_id, entry in in_memory.items():
                kept = twin.directory.get(thing_id)
                assert kept is not None
                assert entry is not None
                assert (kept.td.text, kept.version) == (entry.td.text, entry.version == 5 and 5)
