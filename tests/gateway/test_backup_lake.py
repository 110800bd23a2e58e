"""A lake elsewhere is in a backup that is asked to take it, each part once, and put back where it is gone."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from gateway.backup.encryption import Keyring
from gateway.backup.folders import found_folder
from gateway.backup.places import source_of
from gateway.backup.restoring import restore, verify
from gateway.config import Config
from gateway.home import gateway_id
from tests.gateway.test_backup import said, taken_of, used
from tests.support import skep
from things.errors import Conflict, StorageDamaged, StorageFailed
from things.lake import MANIFEST
from things.records import HistoryQuery
from twin.lake.places import place_of

pytestmark = pytest.mark.anyio


def contents(lake: str) -> Mapping[str, bytes]:
    place = place_of(lake)
    return {found.path: place.read(found.path) for found in place.walk("")}


def emptied(lake: str) -> None:
    place = place_of(lake)
    for found in list(place.walk("")):
        place.remove(found.path)


def configured(home: Path, lake: str) -> Config:
    """The configuration stands in the folder, as the restored one will."""
    home.mkdir(exist_ok=True)
    (home / "skep.toml").write_text(f'[history]\nlake = "{lake}"\n')
    return Config.load(home)


def shared(to: Path) -> Mapping[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (to / "shared").rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "is_remote"), [("backups", True), ("site.tar", False)])
async def test_lake_that_is_gone_is_put_back(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, is_remote: bool
) -> None:
    lake = request.getfixturevalue("s3_folder") if is_remote else str(tmp_path / "lake")
    home, to, new = tmp_path / "home", tmp_path / "to" / name, tmp_path / "new"
    config = configured(home, lake)
    async with skep(home, history={"lake": lake}) as runtime:
        await used(runtime)
        before = await said(runtime)
        await runtime.running.sealing.seal()
        sealed, kept = runtime.running.sealing.mark, contents(lake)
        taken = await taken_of(home, to, config=config, lake=True)
    emptied(lake)

    manifest, problems = verify(source_of(to, None))
    restore(source_of(to, None), new)

    assert not problems
    assert not taken.outside
    assert manifest.lake == lake
    assert set(contents(lake).items()) <= set(kept.items())
    assert {f"lake/{path}" for path in contents(lake)} <= {entry.path for entry in manifest.files}
    assert not (new / "lake").exists()
    async with skep(new, history={"lake": lake}) as runtime:
        assert await said(runtime) == before
        assert (await runtime.running.sealing.lake.status())["sealed"] == sealed
        assert (await runtime.running.sealing.seal())["rows"] == 0


async def test_only_new_parts_are_copied(tmp_path: Path, s3_folder: str) -> None:
    lake = s3_folder
    home, to = tmp_path / "home", tmp_path / "backups"
    config = configured(home, lake)
    async with skep(home, history={"lake": lake}) as runtime:
        await used(runtime)
        await taken_of(home, to, config=config, lake=True)
        before = shared(to)
        await runtime.running.sealing.seal()
        await taken_of(home, to, config=config, lake=True)

    assert before
    assert before.items() < shared(to).items()
    for name in found_folder(to, Keyring(None)).names():
        assert not verify(source_of(to / name, None))[1]


async def test_lake_that_has_gone_on_is_left_as_it_is(tmp_path: Path) -> None:
    home, to, new, lake = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new", str(tmp_path / "lake")
    config = configured(home, lake)
    async with skep(home, history={"lake": lake}) as runtime:
        await used(runtime)
        await taken_of(home, to, config=config, lake=True)
        await runtime.running.sealing.seal()
        rows = [row.row_id for row in await runtime.running.stores.twin.history.read(HistoryQuery(limit=1000))]
    kept = contents(lake)

    restore(source_of(to, None), new)

    assert contents(lake) == kept
    async with skep(new, history={"lake": lake}) as runtime:
        assert (await runtime.running.sealing.lake.status())["sealed"] >= rows[-1]


async def test_lake_with_another_past_is_refused(tmp_path: Path) -> None:
    home, to, new, lake = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new", tmp_path / "lake"
    config = configured(home, str(lake))
    async with skep(home, history={"lake": str(lake)}) as runtime:
        await used(runtime)
        await taken_of(home, to, config=config, lake=True)
    commit = next((lake / MANIFEST / f"gateway={gateway_id(home)}").glob("*0*.json"))
    commit.write_bytes(b"{}")

    with pytest.raises(Conflict):
        restore(source_of(to, None), new)

    assert not (new / "skep.toml").exists()


async def test_damaged_or_missing_part_is_not_backed_up(tmp_path: Path) -> None:
    home, lake = tmp_path / "home", tmp_path / "lake"
    config = configured(home, str(lake))
    async with skep(home, history={"lake": str(lake)}) as runtime:
        await used(runtime)
        part = max(lake.rglob("*.parquet"), key=partial(str))
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        with pytest.raises(StorageDamaged):
            await taken_of(home, tmp_path / "site.tar", config=config, lake=True)
        part.unlink()
        with pytest.raises(StorageFailed):
            await taken_of(home, tmp_path / "site.tar", config=config, lake=True)

    assert not (tmp_path / "site.tar").exists()
