"""A lake that is kept: few parts, a short manifest, and no bytes that nobody needs."""

from pathlib import Path

import pytest

from tests.twin.lake.samples import DAY, NOON, SECOND, Lake, Rows, hot_row
from things.errors import StorageDamaged
from things.lake import READINGS
from twin.lake import upkeep
from twin.lake.reader import LakeReader, Selection
from twin.lake.retention import Retention, RetentionRule
from twin.lake.upkeep import FAN, Upkeep

HOUR = 3_600 * SECOND


def bytes_of(lake: Lake) -> int:
    return sum((lake.root / path).stat().st_size for path in lake.files(READINGS))


def sealed_hourly(lake: Lake, hours: int, *, kept: bool, rows: int = 6) -> Rows:
    """`rows` readings an hour for so many hours, each hour sealed and, if asked, the lake kept after it."""
    hot = Rows([])
    for hour in range(hours):
        start = NOON + hour * HOUR
        lake.now = start + HOUR
        first = hour * rows
        hot.rows += [hot_row(first + i + 1, i / 7, created=start + i * SECOND) for i in range(rows)]
        lake.sealer.seal(hot)
        if kept:
            Upkeep(lake.manifest).keep(60)
    return hot


def test_parts_follow_days_and_not_sealings(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    hot = sealed_hourly(lake, 24 * 3, kept=True)
    lake.now += 2 * DAY
    Upkeep(lake.manifest).keep(60)

    days = 4
    parts = lake.snapshot().parts
    assert len(parts) == days
    assert lake.values() == [(row.row_id, float(row.value)) for row in hot.rows]
    lake.now += 2 * DAY
    done = Upkeep(lake.manifest).keep(60)
    assert (done.waiting_bytes, done.due, done.problems) == (0, False, [])
    assert len(lake.files(READINGS)) == days
    assert len(lake.files("_manifest")) <= 110


def test_a_row_is_written_a_few_times_and_not_with_every_sealing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    sealed_hourly(lake, 36, kept=True, rows=10)

    written = 0
    for seq in sorted(lake.manifest.numbers()):
        commit = lake.manifest.commit_at(seq)
        written += sum(part.rows for part in commit.parts if part.table == READINGS)
    assert written <= 5 * 360


def test_what_retention_drops_is_gone_after_the_grace_period(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    sealed_hourly(lake, 24 * 3, kept=False)
    before = bytes_of(lake)
    Retention(lake.manifest, [RetentionRule(days=1)]).apply()
    assert bytes_of(lake) == before

    lake.now += 23 * HOUR
    early = Upkeep(lake.manifest).keep(0)
    lake.now += 2 * HOUR
    late = Upkeep(lake.manifest).keep(0)

    assert (early.removed, early.freed_bytes) == (0, 0)
    assert early.waiting_bytes > 0
    assert late.removed > 0
    assert late.freed_bytes == early.waiting_bytes
    assert set(lake.files(READINGS)) == {part.path for part in lake.snapshot().parts if part.table == READINGS}


def test_no_merge_begins_when_the_time_is_over(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    sealed_hourly(lake, 48, kept=False)
    lake.now += 2 * DAY
    seconds = iter(range(100))

    first = Upkeep(lake.manifest, steady=lambda: next(seconds)).keep(2)
    rest = Upkeep(lake.manifest).keep(60)

    assert (first.written, first.due) == (1, True)
    assert (rest.due, rest.parts) == (False, 3)


def test_a_damaged_part_is_named_and_the_others_are_merged(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    sealed_hourly(lake, 48, kept=False)
    lake.now += 2 * DAY
    victim = lake.snapshot().parts[0]
    data = bytearray((tmp_path / victim.path).read_bytes())
    data[40] ^= 1
    (tmp_path / victim.path).write_bytes(data)

    done = Upkeep(lake.manifest).keep(60)

    assert done.written == 2
    assert len(done.problems) == 1
    assert f"rows {victim.first} to {victim.last}" in done.problems[0]
    assert victim.path in {part.path for part in lake.snapshot().parts}
    with pytest.raises(StorageDamaged):
        LakeReader(lake.manifest).rows(Selection(), limit=1_000, sealed_only=True)


def test_parts_stay_bounded_on_a_day_that_is_not_over(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    hot = Rows([])

    for number in range(1, 61):
        hot.rows.append(hot_row(number, number / 7))
        lake.sealer.seal(hot)
        Upkeep(lake.manifest).keep(60)

    assert len(lake.snapshot().parts) < 3 * FAN
    assert len(lake.values()) == 60


def test_a_large_day_becomes_one_part_when_nothing_has_come_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FEW_ROWS", 0)
    lake = Lake(tmp_path)
    hot = Rows([hot_row(number, number / 7) for number in range(1, 101)])
    lake.sealer.seal(hot)
    hot.rows.append(hot_row(101, 1.0))
    lake.now += DAY
    lake.sealer.seal(hot)

    early = Upkeep(lake.manifest).keep(60)
    lake.now += DAY + SECOND
    late = Upkeep(lake.manifest).keep(60)

    assert (early.parts, late.parts, late.merged) == (2, 1, 2)
    assert len(lake.values()) == 101
