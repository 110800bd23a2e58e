"""When old readings go, and when nothing may."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.retention import MAX_DRIFT_US, Retention
from runtime.core import Clocks
from things.errors import Unavailable

pytestmark = pytest.mark.anyio

HOUR = 3_600_000_000
RULES: Sequence[Mapping[str, Any]] = [{"days": 30.0}, {"thing_id": "dtw:a:lamp", "days": 1.0}]


@dataclass
class Lake:
    """Counts how often readings were let go."""

    asked: list[Sequence[Mapping[str, Any]]] = field(default_factory=list)
    failure: Exception | None = None

    async def retain(self, rules: Sequence[Mapping[str, Any]], **_: Any) -> Mapping[str, Any]:
        if self.failure:
            raise self.failure
        self.asked.append(rules)
        return {"rows": 1, "days": ["2026-01-01"], "files": 1, "rolled_up": []}


class House:
    """Clocks that tests set, and what was kept."""

    def __init__(self, rules: Sequence[Mapping[str, Any]] = RULES, *, steady_behind: int = 0) -> None:
        self.now = 1_770_000_000_000_000
        self.steady = self.now - steady_behind
        self.trims = 0
        self.lake = Lake()
        self.retention = Retention(
            trim=self.trim,
            lake=self.lake,  # type: ignore[arg-type]
            rules=rules,
            interval_s=3_600,
            clocks=Clocks(now=lambda: self.now, steady=lambda: self.steady, new_id=str),
        )

    async def trim(self) -> None:
        self.trims += 1

    def pass_(self, time: int) -> None:
        self.now += time
        self.steady += time


async def test_hot_files_are_looked_at_each_time_and_the_lake_now_and_then() -> None:
    house = House()
    for _ in range(5):
        await house.retention.keep()
        house.pass_(HOUR // 2)

    assert house.trims == 5
    assert house.lake.asked == [RULES] * 3


async def test_without_rules_the_lake_is_left_alone() -> None:
    house = House([])
    await house.retention.keep()

    assert (house.trims, house.lake.asked) == (1, [])


@pytest.mark.parametrize("jump", [MAX_DRIFT_US + 1, -MAX_DRIFT_US - 1, 10 * 365 * 24 * HOUR])
async def test_nothing_goes_while_the_clock_has_jumped(jump: int) -> None:
    house = House()
    house.now += jump
    await house.retention.keep()
    assert (house.trims, house.lake.asked) == (0, [])

    house.now -= jump
    await house.retention.keep()
    assert (house.trims, len(house.lake.asked)) == (1, 1)


async def test_nothing_goes_while_the_clock_is_earlier_than_in_former_runs() -> None:
    house = House()
    trusts = False
    house.retention.is_trusted = lambda: trusts
    await house.retention.keep()
    assert (house.trims, house.lake.asked) == (0, [])

    trusts = True
    await house.retention.keep()
    assert (house.trims, len(house.lake.asked)) == (1, 1)


async def test_clocks_that_were_apart_at_the_start_have_not_jumped() -> None:
    house = House(steady_behind=24 * HOUR)
    await house.retention.keep()

    assert (house.trims, len(house.lake.asked)) == (1, 1)


async def test_what_failed_is_tried_again_at_the_next_call() -> None:
    house = House()
    house.lake.failure = Unavailable("no lake")
    with pytest.raises(Unavailable):
        await house.retention.keep()
    assert house.retention.warnings() == {"retention": "readings beyond their limits stay: no lake"}

    house.lake.failure = None
    await house.retention.keep()
    assert len(house.lake.asked) == 1
    assert house.retention.warnings() == {}
