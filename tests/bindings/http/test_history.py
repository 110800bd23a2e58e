"""History over HTTP: pages, filters, formats and windows."""

import csv
import io
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.bindings.http.support import House, lamp_house
from things.identity import AccountType, Role

pytestmark = pytest.mark.anyio

HISTORY = "/things/dtw:lights:lamp/history"


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        items: list[dict[str, Any]] = [
            {
                "v": 1,
                "operation": "publish_property",
                "thingID": "lamp",
                "name": "temperature",
                "data": minute / 2,
                "created": f"2026-01-01T00:{minute:02}:00Z",
            }
            for minute in range(20)
        ]
        items.append({**items[0], "name": "mode", "data": '=cmd|"x"\r\n', "created": "2026-01-01T00:20:00Z"})
        async with opened.client("lights") as lights:
            assert (await lights.post("/agent/batch", json=items)).json()["stored"] == 21
        yield opened


async def test_a_right_to_one_name_is_enough_to_ask_for_it(lamps: House) -> None:
    await lamps.account("ann", AccountType.CONSUMER, Role.NONE)
    rule: dict[str, Any] = {"id": "ann", "effect": "allow", "operations": ["history"], "accounts": ["ann"]}
    rule |= {"thing": "dtw:lights:lamp", "kind": "property", "name": "mode"}
    async with lamps.client("admin1") as admin, lamps.client("ann") as ann:
        assert (await ann.get(HISTORY, params={"name": "mode"})).status_code == 403
        assert (await admin.post("/rpc/dtw:authz:admin/putRule", json={"rule": rule})).status_code == 200

        items = (await ann.get(HISTORY, params={"name": "mode"})).json()["items"]
        assert [item["name"] for item in items] == ["mode"]
        windows = await ann.get(HISTORY, params={"name": "mode", "kind": "property", "window": "1h"})
        assert [item["name"] for item in windows.json()["items"]] == ["mode"]
        for wanted in ({"name": "temperature"}, {"name": "mode", "kind": "event"}, {"name": ["mode", "level"]}, {}):
            assert (await ann.get(HISTORY, params=wanted)).status_code == 403


async def test_history_is_read_by_name_time_and_page(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        span = {"name": "temperature", "from": "2026-01-01T00:05:00Z", "to": "2026-01-01T00:10:00Z"}
        page = (await viewer.get(HISTORY, params=span)).json()
        assert [item["value"] for item in page["items"]] == [2.5, 3.0, 3.5, 4.0, 4.5]
        assert set(page["items"][0]) == {
            "rowID",
            "thingID",
            "kind",
            "name",
            "value",
            "created",
            "received",
            "quality",
            "tdVersion",
        }
        values: list[Any] = []
        query = {"name": "temperature", "order": "desc", "limit": "7"}
        while True:
            page = (await viewer.get(HISTORY, params=query)).json()
            values += [item["value"] for item in page["items"]]
            if "cursor" not in page:
                break
            query["cursor"] = page["cursor"]
        assert values == [minute / 2 for minute in reversed(range(20))]


async def test_many_things_are_replayed_by_row(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        first = (await viewer.get("/history?limit=15&name=temperature")).json()
        rest = (await viewer.get(f"/history?limit=15&name=temperature&after={first['cursor']}")).json()
        assert len(first["items"]) == 15
        assert [item["value"] for item in rest["items"]] == [minute / 2 for minute in range(15, 20)]
        assert (await viewer.get("/history?thing=dtw:none:none")).json()["items"] == []


async def test_history_as_csv_keeps_every_value_and_is_no_formula(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.get(HISTORY, headers={"accept": "text/csv"})

    assert reply.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert [json.loads(row["value"]) for row in rows] == [*(minute / 2 for minute in range(20)), '=cmd|"x"\r\n']
    assert all(not row["value"].startswith(("=", "+", "@")) for row in rows)


async def test_history_as_arrow_is_made_outside_this_process(lamps: House) -> None:
    pytest.importorskip("pyarrow", reason="needs the lake extra")
    before = "pyarrow" in sys.modules
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.get(
            HISTORY, params={"limit": 5}, headers={"accept": "application/vnd.apache.arrow.stream"}
        )
    assert before or "pyarrow" not in sys.modules
    import pyarrow as pa

    table = pa.ipc.open_stream(reply.content).read_all()
    assert table.column("number").to_pylist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert str(table.schema.field("created").type) == "timestamp[us, tz=UTC]"
    assert table.column("tdVersion").to_pylist() == [1] * 5
    assert table.column("sourceTime").null_count == 5
    assert table.schema.metadata[b"skep.gateway"].startswith(b"gw-")
    assert 'rel="next"' in reply.headers["link"]


async def test_windows_sum_up(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.get(f"{HISTORY}?name=temperature&window=10m&agg=avg,min,max,count")

    assert reply.json()["items"] == [
        {
            "kind": "property",
            "name": "temperature",
            "from": f"2026-01-01T00:{begin:02}:00Z",
            "to": f"2026-01-01T00:{begin + 10:02}:00Z",
            "avg": begin / 2 + 2.25,
            "min": begin / 2,
            "max": begin / 2 + 4.5,
            "count": 10,
        }
        for begin in (0, 10)
    ]


async def test_a_number_of_points_is_asked_for(lamps: House) -> None:
    span = "from=2026-01-01T00:00:00Z&to=2026-01-01T00:20:00Z"
    async with lamps.client("viewer1") as viewer:
        found = (await viewer.get(f"{HISTORY}?name=temperature&{span}&points=5&agg=count")).json()

    assert found["window"] == 300
    assert [item["count"] for item in found["items"]] == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("kind=odd", 400),
        ("order=up", 400),
        ("limit=0", 400),
        ("limit=10001", 400),
        ("limit=10000", 200),
        ("from=2026", 400),
        ("cursor=nonsense", 400),
        ("window=5", 400),
        ("window=5m&agg=median", 400),
        ("agg=avg", 400),
        ("points=0", 400),
        ("points=2&window=5m", 400),
    ],
)
async def test_bad_history_queries_are_refused(lamps: House, query: str, status: int) -> None:
    async with lamps.client("viewer1") as viewer:
        assert (await viewer.get(f"{HISTORY}?{query}")).status_code == status


async def test_history_of_what_nobody_knows_is_404(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        assert (await viewer.get("/things/dtw:lights:none/history")).status_code == 404
        unacceptable = await viewer.get(HISTORY, headers={"accept": "image/png"})
        assert (unacceptable.status_code, unacceptable.json()["code"]) == (406, "not-acceptable")
