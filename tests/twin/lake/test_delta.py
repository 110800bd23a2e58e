"""The lake as Delta tables: what engines read that know nothing of skep is what the manifest says, at any time."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.twin.lake.samples import DAY, LAMP, NOON, SECOND, Lake, Rows, hot_row
from things import lake as layout
from things.errors import Conflict, StorageDamaged, StorageFailed
from things.lake import Column, ColumnType
from twin.lake import delta_log, delta_tables
from twin.lake.compaction import Compactor
from twin.lake.delta_log import FOLDER, DeltaLog
from twin.lake.delta_tables import DeltaTables
from twin.lake.mending import Mender
from twin.lake.places import LocalPlace
from twin.lake.retention import Retention, RetentionRule
from twin.lake.sealing import Beside
from twin.lake.upkeep import Upkeep
from twin.lake.verification import verify

HOUR = 3_600 * SECOND
DESCRIPTION = {"thing_id": LAMP, "td_version": 1, "published": NOON, "td": "{}"}


# ---------------------------------------------------------------- readers


def by_deltalake(root: Path) -> pa.Table:
    table = pytest.importorskip("deltalake", reason="the library deltalake is not installed").DeltaTable(str(root))
    return table.to_pyarrow_table()


def by_polars(root: Path) -> pa.Table:
    pytest.importorskip("deltalake", reason="Polars reads Delta by deltalake, which is not installed")
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    return polars.scan_delta(str(root)).collect().to_arrow()


def by_duckdb(root: Path) -> pa.Table:
    import duckdb

    # Not from the network: a test does not change what is installed.
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        try:
            connection.execute("LOAD delta")
        except duckdb.Error:
            pytest.skip("DuckDB's extension delta is not installed here")
        return connection.sql(f"SELECT * FROM delta_scan('{root}')").to_arrow_table()


def by_duckdb_over_arrow(root: Path) -> pa.Table:
    import duckdb

    module = pytest.importorskip("deltalake", reason="the library deltalake is not installed")
    readings = module.DeltaTable(str(root)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("readings", readings)
        return connection.sql("SELECT * FROM readings").to_arrow_table()


def by_the_protocol(root: Path) -> pa.Table:
    """By hand: the last checkpoint, the versions after it, and the files that are left."""
    folder, live, start = root / FOLDER, {}, -1
    if (folder / "_last_checkpoint").exists():
        start = json.loads((folder / "_last_checkpoint").read_bytes())["version"]
        rows = pq.read_table(folder / f"{start:020d}.checkpoint.parquet").to_pylist()
        live = {row["add"]["path"]: dict(row["add"]["partitionValues"]) for row in rows if row["add"]}
    versions = sorted(int(path.stem) for path in folder.glob("*.json"))
    later = [version for version in versions if version > start]
    assert later == list(range(start + 1, start + 1 + len(later)))
    for version in later:
        lines = [json.loads(line) for line in (folder / f"{version:020d}.json").read_text().splitlines()]
        touched = [line[kind]["path"] for line in lines for kind in ("add", "remove") if kind in line]
        assert len(touched) == len(set(touched)), "a version that adds and removes one file means nothing"
        for line in lines:
            if "add" in line:
                live[line["add"]["path"]] = line["add"]["partitionValues"]
            elif "remove" in line:
                del live[line["remove"]["path"]]
    tables = [pq.read_table(root / path, partitioning=None) for path in live]
    return pa.concat_tables(
        table.append_column("gateway", pa.array([values["gateway"]] * table.num_rows))
        for table, values in zip(tables, live.values(), strict=True)
    )


READERS = [by_the_protocol, by_deltalake, by_polars, by_duckdb, by_duckdb_over_arrow]
Reader = Callable[[Path], pa.Table]


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("gateway", "row_id", "thing_id", "created", "value_double", "value_string")
    columns = [table[name].to_pylist() for name in names]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


# ---------------------------------------------------------------- lakes


class Published(Lake):
    """A lake that is published after whatever is done to it, as its process does."""

    def __init__(self, root: Path, gateway: str = "gw") -> None:
        super().__init__(root, gateway)
        self.tables = DeltaTables(self.manifest)
        self.hot = Rows([])

    @property
    def readings(self) -> Path:
        return self.root / "readings"

    def publish(self) -> int:
        return self.tables.publish(self.snapshot())

    def hours(self, count: int, *, kept: bool = False) -> None:
        """Six readings an hour, one of them late by a day, and a text among the numbers; sealed by the hour."""
        for _ in range(count):
            for number in range(6):
                row_id = len(self.hot.rows) + 1
                value: object = "off" if row_id % 11 == 0 else row_id / 7
                created = self.now + number * SECOND - (DAY if number == 0 else 0)
                self.hot.rows.append(hot_row(row_id, value, created=created))
            self.now += HOUR
            self.sealer.seal(self.hot)
            self.publish()
            if kept:
                self.keep()

    def keep(self) -> None:
        Upkeep(self.manifest, self.hot).keep(60)
        self.publish()
        self.tables.trim()

    def expected(self) -> list[tuple[Any, ...]]:
        table = self.table()
        return rows_of(table.append_column("gateway", pa.array([self.manifest.gateway] * table.num_rows)))

    def log(self, root: str = "readings") -> DeltaLog:
        found = DeltaLog(self.manifest.place, root)
        found.load()
        return found


def actions_of(lake: Published, kind: str) -> list[dict[str, Any]]:
    """Those of the last version of readings."""
    text = (lake.readings / FOLDER / f"{lake.log().version:020d}.json").read_text()
    return [line[kind] for line in map(json.loads, text.splitlines()) if kind in line]


class Stage(NamedTuple):
    """A copy of a lake at some time, and its rows as the manifest has them."""

    root: Path
    rows: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Stage]:
    """A lake after each of the things that are done to one. Every reader looks at the same."""
    folder = tmp_path_factory.mktemp("stages")
    lake = Published(folder / "lake")
    found: list[Stage] = []

    def stage() -> None:
        lake.publish()
        shutil.copytree(lake.root, folder / str(len(found)))
        found.append(Stage(folder / str(len(found)), lake.expected()))

    lake.hours(5)
    stage()
    Compactor(lake.manifest).compact()
    stage()
    lake.now += 2 * DAY
    lake.keep()  # what was merged is removed from the disk
    stage()
    (lake.root / lake.snapshot().parts[0].path).unlink()
    verify(lake.manifest, quarantine=True)
    stage()
    Mender(lake.manifest, lake.hot).mend()
    stage()
    Retention(lake.manifest, [RetentionRule(days=2)]).apply()
    stage()
    return found


@pytest.mark.parametrize("reader", READERS)
def test_other_engines_read_what_the_manifest_says_whatever_is_done_to_the_lake(
    stages: list[Stage], reader: Reader
) -> None:
    assert [rows_of(reader(stage.root / "readings")) == stage.rows for stage in stages] == [True] * 6
    assert [len(stage.rows) for stage in stages] == [30, 30, 30, 25, 30, 25]
    assert sum(reader(stages[-1].root / "rollups/1h")["count"].to_pylist()) > 0


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A lake of two days, sealed and kept by the hour, with a checkpoint every ten versions."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 10)
        lake = Published(tmp_path_factory.mktemp("long"))
        lake.hours(45, kept=True)
    return lake


@pytest.mark.parametrize("reader", READERS)
def test_a_long_log_has_checkpoints_and_stays_short(long: Published, reader: Reader) -> None:
    names = [path.name for path in (long.readings / FOLDER).iterdir()]
    # A day at one to two versions an hour, the last checkpoint before it, and what came since.
    assert len(names) < 70
    assert f"{0:020d}.json" not in names
    assert rows_of(reader(long.readings)) == long.expected()
    assert long.log().version > 45


@pytest.mark.parametrize("reader", READERS)
def test_several_gateways_are_one_table(tmp_path: Path, reader: Reader) -> None:
    lakes = [Published(tmp_path, gateway) for gateway in ("gw-a", "gw-b")]

    for _ in range(2):
        for lake in lakes:
            lake.hours(1)
    Compactor(lakes[0].manifest).compact()
    lakes[0].publish()

    found = rows_of(reader(tmp_path / "readings"))
    assert found == [row for lake in lakes for row in lake.expected()]
    described = [json.loads(line) for path in (tmp_path / "readings" / FOLDER).glob("*.json") for line in path.open()]
    assert len([line for line in described if "metaData" in line]) == 1


@pytest.mark.parametrize("reader", READERS)
def test_small_tables_are_there_too(tmp_path: Path, reader: Reader) -> None:
    lake = Published(tmp_path)
    lake.hot.rows = [hot_row(1, 1.0)]
    lake.sealer.seal(lake.hot, [Beside(layout.THINGS, 1, [DESCRIPTION])])
    lake.publish()

    assert reader(tmp_path / "things").select(["thing_id", "td_version", "gateway"]).to_pylist() == [
        {"thing_id": LAMP, "td_version": 1, "gateway": "gw"}
    ]
    assert not (tmp_path / "presence").exists()


def test_merging_is_no_change_for_whoever_follows_the_table(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(4)
    assert {add["dataChange"] for add in actions_of(lake, "add")} == {True}

    Compactor(lake.manifest).compact()
    lake.publish()

    assert {one["dataChange"] for kind in ("add", "remove") for one in actions_of(lake, kind)} == {False}
    lake.now += 2 * DAY
    Retention(lake.manifest, [RetentionRule(days=1)]).apply()
    lake.publish()
    assert {one["dataChange"] for one in actions_of(lake, "remove")} == {True}


def test_the_log_bounds_rows_things_and_times_of_each_file(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    late = hot_row(3, 1.0, created=layout.TIME_MAX, received=NOON, thing_id="dtw:a:z")
    lake.hot.rows = [hot_row(1, 1.0, created=NOON + 1_234), hot_row(2, 2.0, created=NOON + 2_000), late]
    lake.sealer.seal(lake.hot)
    lake.publish()

    adds = {add["partitionValues"]["day"]: add for add in actions_of(lake, "add")}

    stats = json.loads(adds["2026-01-01"]["stats"])
    assert stats["numRecords"] == 2
    assert (stats["minValues"]["row_id"], stats["maxValues"]["row_id"]) == (1, 2)
    assert (stats["minValues"]["thing_id"], stats["maxValues"]["thing_id"]) == (LAMP, LAMP)
    assert stats["minValues"]["created"] == "2026-01-01T12:00:00.001Z"
    assert stats["maxValues"]["created"] == "2026-01-01T12:00:00.002Z"
    assert "created" not in json.loads(adds["9999-12-31"]["stats"])["maxValues"]
    part = next(one for one in lake.snapshot().parts if one.day == "2026-01-01")
    assert adds["2026-01-01"]["size"] == (tmp_path / part.path).stat().st_size
    assert adds["2026-01-01"]["tags"]["sha256"] == part.sha256


def test_publishing_again_writes_nothing_in_this_process_and_in_the_next(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(2)

    assert lake.publish() == 0
    assert DeltaTables(lake.manifest).publish(lake.snapshot()) == 0


def test_a_lake_that_was_there_before_is_published_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for row_id in range(1, 4):
        lake.sealer.seal(Rows([hot_row(one, one / 7) for one in range(1, row_id + 1)]))

    assert DeltaTables(lake.manifest).publish(lake.snapshot()) == 1

    assert by_the_protocol(tmp_path / "readings")["row_id"].to_pylist() == [1, 2, 3]


def test_what_is_missing_or_damaged_is_in_the_log_so_that_it_is_noticed(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(1)
    shutil.rmtree(lake.readings / FOLDER)
    first, second = lake.snapshot().parts
    (tmp_path / first.path).unlink()
    (tmp_path / second.path).write_bytes(b"torn")

    DeltaTables(lake.manifest).publish(lake.snapshot())

    adds = {add["tags"]["sha256"]: add for add in actions_of(lake, "add")}
    assert [adds[part.sha256]["size"] for part in (first, second)] == [1, 4]
    assert json.loads(adds[first.sha256]["stats"]) == {"numRecords": first.rows}


def test_what_another_program_did_to_our_files_is_undone(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(2)
    log = lake.log()
    gone = next(iter(log.live))
    foreign = {"path": "gateway=gw/x.parquet", "partitionValues": {"gateway": "gw"}, "stats": '{"numRecords":1}'}
    log.commit([{"remove": {"path": gone}}, {"add": {**foreign, "size": 1, "dataChange": True}}], 1)

    lake.hours(1)

    assert lake.log().live.keys() == {one.path.removeprefix("readings/") for one in lake.snapshot().parts}


def test_columns_that_a_newer_version_has_are_added_and_none_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Published(tmp_path)
    lake.hours(1)
    before = lake.log().described
    more = {**layout.TABLES, layout.READINGS: (*layout.READINGS_COLUMNS, Column("site", ColumnType.STRING))}
    with monkeypatch.context() as newer:
        newer.setattr(delta_tables, "TABLES", more)
        lake.hours(1)
    lake.hours(1)

    after = lake.log().described
    assert before is not None
    assert after is not None
    names = [field["name"] for field in json.loads(after["schemaString"])["fields"]]
    assert names == [field["name"] for field in json.loads(before["schemaString"])["fields"]] + ["site"]
    assert after["id"] == before["id"]


@pytest.mark.parametrize("name", [f"{1:020d}.json", f"{4:020d}.checkpoint.parquet"])
def test_a_damaged_log_is_named_and_made_again_where_it_is_removed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 5)
    lake = Published(tmp_path)
    lake.hours(3 if name.endswith("json") else 6)
    (lake.readings / FOLDER / name).write_bytes(b"{")

    with pytest.raises(StorageDamaged, match="remove it"):
        DeltaTables(lake.manifest).publish(lake.snapshot())

    shutil.rmtree(lake.readings / FOLDER)
    DeltaTables(lake.manifest).publish(lake.snapshot())
    assert rows_of(by_the_protocol(lake.readings)) == lake.expected()


def test_a_log_that_lacks_a_version_is_not_followed(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(3)
    (lake.readings / FOLDER / f"{1:020d}.json").unlink()

    with pytest.raises(StorageDamaged, match="lacks version 1"):
        DeltaTables(lake.manifest).publish(lake.snapshot())


def test_a_writer_that_never_comes_first_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Published(tmp_path)
    lake.hours(1)

    def taken(*_: object) -> None:
        raise Conflict("taken")

    monkeypatch.setattr(LocalPlace, "create", taken)
    with pytest.raises(StorageFailed, match="without end"):
        DeltaTables(lake.manifest)._publish("readings", [], 2)


def test_killed_at_any_step_the_log_is_whole_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    steps = [getattr(LocalPlace, name) for name in ("create", "write_all", "remove")]
    step = -1
    is_done = False
    while not is_done:
        step += 1
        lake = Published(tmp_path / str(step))
        lake.hours(3)
        before = lake.expected()
        Compactor(lake.manifest).compact()
        left = step

        def counted(work: Callable[..., Any]) -> Callable[..., Any]:
            def stepping(*given: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return work(*given)

            return stepping

        with monkeypatch.context() as dying:
            for work in steps:
                dying.setattr(LocalPlace, work.__name__, counted(work))
            try:
                tables = DeltaTables(lake.manifest)
                lake.now += 2 * DAY
                tables.publish(lake.snapshot())
                lake.now += 2 * DAY
                tables.trim()
                is_done = True
            except KeyboardInterrupt:
                pass
        assert rows_of(by_the_protocol(lake.readings)) == before, step
        DeltaTables(lake.manifest).publish(lake.snapshot())
        assert rows_of(by_the_protocol(lake.readings)) == lake.expected() == before
    assert step > 3
