"""Jobs over a lake that was really sealed, and their command lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark import lake as lakes
from spark.jobs import anomalies, availability, compact, resample, rollup, snapshot
from tests.spark.samples import after, collected, series
from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import DAY, LAMP, NOON, SECOND, Lake, Rows, hot_row
from things.errors import Invalid, NewerSchema, StorageDamaged
from twin.lake.compaction import Compactor
from twin.lake.rows import HotRow
from twin.lake.sealing import Beside

pytestmark = pytest.mark.spark

POINTS: list[tuple[float, object]] = [(second, second / 10) for second in range(0, 900, 60)]


def sealed(root: Path, rows: Sequence[HotRow], beside: Sequence[Beside] = (), gateway: str = "gw") -> Lake:
    lake = Lake(root / "lake", gateway)
    lake.sealer.seal(Rows(rows), beside)
    return lake


def printed(capsys: pytest.CaptureFixture[str], job: Any, *arguments: str) -> Any:
    assert job.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_reader_and_the_writer_agree_on_every_column(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        hot_row(1, 1.5, unit="Cel"),
        hot_row(2, 7, source_time=NOON),
        hot_row(3, True),
        hot_row(4, "text"),
        hot_row(5, {"a": 1}),
    ]
    lake = sealed(tmp_path, rows)

    found = lakes.readings(spark, lake.root).orderBy("row_id")

    plain = lake.table().sort_by("row_id").to_pylist()
    names = [name for name in found.columns if name not in ("gateway", "day")]
    assert collected(found, *names) == [tuple(row[name] for name in names) for row in plain]
    assert {(row.gateway, str(row.day)) for row in found.collect()} == {("gw", "2026-01-01")}


def test_readings_are_pruned_by_thing_name_day_and_gateway(spark: SparkSession, tmp_path: Path) -> None:
    rows = [hot_row(1, 1.0), hot_row(2, 2.0, name="other"), hot_row(3, 3.0, created=NOON + DAY)]
    lake = sealed(tmp_path, rows)
    sealed(tmp_path, [hot_row(1, 4.0, thing_id="dtw:a:b")], gateway="other")

    def ids(**selection: Any) -> list[tuple[str, int]]:
        return sorted(collected(lakes.readings(spark, lake.root, **selection), "gateway", "row_id"))

    assert ids() == [("gw", 1), ("gw", 2), ("gw", 3), ("other", 1)]
    assert ids(names=["other"]) == [("gw", 2)]
    assert ids(things=[LAMP], days=("2026-01-01", "2026-01-01")) == [("gw", 1), ("gw", 2)]
    assert ids(gateways=["other"]) == [("other", 1)]


def test_only_what_the_manifest_names_is_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = sealed(tmp_path, [hot_row(1, 1.0)])
    lake.sealer.seal(Rows([hot_row(1, 1.0), hot_row(2, 2.0)]))
    Compactor(lake.manifest).compact()
    lake.manifest.checkpoint(lake.snapshot())
    stray = lake.root / lake.snapshot().parts[0].path
    stray.with_name("part-stray.parquet").write_bytes(stray.read_bytes())

    assert lakes.readings(spark, lake.root).count() == 2


def test_damage_is_named_with_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    lake = sealed(tmp_path, [hot_row(7, 1.0)])
    path = lake.root / lake.snapshot().parts[0].path
    path.unlink()

    with pytest.raises(StorageDamaged, match=r"part-.*rows 7 to 7"):
        lakes.readings(spark, lake.root)
    manifest = next((lake.root / "_manifest").rglob("*.json"))
    manifest.write_text(manifest.read_text().replace('"skep.schema":1', '"skep.schema":9'))
    with pytest.raises(NewerSchema):
        lakes.readings(spark, lake.root)
    manifest.write_text("{")
    with pytest.raises(StorageDamaged, match="not JSON"):
        lakes.readings(spark, lake.root)


@pytest.mark.parametrize("form", [["--json"], [], ["--out", "table"]])
def test_a_job_names_the_file_it_cannot_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    lake = sealed(tmp_path, [hot_row(1, 1.0), hot_row(2, 2.0)])
    part = lake.snapshot().parts[0]
    (lake.root / part.path).write_bytes(b"PAR1")
    form = [str(tmp_path / one) if one == "table" else one for one in form]

    assert rollup.main(["--lake", str(lake.root), *form]) == 1

    assert f"error: {part.path}, rows 1 to 2, cannot be read" in capsys.readouterr().err


def test_the_rollup_job_prints_what_plain_python_computes(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = series(*POINTS)
    sealed(tmp_path, rows)

    found = printed(capsys, rollup, "--home", str(tmp_path), "--window", "5m")

    expected = plain_rollups(rows, 300 * SECOND)
    starts = ["2026-01-01T12:00:00Z", "2026-01-01T12:05:00Z", "2026-01-01T12:10:00Z"]
    assert found == [
        {"gateway": "gw", **line, "window_start": start} for line, start in zip(expected, starts, strict=True)
    ]
    assert list(found[0])[:4] == ["gateway", "thing_id", "name", "window_start"]


def test_a_declared_interval_reaches_the_rollup_job(spark: SparkSession, tmp_path: Path) -> None:
    td = {"properties": {"temperature": {"type": "number", "skep:interval": "PT30S"}}}
    row = {"thing_id": LAMP, "td_version": 1, "published": NOON, "td": json.dumps(td)}
    lake = sealed(tmp_path, series(*POINTS), [Beside("things", 1, [row])])

    found = rollup.run(spark, lake.root, window="5m")

    assert collected(found, "completeness") == [(0.5,)] * 3


def test_a_table_written_again_has_the_same_rows_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed(tmp_path, series(*POINTS))
    out = tmp_path / "out"

    for _ in range(2):
        printed(capsys, rollup, "--home", str(tmp_path), "--out", str(out))

    assert spark.read.parquet(str(out)).count() == 3
    assert len(list(out.glob("gateway=gw/day=2026-01-01/*.parquet"))) == 1


def test_an_empty_lake_gives_an_empty_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed(tmp_path, [])
    (tmp_path / "lake").mkdir(exist_ok=True)

    assert printed(capsys, rollup, "--home", str(tmp_path)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--window", "often"], "not a window"),
        (["--days", "today", "tomorrow"], "not a day"),
        (["--gateway", "nowhere"], "no manifest of gateway nowhere"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    sealed(tmp_path, series((0, 1.0)))

    assert rollup.main(["--home", str(tmp_path), *arguments]) != 0

    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_home_without_a_lake_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollup.main(["--home", str(tmp_path)]) == 2
    assert "there is no lake" in capsys.readouterr().err


def test_resampled_readings_fill_holes(spark: SparkSession, tmp_path: Path) -> None:
    lake = sealed(tmp_path, series((0, 1.0), (180, 2.0)))

    found = collected(resample.run(spark, lake.root, step="1m"), "at", "value", "is_filled")

    assert found == [(after(60 * n), 1.0, n > 0) for n in range(3)] + [(after(180), 2.0, False)]


def test_availability_comes_from_sealed_presence(spark: SparkSession, tmp_path: Path) -> None:
    changes = [(True, NOON), (False, NOON + 1800 * SECOND)]
    rows = [{"agent_id": "agent1", "online": online, "at": at} for online, at in changes]
    lake = sealed(tmp_path, [], [Beside("presence", 2, rows)])

    found = availability.run(spark, lake.root, window="1h", until="2026-01-01T13:00:00Z")

    assert collected(found, "agent_id", "window_start", "availability") == [("agent1", after(0), 0.5)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"score": "z", "rows": 10, "threshold": 4}, [after(1200)]),
        ({"score": "mad", "threshold": 4}, [after(1200)]),
        ({"score": "flat", "rows": 5}, [after(1260)]),
        ({"score": "gap", "threshold": 2}, [after(1500)]),
        ({"score": "stuck", "rows": 3}, []),
    ],
)
def test_each_score_finds_its_anomaly(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], expected: list[object]
) -> None:
    points: list[tuple[float, object]] = [(60 * n, 10.0 + n % 3) for n in range(20)]
    points += [(1200, 99.0), *((1260 + 60 * n, 11.0) for n in range(5)), (2400, 10.5)]
    lake = sealed(tmp_path, series(*points))

    found = collected(anomalies.run(spark, lake.root, **options), "at")

    assert [at for (at,) in found] == expected


def test_an_unknown_score_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = sealed(tmp_path, series((0, 1.0)))

    with pytest.raises(Invalid, match="no score"):
        anomalies.run(spark, lake.root, score="vibes")


def test_a_snapshot_is_the_fleet_at_an_instant_and_differs_from_another(spark: SparkSession, tmp_path: Path) -> None:
    lake = sealed(tmp_path, series((0, 1), (120, 5)))

    state = snapshot.run(spark, lake.root, at="2026-01-01T12:01:00Z")
    changes = snapshot.run(spark, lake.root, at="2026-01-01T12:05:00Z", against="2026-01-01T12:01:00Z")

    assert collected(state, "thing_id", "value_long") == [(LAMP, 1)]
    assert collected(changes, "change", "before", "after", "delta") == [("changed", "1", "5", 4.0)]


def test_a_compact_copy_holds_the_same_rows_in_one_file_a_day(spark: SparkSession, tmp_path: Path) -> None:
    rows = series(*POINTS)
    lake = Lake(tmp_path / "lake")
    for last in (5, 10, 15):
        lake.sealer.seal(Rows(rows), up_to=last)
    out = tmp_path / "copy"

    report = compact.run(spark, lake.root, str(out))

    assert collected(report, "gateway", "rows", "first", "last") == [("gw", 15, 1, 15)]
    assert len(list(out.rglob("*.parquet"))) == 1
    assert spark.read.parquet(str(out)).count() == 15
