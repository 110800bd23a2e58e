"""The lake is kept by the gateway: when, how an owner sees it, and what waits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.upkeep import Upkeep
from tests.metrics import measured
from things.errors import StorageDamaged

pytestmark = pytest.mark.anyio

HOUR = 3_600_000_000
REPORT = {
    "merged": 9,
    "written": 1,
    "removed": 3,
    "freed_bytes": 700,
    "parts": 4,
    "live_bytes": 900,
    "waiting_bytes": 80,
    "commits": 12,
    "due": False,
    "problems": [],
    "mended": 0,
    "aside": 0,
}


@dataclass
class Lake:
    report: dict[str, Any] = field(default_factory=lambda: dict(REPORT))
    failure: Exception | None = None
    runs: int = 0

    async def keep(self, *, budget_s: float) -> Mapping[str, Any]:
        assert budget_s > 0
        self.runs += 1
        if self.failure is not None:
            raise self.failure
        return self.report


class House:
    def __init__(self) -> None:
        self.now = 0
        self.is_trusted = True
        self.lake = Lake()
        self.upkeep = Upkeep(
            lake=self.lake, interval_s=3_600, steady=lambda: self.now, is_trusted=lambda: self.is_trusted
        )


async def test_the_lake_is_kept_now_and_then_and_again_at_once_while_more_is_due() -> None:
    house = House()
    for _ in range(3):
        await house.upkeep.keep()
    assert house.lake.runs == 1

    house.now += HOUR
    house.lake.report["due"] = True
    for _ in range(3):
        await house.upkeep.keep()

    assert house.lake.runs == 4


async def test_nothing_is_removed_by_a_clock_that_is_not_trusted() -> None:
    house = House()
    house.is_trusted = False

    await house.upkeep.keep()

    assert house.lake.runs == 0


async def test_what_was_done_is_counted() -> None:
    house = House()
    for _ in range(2):
        await house.upkeep.keep()
        house.now += HOUR

    said = measured(house.upkeep.metrics())

    assert said["skep_lake_freed_bytes_total"] == 1400
    assert said["skep_lake_merged_parts_total"] == 18
    assert said["skep_lake_parts"] == 4
    assert said["skep_lake_waiting_bytes"] == 80
    assert house.upkeep.warnings() == {}


async def test_upkeep_that_fails_is_tried_again_and_warned_of() -> None:
    house = House()
    house.lake.failure = StorageDamaged("a commit is missing")

    with pytest.raises(StorageDamaged):
        await house.upkeep.keep()
    assert list(house.upkeep.warnings()) == ["lake-upkeep"]
    assert measured(house.upkeep.metrics())["skep_lake_upkeep_failures_total"] == 1

    house.lake.failure = None
    await house.upkeep.keep()
    assert house.upkeep.warnings() == {}


async def test_damage_that_was_met_is_warned_of() -> None:
    house = House()
    house.lake.report["problems"] = ["readings/x.parquet, rows 1 to 9, cannot be read", "another"]

    await house.upkeep.keep()

    assert "rows 1 to 9" in house.upkeep.warnings()["lake-damage"]


async def test_what_is_mended_and_what_is_set_aside_can_be_seen_and_when_the_next_run_is() -> None:
    house = House()
    house.lake.report |= {"mended": 2, "aside": 30}

    await house.upkeep.keep()
    house.now += HOUR // 4

    said = measured(house.upkeep.metrics())
    assert said["skep_lake_mended_parts_total"] == 2
    assert said["skep_lake_rows_damaged"] == 30
    assert said["skep_lake_upkeep_due_seconds"] == 2_700
    assert "30 sealed rows are set aside" in house.upkeep.warnings()["lake-quarantine"]
