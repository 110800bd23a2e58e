"""Compaction, verification, retention, planning and export of a lake."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.twin.lake.samples import DAY, NOON, SECOND, Lake, Rows, hot_row
from things.errors import Conflict, Invalid, StorageDamaged
from things.lake import READINGS, ROLLUPS
from twin.lake.compaction import Compactor
from twin.lake.export import export
from twin.lake.planning import plan
from twin.lake.reader import LakeReader, Selection
from twin.lake.retention import Retention, RetentionRule
from twin.lake.rows import HotRow
from twin.lake.verification import verify


def lake_of(root: Path, *batches: Sequence[HotRow]) -> Lake:
    lake = Lake(root)
    hot = Rows([])
    for batch in batches:
        hot.rows.extend(batch)
        lake.sealer.seal(hot)
    return lake


def three_days(root: Path) -> Lake:
    """Ten readings of each of two series on each of three days; NOON is on the last."""
    rows = [
        hot_row(
            1 + 20 * day + 2 * index + which, float(index), name=name, created=NOON + (day - 2) * DAY + index * SECOND
        )
        for day in range(3)
        for index in range(10)
        for which, name in enumerate(("temperature", "humidity"))
    ]
    return lake_of(root, rows)


def test_compaction_gives_the_same_rows_in_fewer_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, *([hot_row(row_id, float(row_id))] for row_id in range(1, 6)))
    before = lake.values()

    done = Compactor(lake.manifest).compact()

    assert (done.commits, done.merged) == (1, 5)
    assert lake.values() == before
    assert len(lake.snapshot().parts) == 1
    assert len(lake.files(READINGS)) == 6  # readers with an older snapshot still find theirs
    assert Compactor(lake.manifest).compact().commits == 0


def test_replaced_files_go_after_a_day(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, *([hot_row(row_id, float(row_id))] for row_id in range(1, 4)))
    Compactor(lake.manifest).compact()
    lake.now += DAY + SECOND

    done = Compactor(lake.manifest).compact()

    assert done.removed == 3
    assert len(lake.files(READINGS)) == 1
    assert [row_id for row_id, _ in lake.values()] == [1, 2, 3]


def test_compaction_never_makes_a_file_larger_than_its_bound(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, *([hot_row(row_id, float(row_id))] for row_id in range(1, 8)))

    Compactor(lake.manifest, max_rows=3).compact()

    assert sorted(part.rows for part in lake.snapshot().parts) == [1, 3, 3]


def test_compaction_refuses_to_lose_what_it_cannot_read(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [hot_row(1, 1.0)], [hot_row(2, 2.0)])
    (tmp_path / lake.snapshot().parts[0].path).write_bytes(b"not parquet")

    with pytest.raises(StorageDamaged, match=r"rows 1 to 1"):
        Compactor(lake.manifest).compact()

    assert len(lake.snapshot().parts) == 2


def test_verification_names_what_is_wrong_and_where(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, *([hot_row(row_id, float(row_id))] for row_id in range(1, 4)))
    first, second, _ = lake.snapshot().parts
    (tmp_path / first.path).unlink()
    data = bytearray((tmp_path / second.path).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / second.path).write_bytes(data)
    stray = tmp_path / "readings/gateway=gw/day=2026-01-01/part-stray.parquet"
    stray.write_bytes(b"")

    found = verify(lake.manifest)

    assert [(problem["code"], problem["first"]) for problem in found.problems] == [("missing", 1), ("damaged", 2)]
    assert found.unlisted == [stray.relative_to(tmp_path).as_posix()]
    assert found.rows == 1


def test_quarantine_takes_damaged_files_out_and_keeps_them(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [hot_row(1, 1.0)], [hot_row(2, 2.0)])
    damaged = lake.snapshot().parts[0]
    (tmp_path / damaged.path).write_bytes(b"torn")

    found = verify(lake.manifest, quarantine=True)

    assert found.quarantined == 1
    assert lake.values() == [(2, 2.0)]
    assert (tmp_path / "_quarantine" / damaged.path).read_bytes() == b"torn"
    assert lake.snapshot().sealed == 2
    assert verify(lake.manifest).problems == []


def test_old_days_go_after_they_were_rolled_up(tmp_path: Path) -> None:
    lake = three_days(tmp_path)

    done = Retention(lake.manifest, [RetentionRule(days=1)]).apply()

    assert (done.days, done.rows, done.rolled_up) == (["2025-12-30"], 20, ["2025-12-30"])
    days = {part.day for part in lake.snapshot().parts if part.table == READINGS}
    assert days == {"2025-12-31", "2026-01-01"}
    rollups = lake.table(ROLLUPS).to_pylist()
    assert [(row["name"], row["count"], row["sum"], row["min"], row["max"]) for row in rollups] == [
        ("humidity", 10, 45.0, 0.0, 9.0),
        ("temperature", 10, 45.0, 0.0, 9.0),
    ]
    assert Retention(lake.manifest, [RetentionRule(days=1)]).apply().rows == 0


def test_one_series_goes_earlier_than_the_others(tmp_path: Path) -> None:
    lake = three_days(tmp_path)

    Retention(lake.manifest, [RetentionRule(days=30), RetentionRule(name="humidity", days=1)]).apply()

    counts: dict[tuple[str, str], int] = {}
    for row in lake.table().to_pylist():
        key = (row["created"].date().isoformat(), row["name"])
        counts[key] = counts.get(key, 0) + 1
    assert ("2025-12-30", "humidity") not in counts
    assert counts["2025-12-30", "temperature"] == 10
    assert sum(counts.values()) == 50


def test_a_longer_stay_of_one_series_outlives_the_rule_for_all(tmp_path: Path) -> None:
    lake = three_days(tmp_path)

    Retention(lake.manifest, [RetentionRule(days=1), RetentionRule(name="humidity", days=30)]).apply()

    old = [row["name"] for row in lake.table().to_pylist() if row["created"].day == 30]
    assert old == ["humidity"] * 10


def test_a_budget_in_bytes_drops_the_oldest_days(tmp_path: Path) -> None:
    lake = three_days(tmp_path)
    newest = max(lake.snapshot().parts, key=lambda part: part.day)

    Retention(lake.manifest, [RetentionRule(bytes=(tmp_path / newest.path).stat().st_size + 10)]).apply()

    assert {part.day for part in lake.snapshot().parts if part.table == READINGS} == {newest.day}


def test_data_never_rolled_up_is_only_removed_by_force(tmp_path: Path) -> None:
    lake = three_days(tmp_path)
    retention = Retention(lake.manifest, [RetentionRule(days=1)], windows=())

    with pytest.raises(Conflict, match="never rolled up"):
        retention.apply()
    assert lake.table().num_rows == 60

    assert retention.apply(force=True).rows == 20


def test_a_dry_run_says_what_would_go_and_removes_nothing(tmp_path: Path) -> None:
    lake = three_days(tmp_path)

    would = Retention(lake.manifest, [RetentionRule(days=1)]).apply(dry_run=True)

    assert (would.days, would.rows) == (["2025-12-30"], 20)
    assert lake.table().num_rows == 60


@pytest.mark.parametrize(
    "rules", [[RetentionRule(days=0)], [RetentionRule(bytes=-1)], [RetentionRule(days=1), RetentionRule(bytes=5)]]
)
def test_retention_rules_that_make_no_sense_are_refused(tmp_path: Path, rules: list[RetentionRule]) -> None:
    with pytest.raises(Invalid):
        Retention(Lake(tmp_path).manifest, rules)


def test_a_plan_predicts_by_what_came_lately(tmp_path: Path) -> None:
    lake = three_days(tmp_path)

    free = plan(lake.manifest, Rows([]))
    ruled = plan(lake.manifest, Rows([]), [RetentionRule(days=9)])

    assert (free.rows, free.days, free.rows_per_day) == (60, 3, 20.0)
    assert free.rows_in_a_year == 60 + 365 * 20
    assert free.settles_bytes is None
    assert ruled.settles_bytes == round(200 * ruled.bytes_per_row)


@pytest.mark.parametrize("format", ["csv", "jsonl", "arrow", "parquet"])
def test_exported_rows_are_hot_and_sealed_ones(tmp_path: Path, format: str) -> None:
    lake = lake_of(tmp_path / "lake", [hot_row(1, 1.5)])
    hot = Rows([hot_row(1, 1.5), hot_row(2, 2.5), hot_row(3, 3.5, name="other")])
    path = tmp_path / "out"

    done = export(LakeReader(lake.manifest, hot), Selection(names=["temperature"]), path, format)

    assert (done.rows, done.bytes) == (2, path.stat().st_size)
    assert _row_ids(path, format) == [1, 2]
    assert [found.name for found in tmp_path.iterdir() if found.is_file()] == ["out"]


def test_an_unknown_export_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="arrow, csv, jsonl, parquet"):
        export(LakeReader(Lake(tmp_path).manifest), Selection(), tmp_path / "out", "xlsx")


def _row_ids(path: Path, format: str) -> list[int]:
    match format:
        case "csv":
            with path.open() as file:
                return [int(row["row_id"]) for row in csv.DictReader(file)]
        case "jsonl":
            return [json.loads(line)["row_id"] for line in path.read_text().splitlines()]
        case "arrow":
            with pa.OSFile(str(path), "rb") as file:
                return list(pa.ipc.open_stream(file).read_all()["row_id"].to_pylist())
        case _:
            return list(pq.read_table(path)["row_id"].to_pylist())
