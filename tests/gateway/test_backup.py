"""A home is backed up while its runtime works, checked, and restored elsewhere as an equal one, or not at all."""

import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from authn.audit import read as audit_of
from gateway.backup.encryption import CHUNK, DecryptedReader, EncryptedWriter, Keyring, new_key
from gateway.backup.folders import found_folder
from gateway.backup.manifest import Entry, Manifest, manifest_of, manifest_text
from gateway.backup.places import source_of
from gateway.backup.restoring import AHEAD, restore, verify
from gateway.backup.stillness import allowed_to_remove, still
from gateway.backup.taken import Taken, last_taken
from gateway.backup.taking import take
from gateway.config import Config
from gateway.home import BEGUN, RESTORING, begun, held
from gateway.inventory import read_inventory, read_notes
from tests.support import PUMP, Account, Skep, skep
from things.errors import (
    Conflict,
    Forbidden,
    Invalid,
    Locked,
    NewerSchema,
    NotFound,
    SkepError,
    StorageDamaged,
)
from things.records import HistoryQuery, LedgerQuery
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
PASSPHRASE = "correct horse battery staple"


async def used(runtime: Skep) -> tuple[Account, Account]:
    """A Thing, a latest value, twenty events of which ten are sealed, a request that waits."""
    works, mia = await runtime.add("works", "agent"), await runtime.add("mia")
    described = ThingDescription.of(PUMP, agent=True)
    await runtime.running.stores.twin.directory.put(THING, described, agent="works")
    async with _client(runtime, works) as agent:
        for number in range(10):
            (await agent.post("/agent/things/pump-1/events/alarm", json=str(number))).raise_for_status()
        await runtime.running.sealing.seal()
        for number in range(10, 20):
            (await agent.post("/agent/things/pump-1/events/alarm", json=str(number))).raise_for_status()
        (await agent.post("/agent/things/pump-1/properties", json={"flow": 7})).raise_for_status()
    async with _client(runtime, mia) as consumer:
        (await consumer.post(f"/things/{THING}/actions/setSpeed", json=3)).raise_for_status()
    return works, mia


def _client(runtime: Skep, account: Account) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {account.token}"}
    return httpx.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False, timeout=30)


async def taken_of(home: Path, to: Path, **options: Any) -> Taken:
    work = partial(take, home, to, config=options.pop("config", Config()), **options)
    return await anyio.to_thread.run_sync(work)


async def said(runtime: Skep) -> Mapping[str, Any]:
    """What a consumer sees: Things, values, rows, requests, accounts."""
    twin = runtime.running.stores.twin
    return {
        "things": sorted(twin.directory.ids()),
        "values": {kind: (value.value, value.row_id) for kind, value in twin.values.of_thing(THING).items()},
        "rows": [(row.row_id, row.value) for row in await twin.history.read(HistoryQuery(limit=1000))],
        "requests": [
            (row.request_id, row.state) for row in await twin.ledger.query(LedgerQuery(caller="mia", limit=100))
        ],
        "accounts": sorted(runtime.running.stores.authenticator.register.accounts),
    }


@pytest.mark.parametrize(
    ("name", "passphrase"),
    [("backups", None), ("backups", PASSPHRASE), ("site.tar", None), ("site.tar.gz", PASSPHRASE)],
)
async def test_backup_of_a_running_home_is_restored_as_an_equal_one(
    tmp_path: Path, name: str, passphrase: str | None
) -> None:
    home, to, new = tmp_path / "home", tmp_path / "to" / name, tmp_path / "new"
    async with skep(home) as runtime:
        works, _ = await used(runtime)
        before = await said(runtime)
        taken = await taken_of(home, to, passphrase=passphrase)
        last_row, seq = runtime.running.stores.twin.history.last_row, runtime.running.stores.twin.ledger.last_seq

    manifest, problems = verify(source_of(to, passphrase))
    restored = restore(source_of(to, passphrase), new)

    assert not problems
    assert (manifest.last_row, manifest.seq, taken.last_row) == (last_row, seq, last_row)
    assert restored.has_keys
    async with skep(new) as runtime:
        assert await said(runtime) == before
        assert not read_notes(new)
        async with _client(runtime, works) as agent:
            (await agent.post("/agent/things/pump-1/events/alarm", json="20")).raise_for_status()
        twin = runtime.running.stores.twin
        assert twin.history.last_row > last_row + AHEAD
        assert twin.ledger.last_seq == seq + AHEAD
        report = await runtime.running.sealing.seal()
        assert report["rows"] == 12  # sealed rows came along, and are not sealed again
        assert (await runtime.running.sealing.lake.status())["sealed"] == twin.history.last_row
        assert runtime.running.sealing.mark == twin.history.last_row
    acts = [act for act in audit_of(new / "audit") if act["act"] == "stores"]
    assert acts[-1]["target"] == f"restore of the backup of {manifest.begun}"


async def test_numbers_go_on_ahead_through_further_restarts(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home) as runtime:
        await used(runtime)
        last_row, seq = runtime.running.stores.twin.history.last_row, runtime.running.stores.twin.ledger.last_seq
        await taken_of(home, to)

    restore(source_of(to, None), new)

    for _ in range(2):
        async with skep(new) as runtime:
            twin = runtime.running.stores.twin
            assert twin.history.last_row >= last_row + AHEAD
            assert twin.ledger.last_seq >= seq + AHEAD


async def test_without_keys_everybody_needs_new_credentials(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home) as runtime:
        works, _ = await used(runtime)
        await taken_of(home, to, keys=False)

    restored = restore(source_of(to, None), new)

    assert not restored.has_keys
    with tarfile.open(to) as archive:
        assert not [name for name in archive.getnames() if name.partition("/")[0] in ("keys", "certs", "agents")]
    async with skep(new) as runtime:
        assert not read_notes(new)
        async with _client(runtime, works) as agent:
            assert (await agent.post("/agent/things/pump-1/events/alarm", json="20")).status_code == 401
        assert "works" in runtime.running.stores.authenticator.register.accounts


async def test_keys_of_a_backup_can_be_left_behind(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home):
        await taken_of(home, to)

    restored = restore(source_of(to, None), new, keys=False)

    assert not restored.has_keys
    assert not (new / "keys").exists()


async def test_parts_of_the_lake_are_copied_once(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home) as runtime:
        await used(runtime)
        await taken_of(home, to)
        before = {path: path.stat().st_mtime_ns for path in (to / "shared").rglob("*") if path.is_file()}
        await runtime.running.sealing.seal()
        await taken_of(home, to)

    after = {path: path.stat().st_mtime_ns for path in (to / "shared").rglob("*") if path.is_file()}
    assert before
    assert before.items() < after.items()
    for name in found_folder(to, Keyring(None)).names():
        assert not verify(source_of(to / name, None))[1]


async def test_only_the_newest_stay_with_what_they_need(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home) as runtime:
        await used(runtime)
        names = [(await taken_of(home, to, keep=2)).name for _ in range(4)]

    assert found_folder(to, Keyring(None)).names() == names[2:]
    assert not verify(source_of(to, None))[1]
    with pytest.raises(NotFound):
        source_of(to / names[0], None)


async def test_the_last_one_taken_is_the_newest_whatever_the_clock_says(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home):
        names = [
            (await taken_of(home, to, keep=2, clock=lambda at=at: at)).name
            for at in (3_000_000_000_000_000, 2_000_000_000_000_000, 1_000_000_000_000_000)
        ]

    assert found_folder(to, Keyring(None)).names() == names[1:]


async def test_a_part_that_is_damaged_in_the_folder_is_named_and_copied_again(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home) as runtime:
        await used(runtime)
        await taken_of(home, to)
        part = max((to / "shared").glob("??/*"), key=lambda path: path.stat().st_size)
        part.write_bytes(b"noise")
        (problem,) = verify(source_of(to, None))[1]
        assert part.name in problem

        await taken_of(home, to)

    for name in found_folder(to, Keyring(None)).names():
        assert not verify(source_of(to / name, None))[1]


async def test_a_damaged_manifest_keeps_nothing_from_being_backed_up(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home) as runtime:
        await used(runtime)
        first, second = (await taken_of(home, to)).name, (await taken_of(home, to)).name
        (to / second / "manifest.json").write_bytes(b"noise")
        shared = sorted((to / "shared").glob("??/*"))

        taken = await taken_of(home, to, keep=2)

    assert taken.removed == (first,)
    assert set(shared) <= set((to / "shared").glob("??/*"))
    assert not verify(source_of(to, None))[1]


async def test_another_passphrase_or_none_is_refused(tmp_path: Path) -> None:
    home, folder, file = tmp_path / "home", tmp_path / "backups", tmp_path / "site.tar"
    async with skep(home):
        for to in (folder, file):
            await taken_of(home, to, passphrase=PASSPHRASE)
            for given in (None, "another passphrase"):
                with pytest.raises(Forbidden):
                    verify(source_of(to, given))
                with pytest.raises(Forbidden):
                    restore(source_of(to, given), tmp_path / "new")
        with pytest.raises(Forbidden):
            await taken_of(home, folder, passphrase="another passphrase")
        with pytest.raises(Conflict):
            await taken_of(home, folder)
        with pytest.raises(Invalid):
            await taken_of(home, tmp_path / "other", passphrase="short")

    assert not any((tmp_path / "new").glob("*")) if (tmp_path / "new").exists() else True
    everything = b"".join(path.read_bytes() for path in [file, *folder.rglob("*")] if path.is_file())
    assert b"SQLite format 3" not in everything
    assert b"PRIVATE KEY" not in everything


async def test_folder_of_another_installation_is_refused(tmp_path: Path) -> None:
    to = tmp_path / "backups"
    async with skep(tmp_path / "one"):
        await taken_of(tmp_path / "one", to)
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "letter").touch()

    async with skep(tmp_path / "two"):
        with pytest.raises(Conflict):
            await taken_of(tmp_path / "two", to)
        with pytest.raises(Conflict):
            await taken_of(tmp_path / "two", tmp_path / "things")

    assert len(found_folder(to, Keyring(None)).names()) == 1


@pytest.mark.parametrize(
    ("name", "passphrase"),
    [("backups", None), ("backups", PASSPHRASE), ("site.tar", None), ("site.tar.gz", PASSPHRASE)],
)
async def test_every_damaged_file_is_noticed_and_nothing_is_restored(
    tmp_path: Path, name: str, passphrase: str | None
) -> None:
    home, to, new = tmp_path / "home", tmp_path / "to" / name, tmp_path / "new"
    async with skep(home) as runtime:
        await used(runtime)
        await taken_of(home, to, passphrase=passphrase)
    files = sorted(path for path in to.rglob("*") if path.is_file()) if to.is_dir() else [to] * 6

    for number, path in enumerate(files):
        content = path.read_bytes()
        for damage in ("flip", "cut", "missing"):
            flipped = bytearray(content)
            if damage == "flip":
                # Of an archive the last two blocks hold nothing.
                flipped[(len(content) - 1) * number // len(files) if to.is_file() else len(content) // 2] ^= 4
            path.write_bytes(flipped[: len(content) // 2] if damage == "cut" else flipped)
            if damage == "missing":
                path.unlink()
            # Between the members of a plain archive there are bytes that mean nothing.
            assert _is_refused(to, passphrase, new) or (name == "site.tar" and passphrase is None and damage == "flip")
            path.write_bytes(content)
    assert not verify(source_of(to, passphrase))[1]


def _is_refused(to: Path, passphrase: str | None, new: Path) -> bool:
    try:
        restore(source_of(to, passphrase), new)
    except SkepError:
        assert not new.exists()
        return True
    shutil.rmtree(new)
    return False


async def test_home_in_use_is_left_alone_and_one_with_content_is_set_aside_if_wanted(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "site.tar"
    async with skep(home) as runtime:
        await used(runtime)
        await taken_of(home, to)
        with pytest.raises(Locked):
            restore(source_of(to, None), home, replace=True)
    with pytest.raises(Conflict):
        restore(source_of(to, None), home)
    old = (home / "accounts.db").read_bytes()
    with begun(home):  # of which a file stays that is nobody's data
        pass

    restored = restore(source_of(to, None), home, replace=True)

    assert restored.aside == "before-restore-1"
    assert (home / restored.aside / "accounts.db").read_bytes() == old
    async with skep(home) as runtime:
        assert (await said(runtime))["accounts"] == ["mia", "works"]
        await taken_of(home, tmp_path / "again.tar")
    with tarfile.open(tmp_path / "again.tar") as archive:
        assert not [name for name in archive.getnames() if "before-restore" in name or name.endswith(BEGUN)]
    assert not (home / restored.aside / BEGUN).exists()


async def test_restore_that_was_killed_while_it_moved_files_is_run_again(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home) as runtime:
        await used(runtime)
        before = await said(runtime)
        await taken_of(home, to)
    restore(source_of(to, None), new)
    (new / RESTORING).mkdir()
    (new / "accounts.db").rename(new / RESTORING / "accounts.db")

    with pytest.raises(StorageDamaged, match="run the same restore again"):
        async with skep(new):
            pass
    with pytest.raises(Conflict):
        restore(source_of(to, None), new)
    restore(source_of(to, None), new, replace=True)

    async with skep(new) as runtime:
        assert await said(runtime) == before


async def test_unfinished_backups_are_no_backups_and_go_with_the_next(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "backups"
    async with skep(home):
        first = (await taken_of(home, to)).name
        killed = to / ".000009-20260101T000000Z.partial"
        shutil.copytree(to / first, killed)
        (to / "000009-20260101T000000Z").mkdir()

        assert found_folder(to, Keyring(None)).names() == [first]
        with pytest.raises(NotFound):
            source_of(to / "000009-20260101T000000Z", None)
        await taken_of(home, to)

    assert not killed.exists()


async def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    home, folder, file = tmp_path / "home", tmp_path / "backups", tmp_path / "site.tar"
    async with skep(home) as runtime:
        await used(runtime)
        await runtime.running.sealing.seal()
        part = next((home / "lake" / "readings").rglob("*.parquet"))
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        for to in (folder, file):
            with pytest.raises(StorageDamaged, match="damaged"):
                await taken_of(home, to)

    assert not found_folder(folder, Keyring(None)).names()
    assert sorted(os.listdir(tmp_path)) == ["backups", "home"]
    assert not list(folder.glob(".*"))
    assert last_taken(home) is None


async def test_nothing_goes_while_a_backup_is_taken(tmp_path: Path) -> None:
    with still(tmp_path):
        with allowed_to_remove(tmp_path) as allowed:
            assert not allowed
        with pytest.raises(Locked), still(tmp_path, patience_s=0.01):
            pass

    with allowed_to_remove(tmp_path) as allowed:
        assert allowed
        with pytest.raises(Locked), still(tmp_path, patience_s=0.01):
            pass


async def test_home_that_never_ran_and_one_inside_its_lake_are_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(Invalid):
        take(tmp_path / "home", tmp_path / "to", config=Config())
    with pytest.raises(Invalid):
        take(tmp_path / "home", tmp_path / "home" / "lake" / "to", config=Config())
    with pytest.raises(NotFound):
        source_of(tmp_path / "nothing", None)


async def test_backups_inside_the_home_do_not_hold_each_other(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "home" / "kept" / "here"
    async with skep(home):
        first, second = await taken_of(home, to), await taken_of(home, to)
        third = await taken_of(home, tmp_path / "site.tar")

    assert first.files == second.files == third.files


async def test_lake_elsewhere_is_named_as_missing(tmp_path: Path) -> None:
    home, to, lake = tmp_path / "home", tmp_path / "site.tar", tmp_path / "lake"
    history = {"lake": str(lake)}
    async with skep(home, history=history) as runtime:
        await used(runtime)
        await taken_of(home, to, config=Config.of({"history": history}))

    manifest, _ = verify(source_of(to, None))
    restore(source_of(to, None), tmp_path / "new")

    assert manifest.outside == {"lake": str(lake)}
    async with skep(tmp_path / "new", history=history) as runtime:
        assert (await runtime.running.sealing.seal())["rows"] == 11


def test_a_manifest_that_was_changed_or_is_newer_is_not_believed() -> None:
    manifest = Manifest(
        installation="i", gateway="g", begun="a", ended="b", has_keys=True, last_row=1, seq=2, sealed=0,
        files=(Entry(path="twin.db", size=1, sha256="00"),),
    )  # fmt: skip
    text = manifest_text(manifest)

    assert manifest_of(text) == manifest
    with pytest.raises(StorageDamaged):
        manifest_of(text.replace(b"twin.db", b"twin.xx"))
    with pytest.raises(StorageDamaged):
        manifest_of(text[:-10])
    with pytest.raises(NewerSchema):
        manifest_of(json.dumps({**json.loads(text), "format": 2}).encode())


@pytest.mark.parametrize("path", ["../twin.db", "/etc/passwd", "a/../../b", "", "a//b"])
def test_a_manifest_that_leads_out_of_the_home_is_refused(path: str) -> None:
    manifest = Manifest(
        installation="i", gateway="g", begun="a", ended="b", has_keys=True, last_row=1, seq=2, sealed=0,
        files=(Entry(path=path, size=1, sha256="00"),),
    )  # fmt: skip

    with pytest.raises(StorageDamaged):
        manifest_of(manifest_text(manifest))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_encrypted_files_come_back_whole_or_not_at_all(size: int) -> None:
    content, file = os.urandom(size), BytesIO()
    writer = EncryptedWriter(file, new_key(PASSPHRASE))
    for start in range(0, size, 300_000):
        writer.write(content[start : start + 300_000])
    writer.close()
    stored = file.getvalue()
    head = stored.index(b"\n") + 1

    assert DecryptedReader(BytesIO(stored), Keyring(PASSPHRASE)).read() == content
    for damaged in (
        stored[:-1],
        stored[:head],
        stored[: head + CHUNK + 16],
        stored + b"x",
        stored[: head + 1] + b"?" + stored[head + 2 :],
        stored[head + CHUNK + 16 :],
        stored[:20] + stored[21:],
    ):
        if damaged != stored:
            with pytest.raises((StorageDamaged, Forbidden)):
                DecryptedReader(BytesIO(damaged), Keyring(PASSPHRASE)).read()


def _tables(home: Path, name: str) -> Mapping[str, Sequence[Any]]:
    with closing(sqlite3.connect(home / name)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {table: sorted(map(repr, connection.execute(f'SELECT * FROM "{table}"'))) for (table,) in found}


async def test_restored_databases_are_equal_row_by_row(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home) as runtime:
        await used(runtime)
    with held(home):
        take(home, to, config=Config())

    restore(source_of(to, None), new)

    names = ["accounts.db", *(f"history/{path.name}" for path in (home / "history").glob("*.db"))]
    for name in names:
        assert _tables(new, name) == _tables(home, name)
    before, after = _tables(home, "twin.db"), _tables(new, "twin.db")
    assert {**before, "marks": ()} == {**after, "marks": ()}
    inventory = read_inventory(new)
    assert inventory is not None
    assert inventory.installation == verify(source_of(to, None))[0].installation
