"""When history is sealed, and how an owner learns that it is not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.sealing import Sealing
from tests.metrics import measured
from things.errors import StorageDamaged

pytestmark = pytest.mark.anyio

T0 = 1_770_000_000_000_000


@dataclass
class Lake:
    """Seals up to a row, or fails."""

    failure: Exception | None = None
    set_aside: int = 0
    committed: int = 9
    meanwhile: int = 0
    """Rows that are committed while it seals."""

    async def status(self) -> Mapping[str, Any]:
        if self.failure is not None:
            raise self.failure
        return {"marks": {}, "sealed": 5, "set_aside": self.set_aside}

    async def seal(self, beside: Sequence[Mapping[str, Any]] = (), *, up_to: int | None = None) -> Mapping[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.committed += self.meanwhile
        return {"rows": 7, "parts": 1, "last": 7, "set_aside": 0}


def sealing_of(lake: Lake) -> Sealing:
    async def nothing(_marks: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
        return []

    return Sealing(lake=lake, last_row=lambda: lake.committed, beside=nothing, interval_s=1, rows=10, now=lambda: T0)


@pytest.mark.parametrize("failure", [StorageDamaged("a part is damaged"), ZeroDivisionError("a fault of ours")])
async def test_sealing_that_stands_still_is_warned_of_until_it_goes_on(failure: Exception) -> None:
    lake = Lake(failure, meanwhile=2)
    sealing = sealing_of(lake)
    assert sealing.warnings() == {}

    for _ in range(2):
        with pytest.raises(type(failure)):
            await sealing.seal()

    (text,) = sealing.warnings().values()
    assert text.startswith("nothing has been sealed since 2026-02-02T02:40:00Z: ")
    assert measured(sealing.metrics())["skep_sealing_stalled"] == 1
    assert measured(sealing.metrics())["skep_sealing_failures_total"] == 2
    assert measured(sealing.metrics())["skep_unsealed_rows"] == 9

    lake.failure = None
    await sealing.seal()

    assert sealing.warnings() == {}
    assert measured(sealing.metrics())["skep_sealing_stalled"] == 0
    assert measured(sealing.metrics())["skep_unsealed_rows"] == 2


async def test_row_ids_that_were_left_out_are_not_waited_for() -> None:
    sealing = sealing_of(Lake(committed=7 + (1 << 32)))

    await sealing.seal()

    assert measured(sealing.metrics())["skep_unsealed_rows"] == 0


async def test_rows_that_were_set_aside_are_counted_and_warned_of() -> None:
    sealing = sealing_of(Lake(set_aside=3))

    await sealing.seal()

    assert list(sealing.warnings()) == ["set-aside"]
    assert measured(sealing.metrics())["skep_rows_set_aside"] == 3


async def test_what_stands_in_the_way_is_known_before_there_is_anything_to_seal() -> None:
    lake = Lake(set_aside=3)
    sealing = sealing_of(lake)

    await sealing.look()

    assert (sealing.mark, list(sealing.warnings())) == (5, ["set-aside"])
    lake.failure = StorageDamaged("the manifest lacks commit 1")
    with pytest.raises(StorageDamaged):
        await sealing.look()
    assert "lacks commit 1" in sealing.warnings()["sealing"]
