"""What any store of latest values must do: never go back in time, and come back complete after a restart."""

from pathlib import Path

import anyio
import pytest

from tests.twin.conftest import Clock, OpenTwin
from tests.twin.test_directory_contract import td
from things.addresses import Kind
from things.records import Appended, Reading, Value
from twin.store import Twin, open_twin

pytestmark = pytest.mark.anyio

LAMP = "dtw:a:lamp"


async def published(
    twin: Twin, number: int, created: int, *, received: int | None = None, name: str = "level", thing: str = LAMP
) -> Appended:
    """Store a value as the runtime does: history first, then the latest value. Without `received` the source gave no
    time of its own."""
    payload, received = str(number).encode(), created if received is None else received
    reading = Reading(
        thing_id=thing, kind=Kind.PROPERTY, name=name, value=payload, created=created, received=received, sender="a"
    )
    appended = (await twin.history.append([reading]))[0]
    value = Value(value=number, payload=payload, created=created, received=received, row_id=appended.row_id)
    twin.values.put(thing, Kind.PROPERTY, name, value)
    return appended


async def test_a_value_created_earlier_never_replaces_a_later_one(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put(LAMP, td(), agent="a")
            for number, created in ((1, clock.now), (2, clock.now - 1), (3, clock.now)):
                await published(twin, number, created, received=clock.now + number)
            latest = twin.values.get(LAMP, Kind.PROPERTY, "level")
            stale = Value(value=9, payload=b"9", created=clock.now, received=clock.now, row_id=1)

            assert latest is not None
            assert latest.value == 3
            assert not twin.values.put(LAMP, Kind.PROPERTY, "level", stale)
            assert twin.values.get(LAMP, Kind.EVENT, "level") is None


async def test_latest_values_come_back_with_and_without_a_checkpoint(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put(LAMP, td(), agent="a")
            await published(twin, 1, clock.now)
            await published(twin, 5, clock.now, name="colour")
            await twin.values.checkpoint(twin.history.last_row)
            await published(twin, 2, clock.now + 1)
            before = twin.values.of_thing(LAMP)
        for _ in range(2):
            async with opened() as twin:
                assert twin.values.of_thing(LAMP) == before


HOUR = 3_600_000_000


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 400 * 24 * HOUR])
@pytest.mark.parametrize("states_time", [False, True])
@pytest.mark.parametrize("is_checkpointed", [False, True])
async def test_the_latest_value_after_an_excursion_of_the_clock_is_the_last_that_arrived(
    opened: OpenTwin, clock: Clock, ahead: int, states_time: bool, is_checkpointed: bool
) -> None:
    travel = 1_000 if states_time else 0
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put(LAMP, td(), agent="a")
            for number, shift in enumerate((0, ahead, 0, 1, 2)):
                received = clock.now + shift + number * 10_000
                await published(twin, number, received - travel, received=received)
                latest = twin.values.get(LAMP, Kind.PROPERTY, "level")
                assert latest is not None
                assert latest.value == number
                if is_checkpointed and number == 1:
                    await twin.values.checkpoint(twin.history.last_row)
        async with opened() as twin:
            latest = twin.values.get(LAMP, Kind.PROPERTY, "level")
            assert latest is not None
            assert latest.value == 4


async def test_values_of_a_removed_thing_do_not_return(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for thing in (LAMP, "dtw:a:other"):
                await twin.directory.put(thing, td(), agent="a")
                await published(twin, 1, clock.now, thing=thing)
            await twin.values.checkpoint(twin.history.last_row)
            await twin.directory.remove(LAMP)
            twin.values.drop(LAMP)
            assert twin.values.of_thing(LAMP) == {}
        async with opened() as twin:
            assert twin.values.of_thing(LAMP) == {}
            assert len(twin.values.of_thing("dtw:a:other")) == 1


async def test_checkpoints_are_written_from_time_to_time(tmp_path: Path, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with open_twin(tmp_path, clock=clock, checkpoint_s=0.01, reserve_bytes=4096) as twin:
            await twin.directory.put(LAMP, td(), agent="a")
            await published(twin, 1, clock.now)
            while twin.values.checkpointed_row < twin.history.last_row:  # noqa: ASYNC110 - nothing else tells
                await anyio.sleep(0.005)


async def test_after_a_clean_stop_no_row_is_read_again(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.directory.put(LAMP, td(), agent="a")
            for number in range(5):
                await published(twin, number, clock.now + number)
            last = twin.history.last_row
        for _ in range(2):
            async with opened() as twin:
                latest = twin.values.get(LAMP, Kind.PROPERTY, "level")
                assert latest is not None
                assert (latest.value, latest.row_id) == (4, last)
                assert twin.values.checkpointed_row == twin.history.last_row == last
