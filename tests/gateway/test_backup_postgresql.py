"""Accounts and twin on a PostgreSQL server are part of a backup: of one moment, and put back whole or not at all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from gateway.app import started
from gateway.backup import postgresql
from gateway.backup.copying import Pace
from gateway.backup.places import source_of
from gateway.backup.restoring import AHEAD, restore, verify
from gateway.config import Config
from gateway.inventory import read_notes
from tests.gateway.test_backup import PASSPHRASE, said, taken_of, used
from tests.postgresql import emptied
from tests.support import Skep
from things.errors import Conflict, Invalid, NewerSchema, StorageDamaged, StorageFailed
from twin.migrations import migrate
from twin.tables import MIGRATIONS

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(postgresql_server: str) -> str:
    """An empty database, also of what former restores set aside."""
    engine = create_engine(postgresql_server)
    with engine.begin() as connection:
        for name in inspect(connection).get_schema_names():
            if name.startswith(("before_restore_", "skep_")):
                connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()
    return emptied(postgresql_server)


@asynccontextmanager
async def running(home: Path, url: str) -> AsyncIterator[Skep]:
    """A runtime whose accounts and twin are on a server, as its skep.toml says."""
    async with started(home, configured(home, url)) as runtime:
        yield Skep(running=runtime)


def configured(home: Path, url: str) -> Config:
    home.mkdir(exist_ok=True)
    (home / "skep.toml").write_text(f'database_url = "{url}"\n')
    return Config.load(home).with_listeners(http="127.0.0.1:0", https="off", mqtt="127.0.0.1:0", mqtts="off")


def schemas(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        return [name for name in inspect(engine).get_schema_names() if name not in ("information_schema", "public")]
    finally:
        engine.dispose()


@pytest.mark.parametrize(("name", "passphrase"), [("backups", None), ("site.tar", PASSPHRASE)])
async def test_backup_with_a_server_is_restored_as_an_equal_one(
    tmp_path: Path, url: str, name: str, passphrase: str | None
) -> None:
    home, to, new = tmp_path / "home", tmp_path / "to" / name, tmp_path / "new"
    async with running(home, url) as runtime:
        await used(runtime)
        before, config = await said(runtime), Config.load(home)
        taken = await taken_of(home, to, config=config, passphrase=passphrase)
        seq = runtime.running.stores.twin.ledger.last_seq
    emptied(url)

    manifest, problems = verify(source_of(to, passphrase))
    restored = restore(source_of(to, passphrase), new)

    assert not problems
    assert not taken.outside
    assert manifest.seq == seq
    assert (restored.aside, restored.schema_aside) == (None, None)
    assert not (new / postgresql.FOLDER).exists()
    for number in range(2):
        async with running(new, url) as runtime:
            assert await said(runtime) == before
            assert not read_notes(new)
            assert runtime.running.stores.twin.ledger.last_seq >= seq + AHEAD
            # The server's own counter goes on behind the rows.
            await runtime.running.stores.twin.presence.record(f"agent-{number}", is_online=True, at=number + 1)
    assert schemas(url) == []


async def test_tables_that_stand_are_refused_or_set_aside(tmp_path: Path, url: str) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with running(home, url) as runtime:
        await used(runtime)
        before = await said(runtime)
        await taken_of(home, to, config=Config.load(home))
    async with running(home, url) as runtime:
        await runtime.add("later")

    with pytest.raises(Conflict):
        restore(source_of(to, None), new)

    assert not [path for path in new.iterdir() if path.name != "run.lock"]
    assert schemas(url) == []
    async with running(home, url) as runtime:
        assert "later" in runtime.running.stores.authenticator.register.accounts

    for number in (1, 2):
        restored = restore(source_of(to, None), new, replace=True)
        assert restored.schema_aside == f"before_restore_{number}"
    async with running(new, url) as runtime:
        assert await said(runtime) == before
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM before_restore_1.accounts WHERE name = 'later'")).all()
    engine.dispose()


async def test_what_is_committed_meanwhile_is_not_in_it(tmp_path: Path, url: str) -> None:
    async with running(tmp_path, url) as runtime:
        await used(runtime)
        with postgresql.snapshot(url) as standing:
            await runtime.add("later")
            rows = BytesIO()
            standing.copy("accounts", rows, Pace())

    name = standing.tables.columns["accounts"].index("name")
    names = [line.split("\t")[name] for line in rows.getvalue().decode().splitlines()]
    assert {"works", "mia"} <= set(names)
    assert "later" not in names


async def test_rows_of_other_tables_leave_the_server_as_it_was(tmp_path: Path, url: str) -> None:
    async with running(tmp_path, url):
        with postgresql.snapshot(url) as standing:
            tables = standing.tables
    emptied(url)

    with pytest.raises(StorageDamaged), postgresql.draft(url, tables, replace=False) as draft:
        draft.fill("marks", BytesIO(b"ledger\tmany\n"))

    assert schemas(url) == []
    later = postgresql.Tables(versions={**tables.versions, "skep_migrations": 1_000}, columns=tables.columns)
    with pytest.raises(NewerSchema), postgresql.draft(url, later, replace=False):
        pass


async def test_tables_of_an_earlier_version_are_taken_once_they_were_upgraded(tmp_path: Path, url: str) -> None:
    engine = create_engine(url)
    migrate(engine, MIGRATIONS[:-1])
    engine.dispose()

    with pytest.raises(Invalid), postgresql.snapshot(url):
        pass

    async with running(tmp_path, url):
        with postgresql.snapshot(url) as standing:
            assert standing.tables.versions["skep_migrations"] == len(MIGRATIONS)


async def test_server_that_is_away_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageFailed), postgresql.snapshot(url.replace("@127.0.0.1:", "@127.0.0.2:")):
        pass


async def test_backup_of_a_server_wants_one_to_go_to(tmp_path: Path, url: str) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with running(home, url):
        config = Config.load(home)
        (home / "skep.toml").unlink()
        await taken_of(home, to, config=config)

    with pytest.raises(Invalid):
        restore(source_of(to, None), new)
