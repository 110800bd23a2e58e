"""Damaged parts of a lake, repaired while nothing runs: from a backup, from hot rows, or not at all."""

from functools import partial
from pathlib import Path

import anyio.to_thread
import httpx
import pytest

from gateway.backup.places import source_of
from gateway.backup.taking import take
from gateway.config import Config
from gateway.home import held
from gateway.inventory import read_inventory
from gateway.repair.repairing import Outcome, repair
from tests.support import PUMP, Skep, skep
from things.records import HistoryQuery
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
PASSPHRASE = "correct horse battery staple"


async def sealed_and_backed_up(home: Path, to: Path, passphrase: str | None) -> list[bytes]:
    """The values of ten events, which are sealed, and in the backup."""
    async with skep(home) as runtime:
        works = await runtime.add("works", "agent")
        await runtime.running.stores.twin.directory.put(THING, ThingDescription.of(PUMP, agent=True), agent="works")
        headers = {"authorization": f"Bearer {works.token}"}
        async with httpx.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False) as agent:
            for number in range(10):
                (await agent.post("/agent/things/pump-1/events/alarm", json=str(number))).raise_for_status()
        await runtime.running.sealing.seal()
        await anyio.to_thread.run_sync(partial(take, home, to, config=Config(), passphrase=passphrase))
        return await values_of(runtime)


async def values_of(runtime: Skep) -> list[bytes]:
    rows = await runtime.running.stores.twin.history.read(HistoryQuery(things=(THING,), limit=100))
    return [bytes(row.value) for row in rows]


async def repaired(home: Path, *only: str, backup: Path | None = None, passphrase: str | None = None) -> Outcome:
    source = None if backup is None else source_of(backup, passphrase)
    with held(home):
        found = await anyio.to_thread.run_sync(partial(repair, home, Config(), only, source))
    return next(one for one in found if one.store == "lake")


def damaged(home: Path) -> Path:
    part = next((home / "lake" / "readings").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    return part


def without_hot_rows(home: Path) -> None:
    for path in (home / "history").glob("*.db*"):
        path.unlink()


@pytest.mark.parametrize(("name", "passphrase"), [("backups", None), ("site.tar.gz", PASSPHRASE)])
async def test_a_damaged_part_comes_back_from_a_backup(tmp_path: Path, name: str, passphrase: str | None) -> None:
    home, to = tmp_path / "home", tmp_path / name
    values = await sealed_and_backed_up(home, to, passphrase)
    part = damaged(home)
    without_hot_rows(home)

    lost = await repaired(home)
    assert lost.is_lost
    assert "0 of its 10 rows are still hot" in lost.detail
    done = await repaired(home, "lake", backup=to, passphrase=passphrase)

    assert (done.is_repaired, done.is_lost) == (True, False)
    assert done.detail == "1 parts with 10 rows are whole again, 1 of them from the backup"
    assert part.exists()
    assert (await repaired(home, "lake")).detail == "whole"
    inventory = read_inventory(home)
    assert inventory is not None
    assert inventory.asked[-1].startswith("repair lake: 1 parts")
    assert len(values) == 10


async def test_a_damaged_part_is_made_again_from_hot_rows_and_is_served(tmp_path: Path) -> None:
    home = tmp_path / "home"
    values = await sealed_and_backed_up(home, tmp_path / "site.tar", None)
    damaged(home)

    assert (await repaired(home)).is_repaired

    async with skep(home) as runtime:
        assert await values_of(runtime) == values


async def test_a_manifest_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await sealed_and_backed_up(home, tmp_path / "site.tar", None)
    for path in (home / "lake" / "_manifest").rglob("*1.json"):
        path.write_bytes(b"{")

    done = await repaired(home, "lake")

    assert done.is_lost
    assert "is not JSON" in done.detail
