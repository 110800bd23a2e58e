"""How much one account may keep: what is new is refused at the bound, what is there never."""

from pathlib import Path

import pytest

from runtime.admission.quotas import QuotaLimits, Quotas, SeriesCheck
from tests.runtime.doubles import agent_principal
from tests.runtime.harness import House, house
from things.errors import TooMany
from things.messages import JSONValue, Message, Operation

pytestmark = pytest.mark.anyio


def quotas(
    h: House, *, things: int = 10, description_bytes: int = 100_000, series: int = 10, undeclared: int = 10
) -> Quotas:
    limits = QuotaLimits(things=things, description_bytes=description_bytes, series=series, undeclared=undeclared)
    return Quotas(h.twin.directory, h.twin.values, limits)


def value(h: House, thing_id: str, name: str, data: JSONValue = 1) -> Message:
    return h.message(Operation.PUBLISH_PROPERTY, agent_principal("mill"), thing_id, name, data)


async def test_things_and_bytes_are_bounded_and_a_failed_write_counts_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        kept = quotas(h, things=2, description_bytes=100)
        with kept.describing("mill", "dtw:mill:a", 60):
            pass

        with pytest.raises(TooMany, match="100 bytes"), kept.describing("mill", "dtw:mill:b", 41):
            pass
        with pytest.raises(OSError, match="disk"), kept.describing("mill", "dtw:mill:b", 40):
            raise OSError("disk")
        with kept.describing("mill", "dtw:mill:b", 40):
            pass
        with pytest.raises(TooMany, match="2 Things"), kept.describing("mill", "dtw:mill:c", 0):
            pass
        with kept.describing("mill", "dtw:mill:a", 10), kept.describing("other", "dtw:other:a", 100):
            pass


async def test_removed_thing_makes_room(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        kept = quotas(h, things=1)
        with kept.describing("mill", "dtw:mill:a", 60):
            pass

        kept.removed("mill", "dtw:mill:a", 0)

        with kept.describing("mill", "dtw:mill:b", 60):
            pass


async def test_series_are_counted_from_what_is_there_and_known_ones_pass(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        await h.value(pump, "flow", 1)
        check = SeriesCheck(quotas(h, series=2))

        check(value(h, pump, "flow"))
        check(value(h, pump, "target"))
        check(value(h, pump, "target"))  # not committed yet, and counted
        with pytest.raises(TooMany, match="2 series"):
            check(value(h, pump, "more"))
        check(value(h, pump, "flow"))


async def test_removed_and_begun_again_a_thing_counts_as_often_as_it_is_there(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump, gate = await h.publish_td("mill", "pump"), await h.publish_td("mill", "gate")
        kept = quotas(h, series=2)
        check = SeriesCheck(kept)
        for _ in range(3):
            check(value(h, pump, "flow"))
            check(value(h, pump, "target"))
            with pytest.raises(TooMany, match="2 series"):
                check(value(h, gate, "flow"))

            kept.removed("mill", pump, 0)


async def test_undeclared_names_are_bounded_by_thing(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump, gate = await h.publish_td("mill", "pump"), await h.publish_td("mill", "gate")
        check = SeriesCheck(quotas(h, undeclared=1))

        check(value(h, pump, "x"))
        with pytest.raises(TooMany, match="does not declare"):
            check(value(h, pump, "y"))
        check(value(h, pump, "flow"))
        check(value(h, gate, "y"))


async def test_other_operations_begin_no_series(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        check = SeriesCheck(quotas(h, series=0))
        asked = h.message(Operation.INVOKE_ACTION, agent_principal("mill"), pump, "setSpeed", 1)

        check(asked)

        with pytest.raises(TooMany):
            check(value(h, pump, "flow"))
        assert check.remaining(asked) == ()
