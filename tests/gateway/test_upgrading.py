"""A folder that an older version left (`homes/`): started with today's code, upgraded, killed while at it, undone.

`schema-3.tar.gz` is a data folder with sealed and hot readings, accounts, requests and a directory, as the version
before inventories closed it, and `told.json` with the tokens and request ids that its clients were told. Its
requests never expire, and are never forgotten.
"""

import json
import os
import signal
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import StaticPool

from authn import migrations as accounts_migrations
from authn.accounts import AccountStore
from authn.migrations import STEPS
from gateway import upgrading
from gateway.config import Config
from gateway.inventory import ACCOUNTS, TWIN, read_notes
from gateway.schemas import RECORD, due, note_begun
from gateway.upgrading import go_back, tried
from skep.cli import main
from tests.support import skep
from things.errors import NewerSchema, NotFound, StorageDamaged
from things.records import HistoryQuery
from twin import migrations as twin_migrations
from twin.database import sqlite_engine
from twin.migrations import migrate
from twin.tables import MIGRATIONS

pytestmark = pytest.mark.anyio

OLD = Path(__file__).parent / "homes" / "schema-3.tar.gz"
WANTED = {ACCOUNTS: len(STEPS), TWIN: len(MIGRATIONS)}
PUMP_1, PUMP_2 = "dtw:works:pump-1", "dtw:works:pump-2"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    home = tmp_path / "home"
    for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
        folder.chmod(0o700)
    return home


def _files(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def _told(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home.parent / "told.json").read_bytes())
    return found


def _schema(path: Path) -> int:
    table = "authn_migrations" if path.name == ACCOUNTS else "skep_migrations"
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT max(number) FROM {table}").fetchone()[0])


async def _check_all_is_there(home: Path) -> None:
    told = _told(home)
    async with skep(home) as running, httpx2.AsyncClient(base_url=running.http) as client:

        async def got(path: str, login: str = "mia") -> Any:
            answer = await client.get(path, headers={"authorization": f"Bearer {told['tokens'][login]}"})
            answer.raise_for_status()
            return answer.json()

        for name in ("mia", "vera", "otto"):
            assert await got(f"/things/{PUMP_1}/properties/flow", name) == 7
        assert await got(f"/things/{PUMP_2}/properties/flow") == 9
        assert (await got(f"/things/{PUMP_1}"))["title"] == "Pump"
        states = [(await got(f"/requests/{request}"))["state"] for request in told["requests"]]
        assert states == ["completed", "pending", "pending", "pending"]
        async with httpx2.AsyncClient(base_url=running.http) as agent:
            bearer = {"authorization": f"Bearer {told['tokens']['works']}"}
            (await agent.post("/agent/things/pump-1/events/alarm", json="new", headers=bearer)).raise_for_status()
        stores = running.running.stores
        rows = await stores.twin.history.read(HistoryQuery(after_row=0, limit=1_000))
        values = [row.value.decode() for row in rows if row.name == "alarm"]
        assert values == [
            f'"{text} {number}"' for text, count in (("sealed", 30), ("hot", 20)) for number in range(count)
        ] + ['"new"']
        assert rows[-1].row_id > rows[-2].row_id
        sealed = await running.running.sealing.seal()
        assert sealed["first"] == 33  # after what the older version sealed


async def test_what_an_older_version_left_is_all_there_with_todays_code(old: Path) -> None:
    copies = [str(change.copy) for change in due(old, Config())]

    await _check_all_is_there(old)

    assert copies == ["accounts.db.before-3", "twin.db.before-4"]
    assert all((old / copy).exists() for copy in copies)
    assert json.loads((old / RECORD).read_bytes())["finished"]
    assert not due(old, Config())
    assert not [note for note in read_notes(old) if "gone" in note.detail]


async def test_a_dry_run_changes_nothing(old: Path) -> None:
    before = _files(old)
    changes = due(old, Config())

    await anyio.to_thread.run_sync(tried, old, changes)

    assert [(one.store, one.found, one.wanted) for one in changes] == [
        (ACCOUNTS, 2, len(STEPS)),
        (TWIN, 3, len(MIGRATIONS)),
    ]
    assert _files(old) == before


async def test_a_dry_run_names_the_store_whose_step_its_data_does_not_take(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> None:
        raise IntegrityError("CREATE UNIQUE INDEX …", None, sqlite3.IntegrityError("UNIQUE constraint failed"))

    changes = due(old, Config())
    monkeypatch.setattr(upgrading, "load", refused)

    with pytest.raises(StorageDamaged, match=r"\.db cannot be upgraded: .*UNIQUE constraint failed"):
        await anyio.to_thread.run_sync(tried, old, changes)


@pytest.mark.parametrize("store", [ACCOUNTS, TWIN])
async def test_an_upgrade_that_is_killed_at_any_statement_is_taken_up_again(old: Path, store: str) -> None:
    path, statement, is_done = old / store, 0, False
    content, begun = path.read_bytes(), _schema(path)

    while not is_done:
        path.write_bytes(content)
        is_done = _killed_at(path, statement)
        statement += 1
        schema = _schema(path)
        assert schema in (begun, WANTED[store])  # all of it or nothing
        _migrated(path)
        assert _schema(path) == WANTED[store]

    assert statement > WANTED[store] - begun
    await _check_all_is_there(old)


def _migrated(path: Path) -> None:
    if path.name == ACCOUNTS:
        AccountStore(path.parent, now=1).close()
        return
    engine = sqlite_engine(path, StaticPool)
    migrate(engine, MIGRATIONS, backup_of=path)
    engine.dispose()


def _killed_at(path: Path, statement: int) -> bool:
    """Migrate in a process that is killed before it carries out a statement; True if it came to its end."""
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        left = statement

        def counted(*_given: object) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        event.listen(Engine, "before_cursor_execute", counted)
        event.listen(Engine, "commit", counted)
        try:
            _migrated(path)
        finally:
            os._exit(0 if left > 0 else 1)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


async def test_an_upgrade_is_undone_for_the_version_before(old: Path) -> None:
    with closing(sqlite3.connect(old / TWIN)) as connection:
        before = connection.execute("SELECT request_id, state FROM requests ORDER BY opened").fetchall()
    await _check_all_is_there(old)

    assert await anyio.to_thread.run_sync(go_back, old) == [ACCOUNTS, TWIN]

    assert _schema(old / TWIN) == 3
    with closing(sqlite3.connect(old / TWIN)) as connection:
        assert connection.execute("SELECT request_id, state FROM requests ORDER BY opened").fetchall() == before
        assert connection.execute("SELECT value FROM marks WHERE name = 'ledger'").fetchone()[0] > 1_000_000
    assert f"{TWIN}.set-aside" in {path.name for path in _files(old)}
    with pytest.raises(NotFound, match="no upgrade"):
        await anyio.to_thread.run_sync(go_back, old)
    async with skep(old) as again:  # and forth
        assert again.running.stores.twin.ledger.last_seq > 1_000_000
    assert _schema(old / TWIN) == len(MIGRATIONS)


async def test_a_second_upgrade_that_fails_goes_back_to_its_own_beginning(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was undone, and its copies are still there: they are of another time."""
    async with skep(old):
        pass
    await anyio.to_thread.run_sync(go_back, old)
    with closing(sqlite3.connect(old / ACCOUNTS)) as connection, connection:  # months of work with the version before
        connection.execute("CREATE TABLE later (note TEXT)")
    monkeypatch.setattr(twin_migrations, "_check", _damaged)
    with pytest.raises(StorageDamaged):
        async with skep(old):
            pass

    assert await anyio.to_thread.run_sync(go_back, old) == [ACCOUNTS]

    assert (_schema(old / ACCOUNTS), _schema(old / TWIN)) == (2, 3)
    with closing(sqlite3.connect(old / ACCOUNTS)) as connection:
        assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
    assert (old / "twin.db.before-4.set-aside").exists()
    assert not (old / "twin.db.before-4").exists()


async def test_an_upgrade_that_changed_nothing_undoes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with skep(old):
        pass
    await anyio.to_thread.run_sync(go_back, old)
    monkeypatch.setattr(accounts_migrations, "apply_missing", _damaged)
    for _ in range(2):
        with pytest.raises(StorageDamaged):
            async with skep(old):
                pass
    before = [(old / name).read_bytes() for name in (ACCOUNTS, TWIN)]

    with pytest.raises(NotFound, match="has changed nothing"):
        await anyio.to_thread.run_sync(go_back, old)

    assert [(old / name).read_bytes() for name in (ACCOUNTS, TWIN)] == before
    assert len([path for path in _files(old) if ".before-" in path.name]) == 2, "attempts do not pile up copies"


async def test_the_way_back_of_an_upgrade_in_two_attempts_leads_to_before_the_first(old: Path) -> None:
    """The first is of a version with fewer steps, and ends after accounts."""
    note_begun(old, due(old, Config()))
    engine = sqlite_engine(old / ACCOUNTS, StaticPool)
    accounts_migrations.migrate(engine, now=1, file=old / ACCOUNTS, most=3)
    engine.dispose()
    async with skep(old):
        pass

    assert await anyio.to_thread.run_sync(go_back, old) == [ACCOUNTS, TWIN]

    assert (_schema(old / ACCOUNTS), _schema(old / TWIN)) == (2, 3)


def _damaged(*_given: object, **_options: object) -> None:
    raise StorageDamaged("damaged")


async def test_a_folder_of_a_newer_version_is_left_alone(old: Path) -> None:
    with closing(sqlite3.connect(old / TWIN)) as connection, connection:
        connection.execute("INSERT INTO skep_migrations VALUES (99, 'later')")

    with pytest.raises(NewerSchema):
        due(old, Config())


def test_the_command_says_what_it_does(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(old)]
    assert main(["upgrade", *home, "--back"]) == 4
    assert main(["upgrade", *home, "--dry-run", "--back"]) == 2
    capsys.readouterr()
    assert main(["upgrade", *home, "--dry-run"]) == 0
    assert "twin.db: schema 3 to 5 (by whom requests were made; Thing Models); a copy is kept as twin.db.before-4" in (
        capsys.readouterr().out
    )
    assert _schema(old / TWIN) == 3
    assert main(["upgrade", *home, "--json"]) == 0
    assert [(one["store"], one["from"]) for one in json.loads(capsys.readouterr().out)] == [(ACCOUNTS, 2), (TWIN, 3)]
    assert main(["upgrade", *home]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["upgrade", *home, "--back"]) == 0
    assert "as it was before the upgrade" in capsys.readouterr().out
    assert _schema(old / TWIN) == 3
