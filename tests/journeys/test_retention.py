"""Budgets from the configuration to the lake: what single series may keep, and what outlives them."""

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.support import PUMP, skep
from things.errors import ConfigInvalid
from things.times import rfc3339

pytestmark = pytest.mark.anyio

DAY = 86_400_000_000
LAKE = "/rpc/dtw:history:lake"


async def test_a_budget_lets_one_series_go_and_leaves_the_others(tmp_path: Path) -> None:
    budgets = [{"thing": "dtw:works:pump-1", "name": "flow", "days": 2}]
    async with skep(tmp_path, history={"budgets": budgets, "keep_days": 400}) as runtime:
        works, mia = await runtime.add("works", "agent"), await runtime.add("mia", role="manager")
        now = runtime.running.stores.clocks.now()
        items = [
            {
                "v": 1,
                "operation": "publish_property",
                "thingID": "pump-1",
                "name": name,
                "data": days,
                "created": rfc3339(now - days * DAY),
            }
            for days in range(6)
            for name in ("flow", "target")
        ]
        async with httpx.AsyncClient(base_url=runtime.http, timeout=60) as client:
            agent = {"authorization": f"Bearer {works.token}"}
            manager = {"authorization": f"Bearer {mia.token}"}

            async def call(method: str) -> Any:
                reply = await client.post(f"{LAKE}/{method}", headers=manager)
                assert reply.status_code == 200, reply.text
                return reply.json()

            with anyio.fail_after(60):
                await client.put("/agent/things/pump-1", json=PUMP, headers=agent)
                assert (await client.post("/agent/batch", json=items, headers=agent)).json()["stored"] == 12
                await call("seal")
                plan = await call("plan")
                gone = await call("retain")
                again = await call("plan")
                lake = runtime.running.sealing.lake
                status = await lake.status()

    assert plan["rules"] == [
        {"days": 400.0},
        {"thing_id": "dtw:works:pump-1", "name": "flow", "days": 2.0},
    ]
    assert (plan["rows"], plan["due_rows"]) == (12, 3)
    assert (gone["rows"], len(gone["rolled_up"])) == (3, 3)
    assert (again["rows"], again["due_rows"]) == (9, 0)
    assert status["rows"] == 9


@pytest.mark.parametrize(
    "budget",
    [
        {"days": 3},
        {"thing": "dtw:a:b"},
        {"thing": "dtw:a:b", "days": 0.5},
        {"name": "flow", "bytes": 0},
        {"nam": "flow"},
    ],
)
async def test_a_budget_that_says_too_little_is_refused(tmp_path: Path, budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match="budgets"):
        async with skep(tmp_path, history={"budgets": [budget]}):
            pass
