"""Odd values and far times, over HTTP into the lake and back."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.support import PUMP, skep
from things.records import HistoryQuery
from things.times import rfc3339
from twin.lake.client import LakeClient

pytestmark = pytest.mark.anyio

METER = {
    **PUMP,
    "title": "Meter",
    "properties": {"ns": {"type": "integer"}, "t": {"type": "number"}, "label": {"type": "string"}},
}
SENT: list[tuple[str, Any, str]] = [
    ("t", 21.5, "2026-01-01T00:00:00Z"),
    ("label", "ok", "2026-01-01T00:00:00Z"),
    ("ns", 1767225600000000001, "0001-01-01T00:00:00Z"),
    ("t", 2**63 + 1, "1683-12-31T00:00:00Z"),
    ("ns", -(2**63), "1969-12-31T23:59:59.999999Z"),
]


async def test_readings_of_any_size_and_time_are_sealed_and_served_as_they_came(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        works, mia = await runtime.add("works", "agent"), await runtime.add("mia", role="manager")
        items = [
            {"v": 1, "operation": "publish_property", "thingID": "meter", "name": name, "data": value, "created": at}
            for name, value, at in SENT
        ]
        before_year_one = {**items[0], "created": "0001-01-01T00:30:00+01:00"}
        async with httpx.AsyncClient(base_url=runtime.http, timeout=60) as client:
            agent = {"authorization": f"Bearer {works.token}"}
            manager = {"authorization": f"Bearer {mia.token}"}
            with anyio.fail_after(60):
                await client.put("/agent/things/meter", json=METER, headers=agent)
                stored = (await client.post("/agent/batch", json=items, headers=agent)).json()
                refused = (await client.post("/agent/batch", json=[before_year_one], headers=agent)).json()
                hot = (await client.get("/things/dtw:works:meter/history", headers=manager)).json()["items"]
                report = await client.post("/rpc/dtw:history:lake/seal", headers=manager)
                lake = runtime.running.sealing.lake
                assert isinstance(lake, LakeClient)
                sealed = await lake.read(HistoryQuery())
                ready = (await client.get("/readyz")).json()

    assert (stored["stored"], refused.get("stored", 0)) == (len(SENT), 0)
    assert report.json()["rows"] == len(SENT)
    assert _sorted((item["name"], item["value"], item["created"]) for item in hot) == _sorted(SENT)
    assert _sorted((row.name, json.loads(row.value), rfc3339(row.created)) for row in sealed) == _sorted(SENT)
    assert "warnings" not in ready


def _sorted(rows: Any) -> list[tuple[str, Any, str]]:
    return sorted(rows, key=lambda row: (row[0], row[2]))
