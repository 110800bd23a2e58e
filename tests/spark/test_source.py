"""The data source `skep`: batches, streams with limits, wide tables, a live gateway, and results published back."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark import lake as lakes
from spark.sources import register
from spark.sources.source import shared
from tests.spark.samples import after, at, collected, series
from tests.support import PUMP, Account, Skep, skep
from tests.twin.lake.samples import DAY, LAMP, NOON, SECOND, Lake, Rows, hot_row
from things.errors import StorageDamaged
from twin.lake.compaction import Compactor
from twin.lake.manifest import Manifest
from twin.lake.places import place_of
from twin.lake.sealing import Beside, Sealer

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def load(spark: SparkSession, **options: Any) -> DataFrame:
    reader = spark.read.format("skep")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def lake_of(root: Path, count: int = 10, gateway: str = "gw") -> Lake:
    lake = Lake(root, gateway)
    rows = [hot_row(row_id, row_id / 2, created=NOON + row_id * 3600 * SECOND) for row_id in range(1, count + 1)]
    for last in range(4, count + 4, 4):
        lake.sealer.seal(Rows(rows), up_to=last)
    return lake


def test_the_source_gives_what_the_bulk_path_gives(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    lake_of(tmp_path, 3, gateway="other")

    assertDataFrameEqual(load(spark, lake=lake.root), lakes.readings(spark, lake.root))


@pytest.mark.parametrize("is_local", [True, False])
def test_of_the_manifests_only_that_of_the_gateway_is_read_and_nothing_behind_its_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    lake = lake_of(tmp_path)
    lake_of(tmp_path, 3, gateway="other")
    lake.manifest.checkpoint(lake.snapshot())
    lake.sealer.seal(Rows([hot_row(11, 1.0)]))
    (tmp_path / "_manifest/gateway=gw/000000000001.json").write_bytes(b"{")
    for path in (tmp_path / "_manifest/gateway=other").glob("0*.json"):
        path.write_bytes(b"{")
    if not is_local:
        monkeypatch.setattr(lakes, "_local", lambda _: None)

    (found,) = lakes.snapshots(spark, f"file://{tmp_path}", ["gw"])

    assert found == lake.snapshot()
    for gateways in (["other"], ["gw", "other"], [], ["nobody"]):
        with pytest.raises(StorageDamaged):
            lakes.snapshots(spark, f"file://{tmp_path}", gateways)


def test_options_prune_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [hot_row(1, 1.0), hot_row(2, 2.0, name="other"), hot_row(3, 3.0, created=NOON + DAY, kind="event")]
    lake.sealer.seal(Rows(rows))

    def ids(**options: Any) -> list[int]:
        return sorted(row.row_id for row in load(spark, lake=lake.root, **options).collect())

    assert ids(names="other, missing") == [2]
    assert ids(kinds="event") == [3]
    assert ids(days="2026-01-01") == [1, 2]
    assert ids(things="dtw:nobody:x") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option lake, or options url"),
        ({"lake": "x", "colour": "red"}, "no option colour"),
        ({"lake": "x", "maxRowsPerBatch": "many"}, "maxRowsPerBatch"),
        ({"lake": "/nowhere/at/all"}, "no manifest"),
        ({"url": "http://127.0.0.1:9", "token": "x"}, "no gateway answers"),
    ],
)
def test_wrong_options_are_refused_with_a_reason(spark: SparkSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        load(spark, **options).collect()


MODEL = {
    "@type": ["Lamp", "skep:Sample"],
    "properties": {
        "temperature": {"type": "number", "unit": "Cel", "minimum": -40, "maximum": 120, "title": "Temperature"},
        "count": {"type": "integer"},
        "on": {"type": "boolean"},
    },
    "events": {"alarm": {"data": {"type": "string"}}},
}


def test_a_model_is_one_wide_typed_table(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    row = {"thing_id": LAMP, "td_version": 1, "published": NOON, "td": json.dumps(MODEL)}
    rows = [
        hot_row(1, 20, created=NOON),
        hot_row(2, 3, name="count", created=NOON),
        hot_row(3, True, name="on", created=NOON + SECOND),
        hot_row(4, "hot", name="alarm", kind="event", created=NOON + SECOND),
        hot_row(5, 21.5, created=NOON),
        hot_row(6, 1.0, thing_id="dtw:agent1:other"),
    ]
    lake.sealer.seal(Rows(rows), [Beside("things", 1, [row])], up_to=2)
    lake.sealer.seal(Rows(rows))

    table = load(spark, lake=lake.root, model="Lamp")

    types = {field.name: field.dataType.simpleString() for field in table.schema.fields}
    assert types == {
        "gateway": "string", "thing_id": "string", "created": "timestamp",
        "alarm": "string", "count": "bigint", "on": "boolean", "temperature": "double",
    }  # fmt: skip
    metadata = table.schema["temperature"].metadata
    assert metadata == {"kind": "property", "unit": "Cel", "minimum": -40, "maximum": 120, "title": "Temperature"}
    found = collected(table.orderBy("created"), "thing_id", "created", "temperature", "count", "on", "alarm")
    assert found == [(LAMP, at(NOON), 21.5, 3, None, None), (LAMP, at(NOON + SECOND), None, None, True, "hot")]
    with pytest.raises(PySparkException, match="no Thing in the lake is of the model"):
        load(spark, lake=lake.root, model="Toaster")


def streamed(spark: SparkSession, root: Path, name: str, **options: Any) -> list[list[int]]:
    """Row ids by batch of one run over all that is there."""
    batches: list[list[int]] = []

    def take(frame: DataFrame, _number: int) -> None:
        batches.append(sorted(row.row_id for row in frame.collect()))

    reader = spark.readStream.format("skep").option("lake", str(root / "lake"))
    for key, value in options.items():
        reader = reader.option(key, str(value))
    query = (
        reader.load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(root / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def test_a_stream_that_goes_on_keeps_to_its_limit_too(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", 10)
    counts: list[int] = []
    stream = spark.readStream.format("skep").option("lake", str(lake.root)).option("maxRowsPerBatch", 4).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )

    try:
        query.processAllAvailable()
        assert counts == [4, 4, 2]
        lake.sealer.seal(Rows([hot_row(row_id, 1.0) for row_id in range(1, 17)]))
        query.processAllAvailable()
        assert counts == [4, 4, 2, 4, 2]
    finally:
        query.stop()


def test_ranges_say_where_the_rows_of_a_batch_are(spark: SparkSession, tmp_path: Path) -> None:
    lake_of(tmp_path / "lake", 6)
    lake_of(tmp_path / "lake", 3, gateway="other")
    batches: list[list[tuple[Any, ...]]] = []
    stream = spark.readStream.format("skep").option("lake", str(tmp_path / "lake")).option("ranges", "true")
    query = (
        stream.option("maxRowsPerBatch", 4)
        .load()
        .writeStream.foreachBatch(lambda frame, _: batches.append(sorted(map(tuple, frame.collect()))))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    assert batches == [[("gw", 1, 2), ("other", 1, 2)], [("gw", 3, 5), ("other", 3, 3)], [("gw", 6, 6)]]
    rows = lakes.readings(spark, tmp_path / "lake", rows={"gw": (5, 6), "other": (1, 2)})
    assert sorted((row.gateway, row.row_id) for row in rows.collect()) == [
        ("gw", 5),
        ("gw", 6),
        ("other", 1),
        ("other", 2),
    ]
    for wrong in ({"ranges": "yes"}, {"ranges": "true"}):
        with pytest.raises(PySparkException, match="ranges"):
            load(spark, lake=tmp_path / "lake", **wrong).collect()


def test_a_stream_reads_every_row_once_within_its_limit(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", 10)

    first = streamed(spark, tmp_path, "a", maxRowsPerBatch=4)
    Compactor(lake.manifest).compact()
    rows = [hot_row(row_id, 1.0) for row_id in range(1, 13)]
    lake.sealer.seal(Rows(rows))
    second = streamed(spark, tmp_path, "a", maxRowsPerBatch=4)
    whole = streamed(spark, tmp_path, "b")

    assert first == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert second == [[11, 12]]
    assert whole == [list(range(1, 13))]


def test_a_lake_on_an_object_store_is_read_and_streamed(spark: SparkSession, s3_folder: str, tmp_path: Path) -> None:
    sealer = Sealer(Manifest(place_of(s3_folder), "gw", lambda: NOON))
    rows = [hot_row(row_id, row_id / 2) for row_id in range(1, 8)]
    for last in (3, 7):
        sealer.seal(Rows(rows), up_to=last)

    found = load(spark, lake=s3_folder).orderBy("row_id")
    stream = spark.readStream.format("skep").option("lake", s3_folder).option("maxRowsPerBatch", 5).load()
    batches: list[int] = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: batches.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    assert collected(found, "row_id", "value_double") == [(row_id, row_id / 2) for row_id in range(1, 8)]
    assert batches == [5, 2]


class Gateway(NamedTuple):
    running: Skep
    agent: Account
    service: Account
    manager: Account


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A running gateway with a pump that published, a service, and a manager who reads."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(skep(tmp_path / "home")) as running,
    ):
        agent = portal.call(running.add, "agent1", "agent")
        service = portal.call(running.add, "jobs", "service")
        manager = portal.call(running.add, "boss", "consumer", "manager")
        with httpx.Client(base_url=running.http, headers={"Authorization": f"Bearer {agent.token}"}) as client:
            client.put(
                "/agent/things/pump", json=PUMP, headers={"Content-Type": "application/td+json"}
            ).raise_for_status()
            for second in range(5):
                created = datetime.fromtimestamp(NOON / 1e6 - 86_400 + second, UTC).isoformat().replace("+00:00", "Z")
                client.post(
                    "/agent/things/pump/properties", json={"flow": second * 1.5}, params={"created": created}
                ).raise_for_status()
        yield Gateway(running, agent, service, manager)


def test_a_running_gateway_is_read_by_its_url(spark: SparkSession, gateway: Gateway) -> None:
    running, _, _, manager = gateway

    table = load(spark, url=running.http, token=manager.token, things="dtw:agent1:pump")

    found = collected(table.orderBy("row_id"), "thing_id", "name", "created", "value_double")
    assert found == [("dtw:agent1:pump", "flow", after(second - 86_400), second * 1.5) for second in range(5)]
    with pytest.raises(PySparkException, match="does not accept this token"):
        load(spark, url=running.http, token="wrong").collect()


def test_a_running_gateway_gives_the_rows_as_its_lake_does(spark: SparkSession, gateway: Gateway) -> None:
    running, agent, _, manager = gateway
    later = {**PUMP, "properties": {"flow": {"type": "integer", "unit": "l/h"}, "note": {}}}
    with httpx.Client(base_url=running.http, headers={"Authorization": f"Bearer {agent.token}"}) as one:
        one.put("/agent/things/pump", json=later, headers={"Content-Type": "application/td+json"}).raise_for_status()
        for value in (2.0, 7):
            one.post("/agent/things/pump/properties", json={"flow": value, "note": [1]}).raise_for_status()
        ahead = {"created": "2099-01-01T00:00:00Z"}
        one.post("/agent/things/pump/properties", json={"flow": 8}, params=ahead).raise_for_status()
    live = load(spark, url=running.http, token=manager.token).orderBy("row_id").collect()

    with httpx.Client(base_url=running.http, headers={"Authorization": f"Bearer {manager.token}"}) as client:
        sealing = client.post("/things/dtw:history:lake/actions/seal", headers={"prefer": "wait=60"}, timeout=150)
    assert sealing.status_code in (200, 201), sealing.text
    sealed = lakes.readings(spark, running.running.stores.home / "lake").orderBy("row_id").collect()

    assert {row.td_version for row in live} == {1, 2}
    assert {row.unit for row in live if row.name == "flow"} == {PUMP["properties"]["flow"].get("unit"), "l/h"}
    assert sum(row.source_time is not None for row in live) == 1
    assert [row.asDict() for row in live] == [row.asDict() for row in sealed]


def test_results_become_a_virtual_thing_and_are_published_once(
    spark: SparkSession, tmp_path: Path, gateway: Gateway
) -> None:
    running, _, service, manager = gateway
    lake = Lake(tmp_path / "lake")
    now = [(float(second), second / 2) for second in range(0, 600, 60)]
    lake.sealer.seal(Rows(series(*now)))
    from spark.jobs import rollup

    table = rollup.run(spark, lake.root, window="5m")
    for _ in range(2):
        (
            table.write.format("skep")
            .mode("append")
            .options(url=running.http, token=service.token, thing="rollups", created="window_start", title="Roll-ups")
            .save()
        )

    with httpx.Client(base_url=running.http, headers={"Authorization": f"Bearer {manager.token}"}) as client:
        items = client.get("/things/dtw:jobs:rollups/history").raise_for_status().json()["items"]
        td = client.get("/things/dtw:jobs:rollups").raise_for_status().json()
    assert [(item["value"]["window_start"], item["value"]["count"]) for item in items] == [
        ("2026-01-01T12:00:00Z", 5),
        ("2026-01-01T12:05:00Z", 5),
    ]
    assert td["title"] == "Roll-ups"


@pytest.mark.parametrize(
    ("waiting", "room", "shares"),
    [
        ({"a": 10_000, "b": 10_000, "c": 10_000}, 999, {"a": 333, "b": 333, "c": 333}),
        ({"a": 5, "b": 10_000, "c": 100}, 1_000, {"a": 5, "b": 895, "c": 100}),
        ({"a": 5, "b": 7}, 1_000, {"a": 5, "b": 7}),
        ({"a": 9, "b": 8, "c": 20}, 2, {"a": 1, "b": 0, "c": 1}),
        ({"a": 9, "b": 0}, 4, {"a": 4, "b": 0}),
        ({}, 4, {}),
    ],
)
def test_each_gateway_goes_on_in_each_batch(waiting: dict[str, int], room: int, shares: dict[str, int]) -> None:
    assert shared(waiting, room) == shares
