"""Going back in time on a whole runtime: the past over HTTP, from hot files and from the lake."""

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from skep import Agent
from tests.support import PUMP, skep
from things.records import HistoryQuery
from things.times import parse_time, rfc3339

pytestmark = pytest.mark.anyio

TWIN = "/things/dtw:works:pump-1"
DAY = 86_400_000_000


async def test_a_thing_its_properties_and_the_directory_are_read_as_of_an_instant(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        works, vic = await runtime.add("works", "agent"), await runtime.add("vic", role="viewer")
        with anyio.fail_after(60):
            async with (
                httpx.AsyncClient(base_url=runtime.http, headers={"authorization": f"Bearer {vic.token}"}) as viewer,
                Agent(runtime.mqtt, works.name, works.token) as agent,
            ):
                agent.expose("pump-1", PUMP)
                await agent.flush()
                await agent.publish("pump-1", "flow", 1)
                await agent.flush()
                first = (await viewer.get(f"{TWIN}/history")).json()["items"][0]["created"]
                await agent.publish("pump-1", "flow", 2)
                agent.expose("pump-1", {**PUMP, "title": "Pump, repaired"})
                await agent.flush()

                async def past(path: str, **query: str) -> Any:
                    reply = await viewer.get(path, params={"asof": first, **query})
                    return reply.json() if reply.status_code == 200 else reply.status_code

                assert (await viewer.get(f"{TWIN}/properties/flow")).json() == 2
                assert await past(f"{TWIN}/properties/flow") == 1
                assert await past(f"{TWIN}/properties") == {"flow": 1}
                assert (await past(TWIN))["title"] == "Pump"
                assert (await viewer.get(TWIN)).json()["title"] == "Pump, repaired"
                assert TWIN.removeprefix("/things/") in [td["id"] for td in await past("/things")]
                assert await past(f"{TWIN}/properties/target") == 404
                assert await past("/things", filter="online") == 400
                before = rfc3339(parse_time(first) - DAY)
                assert await past(TWIN, asof=before) == 404
                assert await past("/things", asof=before) == []
                assert await past(TWIN, asof="yesterday") == 400

                reply = await viewer.post(
                    "/rpc/dtw:history:readings/difference", json={"thingID": "dtw:works:pump-1", "from": first}
                )
                (changed,) = reply.json()["items"]
                assert (changed["change"], changed["patch"]["title"]) == ("updated", "Pump, repaired")
                assert changed["properties"]["flow"]["from"]["value"] == 1
                assert changed["properties"]["flow"]["to"]["value"] == 2


async def test_history_and_the_past_are_whole_after_hot_files_went_and_over_a_restart(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        works, vic = await runtime.add("works", "agent"), await runtime.add("vic")
        async with httpx.AsyncClient(base_url=runtime.http) as client:
            headers = {"authorization": f"Bearer {works.token}"}
            await client.put("/agent/things/pump-1", json=PUMP, headers=headers)
            items = [
                {
                    "v": 1,
                    "operation": "publish_property",
                    "thingID": "pump-1",
                    "name": "flow",
                    "data": minute,
                    "created": f"2026-01-01T00:{minute:02}:00Z",
                }
                for minute in range(60)
            ]
            assert (await client.post("/agent/batch", json=items, headers=headers)).json()["stored"] == 60

    # A day later the first file is no longer written, and goes once it is sealed.
    folder = tmp_path / "history"
    written = next(folder.glob("20*.db"))
    written.rename(folder / "2026-01-01.db")
    async with skep(tmp_path, history={"keep_hot_days": 1.0}) as runtime:
        headers = {"authorization": f"Bearer {vic.token}"}
        async with (
            httpx.AsyncClient(base_url=runtime.http, headers=headers, timeout=30) as viewer,
            Agent(runtime.mqtt, works.name, works.token) as agent,
        ):
            agent.expose("pump-1", PUMP)
            await agent.publish("pump-1", "flow", 99)
            await agent.flush()
            before = (await viewer.get(f"{TWIN}/history")).json()["items"]
            await runtime.running.sealing.seal()
            history = runtime.running.stores.twin.history
            await history.drop(history.days[0])
            assert len(await history.read(HistoryQuery())) == 1

            with anyio.fail_after(60):
                assert (await viewer.get(f"{TWIN}/history")).json()["items"] == before
                values: list[Any] = []
                query = {"limit": "7", "order": "desc", "to": "2026-02-01T00:00:00Z"}
                while True:
                    page = (await viewer.get(f"{TWIN}/history", params=query)).json()
                    values += [item["value"] for item in page["items"]]
                    if "cursor" not in page:
                        break
                    query["cursor"] = page["cursor"]
                assert values == list(reversed(range(60)))
                rows, after = [], 0
                while True:
                    page = (await viewer.get("/history", params={"after": after, "limit": 25})).json()
                    rows += [item["value"] for item in page["items"]]
                    if "cursor" not in page:
                        break
                    after = page["cursor"]
                assert rows == [*range(60), 99]
                windows = (await viewer.get(f"{TWIN}/history?window=30m&agg=count,avg,last")).json()["items"]
                assert [(one["count"], one["last"]) for one in windows] == [(30, 29), (30, 59), (1, 99)]
                then = {"asof": "2026-01-01T00:30:30Z"}
                assert (await viewer.get(f"{TWIN}/properties/flow", params=then)).json() == 30

                part = next((tmp_path / "lake" / "readings").rglob("day=2026-01-01/*.parquet"))
                part.write_bytes(part.read_bytes()[:100])
                broken = await viewer.get(f"{TWIN}/history")
                assert broken.status_code >= 500
                assert broken.json()["code"] == "storage-damaged"
                assert part.name in broken.json()["detail"]
                assert (await viewer.get(f"{TWIN}/history?from=2026-02-01T00:00:00Z")).json()["items"] == before[-1:]
