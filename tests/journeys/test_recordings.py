"""Real recordings through a whole runtime: late rows, repeated times and jumps of the clock, and nothing lost."""

import csv
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.support import skep
from things.lake import Quality

pytestmark = pytest.mark.anyio

RECORDINGS = ("ambient_temperature_system_failure.csv", "machine_temperature_system_failure.csv")
TD = {
    "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
    "title": "Machine",
    "properties": {"temperature": {"type": "number", "readOnly": True, "skep:interval": "PT1H"}},
}
HISTORY = "/things/dtw:works:machine/history"


def recording(name: str) -> list[tuple[str, float]]:
    folder = os.environ.get("SKEP_RECORDINGS")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"SKEP_RECORDINGS names no folder with {name}")
    with (Path(folder) / name).open() as file:
        return [
            (
                f"{datetime.fromisoformat(line['timestamp']).replace(tzinfo=UTC):%Y-%m-%dT%H:%M:%SZ}",
                float(line["value"]),
            )
            for line in csv.DictReader(file)
        ]


@pytest.mark.parametrize("name", RECORDINGS)
async def test_a_recording_with_late_and_repeated_rows_is_one_whole_series(tmp_path: Path, name: str) -> None:
    rows = recording(name)
    # A few hours twice over, as a logger writes them when its clock is set back; a tenth comes in at the end.
    rows += rows[1_000:1_100]
    chance = random.Random(1)
    late = set(chance.sample(range(len(rows)), len(rows) // 10))
    arriving = [row for at, row in enumerate(rows) if at not in late] + [rows[at] for at in sorted(late)]
    async with skep(tmp_path, limits={"messages_per_second": 1e6, "message_burst": 1e6}) as runtime:
        works, vic = await runtime.add("works", "agent"), await runtime.add("vic", role="viewer")
        agent = {"authorization": f"Bearer {works.token}"}
        async with httpx.AsyncClient(base_url=runtime.http, timeout=60) as client:
            await client.put("/agent/things/machine", json=TD, headers=agent)
            for first in range(0, len(arriving), 4_000):
                items = [
                    {
                        "v": 1,
                        "operation": "publish_property",
                        "thingID": "machine",
                        "name": "temperature",
                        "data": value,
                        "created": created,
                    }
                    for created, value in arriving[first : first + 4_000]
                ]
                stored = (await client.post("/agent/batch", json=items, headers=agent)).json()
                assert stored["stored"] == len(items)
            hot = await everything(client, vic.token)

    # The day passes: its file is no longer written, is sealed, and goes.
    folder = tmp_path / "history"
    next(folder.glob("20*.db")).rename(folder / "2014-01-01.db")
    async with skep(tmp_path) as runtime, httpx.AsyncClient(base_url=runtime.http, timeout=60) as client:
        await client.post("/agent/things/machine/properties", json={"temperature": 0.5}, headers=agent)
        await runtime.running.sealing.seal()
        history = runtime.running.stores.twin.history
        assert len(history.days) == 2
        await history.drop(history.days[0])
        with anyio.fail_after(120):
            sealed = await everything(client, vic.token)

    assert Counter((item["created"], item["value"]) for item in hot) == Counter(rows)
    assert [(item["created"], item["rowID"]) for item in hot] == sorted(
        (item["created"], item["rowID"]) for item in hot
    )
    assert sealed[:-1] == hot
    assert sealed[-1]["value"] == 0.5
    flags = Counter(flag for item in hot for flag in Quality(item["quality"]))
    assert (flags[Quality.LATE], flags[Quality.MISSING]) == lateness(arriving)
    assert not flags[Quality.TYPE]


def lateness(arriving: list[tuple[str, float]]) -> tuple[int, int]:
    """Rows older than one before them, and rows after a gap of more than two and a half intervals."""
    newest, late, after_gap = arriving[0][0], 0, 0
    for created, _ in arriving[1:]:
        gap = datetime.fromisoformat(created) - datetime.fromisoformat(newest)
        late += gap < timedelta(0)
        after_gap += gap > timedelta(hours=2.5)
        newest = max(newest, created)
    return late, after_gap


async def everything(client: httpx.AsyncClient, token: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query = {"limit": "3000"}
    while True:
        reply = await client.get(HISTORY, params=query, headers={"authorization": f"Bearer {token}"})
        page = reply.json()
        found += page["items"]
        if "cursor" not in page:
            return found
        query["cursor"] = page["cursor"]
