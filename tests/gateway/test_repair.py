"""Damaged stores, made again from what can be read of them; what was set aside, and what was left alone."""

import itertools
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.pool import StaticPool

from authn import migrations as accounts_schema
from authn.accounts import Account, AccountStore
from gateway.config import Config
from gateway.home import begun, held, refuse_unfinished
from gateway.inventory import ACCOUNTS, TWIN, read_inventory, read_notes
from gateway.repair import repairing
from gateway.repair.history import Sealed, made_again
from gateway.repair.logs import Log
from gateway.repair.places import waiting
from gateway.repair.repairing import Outcome, repair
from gateway.repair.salvage import salvage
from gateway.sqlite_files import is_readable
from gateway.stocktaking import ROW_IDS, Stocktaking
from things.errors import Locked, StorageDamaged
from things.identity import AccountType
from twin.database import sqlite_engine
from twin.history import files

ROWS = 3_000
ACCOUNTS_MADE = 200
DAY = "2026-03-01.db"
REVISION = 2


def _accounts(home: Path) -> None:
    with closing(AccountStore(home, now=1)) as store:
        store.add(Account(name="first", type=AccountType.AGENT, role="agent", created=1, updated=1))
    with closing(sqlite3.connect(home / ACCOUNTS)) as connection, connection:
        for number in range(ACCOUNTS_MADE - 1):
            connection.execute(
                "INSERT INTO accounts (account_id, name, type, role, display_name, disabled, created, updated)"
                " VALUES (?, ?, 'agent', 'agent', ?, 0, 1, 1)",
                (f"1-{number}", f"a{number}", "x" * 90),
            )
            connection.execute(
                "INSERT INTO credentials (credential_id, kind, account_id, account, made_by, label, proof, created)"
                " VALUES (?, 'token', ?, ?, 'test', ?, 'y', 1)",
                (f"t{number}", f"1-{number}", f"a{number}", "x" * 90),
            )


def _history(folder: Path, rows: int = ROWS) -> Path:
    folder.mkdir(exist_ok=True)
    file = files.create(folder, "2026-03-01", 1)
    with closing(files.writer(file)) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO keys VALUES (1, 'dtw:a:b', 'property', 'flow'), (2, 'dtw:a:b', 'event', 'e')")
        connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, 0, 1, NULL)",
            [(row, 1 + row % 2, row, row, _value(row), row) for row in range(1, rows + 1)],
        )
        connection.execute("COMMIT")
    return file.path


def _value(row: int) -> bytes:
    return b'"%s"' % (b"z" * 9_000) if row % 500 == 0 else b"%d" % row  # some go over several pages


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whole") / "home"
    home.mkdir()
    taken = Stocktaking(home, is_on_server=False)
    taken.before_opening()
    _accounts(home)
    _history(home / "history")
    marks = {ACCOUNTS: {"revision": REVISION}, f"history/{DAY}": {"first": 1, "last": ROWS}, ROW_IDS: {"last": ROWS}}
    (home / ROW_IDS).write_text(f"{ROWS}\n")
    taken.after_opening(marks, [])
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path) -> Path:
    """A home that was closed well, with an inventory."""
    return Path(shutil.copytree(whole, tmp_path / "home"))


def _repaired(home: Path) -> dict[str, Outcome]:
    with held(home):
        return {one.store: one for one in repair(home, Config())}


def _rows(path: Path) -> dict[int, bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT row_id, value FROM rows"))


def _flip(path: Path, page: int, seed: int) -> None:
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(12):
        content[(page - 1) * 4096 + chance.randrange(4096)] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _pages(path: Path) -> dict[str, list[int]]:
    """Page numbers by kind."""
    content, found = path.read_bytes(), dict[str, list[int]]()
    names = {5: "inner", 13: "leaf", 2: "index inner", 10: "index leaf", 0: "overflow"}
    for number in range(2, len(content) // 4096 + 1):
        found.setdefault(names.get(content[(number - 1) * 4096], "other"), []).append(number)
    return {"schema": [1], **found}


def test_stores_that_are_whole_stay_as_they_are(home: Path) -> None:
    before = {path: path.read_bytes() for path in (home / ACCOUNTS, home / "history" / DAY)}

    found = _repaired(home)

    assert {one.detail for one in found.values()} == {"whole", "missing, and none was there before"}
    assert {path: path.read_bytes() for path in before} == before
    assert not (home / ".repair").exists()


@pytest.mark.parametrize("kind", ["schema", "inner", "leaf", "index inner", "index leaf", "overflow"])
@pytest.mark.parametrize("seed", range(2))
def test_flipped_bits_in_a_page_of_history_cost_no_more_than_that_page(home: Path, kind: str, seed: int) -> None:
    path = home / "history" / DAY
    pages = _pages(path)
    _flip(path, random.Random(seed).choice(pages[kind]), seed)
    damaged, was_readable = path.read_bytes(), is_readable(path)

    found = _repaired(home)[f"history/{DAY}"]

    rows = _rows(path)
    lost = set(range(1, ROWS + 1)) - rows.keys()
    wrong = [row for row, value in rows.items() if value != _value(row)]
    if was_readable:
        assert found.detail == "whole"
        return
    assert found.is_repaired
    assert is_readable(path)
    # A leaf holds some hundred rows; an inner page or an index none, an overflow page a part of one.
    assert len(lost) <= {"leaf": 400, "overflow": 1}.get(kind, 0)
    assert len(wrong) <= 12  # bits within a number: nothing says what stood there
    (aside,) = (home / "history").glob("*.repaired")
    assert aside.read_bytes() == damaged
    assert [note.store for note in read_notes(home)] == [f"history/{DAY}"]
    assert _repaired(home)[f"history/{DAY}"].detail == "whole"


@pytest.mark.parametrize("seed", range(6))
def test_accounts_with_flipped_bits_come_back_without_rights_that_were_not_there(home: Path, seed: int) -> None:
    path, chance = home / ACCOUNTS, random.Random(seed)
    pages = _pages(path)
    kind = chance.choice([one for one in ("leaf", "inner", "index leaf", "schema") if one in pages])
    _flip(path, chance.choice(pages[kind]), seed)

    found = _repaired(home)[ACCOUNTS]

    if found.is_lost or not found.is_repaired:
        return
    inventory = read_inventory(home)
    assert inventory is not None
    least = inventory.stores[ACCOUNTS]["revision"]
    with closing(AccountStore(home, now=1, least_revision=least)) as store:
        names = {account.name for account in store.accounts()}
        assert {one.account for one in store.credentials()} <= names
        assert len(names) > ACCOUNTS_MADE - 80
        assert store.revision > least
    assert inventory.asked[0].startswith(f"repair {ACCOUNTS}")


def test_accounts_of_an_earlier_version_come_back_with_what_proved_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    taken = Stocktaking(home, is_on_server=False)
    taken.before_opening()
    engine = sqlite_engine(home / ACCOUNTS, StaticPool)
    accounts_schema.migrate(engine, now=1, file=None, most=accounts_schema.REGISTER)
    engine.dispose()
    with closing(sqlite3.connect(home / ACCOUNTS)) as connection, connection:
        for number in range(ACCOUNTS_MADE):
            name = f"a{number}"
            account = (name, "agent", "agent", "x" * 90, "hash", None, 0, 1, 1, f"1-{number}", "first")
            connection.execute(f"INSERT INTO accounts VALUES ({', '.join('?' * len(account))})", account)
            connection.execute("INSERT INTO long_tokens VALUES (?, ?, ?, 'y', 1, NULL)", (f"t{number}", name, "x" * 90))
    taken.after_opening({ACCOUNTS: {"revision": 1}}, [])
    path = home / ACCOUNTS
    _flip(path, _pages(path)["leaf"][-1], 1)

    assert _repaired(home)[ACCOUNTS].is_repaired

    with closing(AccountStore(home, now=1)) as store:
        ids = {account.account_id for account in store.accounts()}
        kinds = Counter(str(one.kind) for one in store.credentials())
        assert len(ids) > ACCOUNTS_MADE - 80
        assert {one.account_id for one in store.credentials()} <= ids
        assert kinds["password"] == len(ids)
        assert kinds["token"] > ACCOUNTS_MADE - 80


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_of_a_truncated_file_comes_back_what_is_there(home: Path, share: float) -> None:
    path = home / "history" / DAY
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])

    assert _repaired(home)[f"history/{DAY}"].is_repaired

    rows = _rows(path)
    assert all(value == _value(row) for row, value in rows.items())
    assert len(rows) > ROWS * (share - 0.3)


def _logged(folder: Path) -> Path:
    """A file whose rows are in its log alone, in 20 commits; as a kill leaves it."""
    file = files.create(folder, "2026-03-02", ROWS + 1)
    copy = folder.parent / "killed.db"
    with closing(files.writer(file)) as connection:
        connection.execute("INSERT INTO keys VALUES (1, 'dtw:a:b', 'property', 'flow')")
    with closing(files.writer(file)) as connection:
        for commit in range(20):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO rows VALUES (?, 1, ?, ?, ?, ?, 0, 1, NULL)",
                [(ROWS + row, row, row, _value(row), row) for row in range(commit * 20 + 1, commit * 20 + 21)],
            )
            connection.execute("COMMIT")
        for part in ("", "-wal"):
            shutil.copyfile(f"{file.path}{part}", f"{copy}{part}")
    for part in ("", "-wal"):
        shutil.move(f"{copy}{part}", f"{file.path}{part}")
    return file.path


def test_a_bad_frame_of_a_log_costs_that_frame_and_not_all_behind_it(home: Path) -> None:
    path = _logged(home / "history")
    log = path.with_name(f"{path.name}-wal")
    content = log.read_bytes()
    frames = (len(content) - 32) // 4120

    for frame in range(0, frames - 1, 4):
        shutil.rmtree(home / "history")
        (home / "history").mkdir()
        (home / ROW_IDS).write_text(f"{ROWS + 1_000}\n")
        again = _logged(home / "history")
        damaged = bytearray(content)
        damaged[32 + frame * 4120 + 24 + 60] ^= 4
        again.with_name(log.name).write_bytes(damaged)

        assert _repaired(home)["history/2026-03-02.db"].is_repaired

        rows = _rows(again)
        assert set(rows) <= set(range(ROWS + 1, ROWS + 401))
        assert all(value == _value(row - ROWS) for row, value in rows.items())
        # A later frame may hold the same page again.
        assert len(rows) >= 400 - 250
        assert max(rows) == ROWS + 400


def test_a_log_that_was_cut_holds_what_was_committed_before(home: Path) -> None:
    path = _logged(home / "history")
    log = path.with_name(f"{path.name}-wal")
    content = log.read_bytes()
    counts = []

    frames = (len(content) - 32) // 4120
    for frame in (*range(0, frames, 5), frames):
        log.write_bytes(content[: 32 + frame * 4120])
        assert Log(log).bad_frames == 0  # nothing can be said of what is not there
        copy = home / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        into = home / "into"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        with closing(sqlite3.connect(files.create(into, "2026-03-02", 1).path)) as connection:
            found = salvage(path, log, connection, is_sound=lambda _table, _row: True)
        counts.append(found.rows["rows"])
        assert counts[-1] == len(_rows(copy))  # no more and no less than SQLite itself believes

    assert counts == sorted(counts)
    assert counts[-1] == 400


def test_what_cannot_be_read_at_all_is_said_and_left(home: Path) -> None:
    (home / ACCOUNTS).unlink()
    path = home / "history" / DAY
    path.write_bytes(b"\x5a" * 40_960)
    (home / TWIN).write_bytes(b"")

    found = _repaired(home)

    assert found[ACCOUNTS].is_lost
    assert found[f"history/{DAY}"].is_lost
    assert path.read_bytes() == b"\x5a" * 40_960
    assert not (home / ACCOUNTS).exists()
    assert (home / TWIN).read_bytes() == b""


def test_a_store_of_another_installation_is_not_taken_for_ours(home: Path) -> None:
    with closing(sqlite3.connect(home / ACCOUNTS)) as connection:
        connection.execute("PRAGMA application_id = 77")
        connection.execute("PRAGMA journal_mode=DELETE")

    found = _repaired(home)[ACCOUNTS]

    assert found.is_lost
    assert "another installation" in found.detail


def test_rows_that_sealing_has_passed_get_new_ids_and_those_in_the_lake_stay_there(home: Path, tmp_path: Path) -> None:
    aside = files.set_aside(home / "history" / DAY, "damaged")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sealed = Sealed(mark=2_000, has=lambda first, last: set(range(1, 1_001)))

    remade = made_again(aside, scratch, sealed, others=[(ROWS + 1, ROWS + 9)], last=2_000_000, stamp=5)

    assert (remade.sealed, remade.last) == (1_000, 2_001_000)
    assert remade.kept is not None
    assert remade.moved is not None
    assert set(_rows(remade.kept)) == set(range(2_001, ROWS + 1))
    moved = _rows(remade.moved)
    assert sorted(moved) == list(range(2_000_001, 2_001_001))
    assert moved[2_000_001] == _value(1_001)


def test_a_file_that_a_start_set_aside_comes_back_beside_the_one_made_since(home: Path) -> None:
    path = home / "history" / DAY
    aside = files.set_aside(path, "damaged")
    _flip(aside, 3, 1)
    newer = files.create(home / "history", "2026-03-01", 1_000_001)

    found = _repaired(home)[f"history/{aside.name}"]

    assert found.is_repaired
    assert newer.path == path
    back, damaged = files.found_files(home / "history")
    assert [(file.path.name, file.first) for file in back] == [
        ("2026-03-01.2.db", min(_rows(back[0].path))),
        (DAY, 1_000_001),
    ]
    assert not damaged
    assert len(_rows(back[0].path)) > ROWS - 400
    assert f"history/{aside.name}" not in _repaired(home)


def test_a_repair_that_was_killed_is_refused_by_a_start_and_finished_by_the_next(home: Path) -> None:
    path = home / ACCOUNTS
    good = path.read_bytes()
    _flip(path, 1, 3)
    damaged = path.read_bytes()
    waiting(path, {ACCOUNTS: lambda file: file.write_bytes(good)})
    with pytest.raises(StorageDamaged, match="run skep repair again"):
        refuse_unfinished(home)

    found = _repaired(home)

    refuse_unfinished(home)
    assert found[ACCOUNTS].detail == "whole"
    assert path.read_bytes() == good
    assert (home / f"{ACCOUNTS}.set-aside").read_bytes() == damaged


class _KilledError(BaseException):
    """Nothing in skep catches this one."""


@pytest.mark.parametrize("is_aside", [False, True])
def test_a_repair_of_history_that_is_killed_at_any_renaming_brings_every_row_back_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, is_aside: bool
) -> None:
    """Of 3,000 rows 1,000 are in the lake, 1,000 were passed by sealing and get new ids, and 1,000 keep theirs."""
    monkeypatch.setattr(repairing, "sealed_rows", lambda *_: Sealed(mark=2_000, has=lambda *_: set(range(1, 1_001))))
    path = home / "history" / DAY
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA writable_schema=ON")
        with connection:
            connection.execute("UPDATE sqlite_schema SET sql = 'CREATE TABLE' WHERE name = 'span'")
    damaged = files.set_aside(path, "damaged") if is_aside else path
    content, rename, killed = damaged.read_bytes(), Path.rename, 0
    whole = {row: (home / row).read_bytes() for row in ("inventory.json", ROW_IDS)}

    for last_one in itertools.count():
        shutil.rmtree(home / "history")
        (home / "history").mkdir()
        (home / "set-aside.json").unlink(missing_ok=True)
        for name, text in whole.items():
            (home / name).write_bytes(text)
        damaged.write_bytes(content)
        left = last_one

        def renamed(source: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                raise _KilledError
            left -= 1
            return rename(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", renamed)
            patched.setattr(Path, "replace", renamed)
            try:
                _repaired(home)
            except _KilledError:
                killed += 1
            else:
                break
        _repaired(home)

        refuse_unfinished(home)
        back, _ = files.found_files(home / "history")
        values = [value for file in back for value in _rows(file.path).values()]
        assert sorted(values) == sorted(_value(row) for row in range(1_001, ROWS + 1)), last_one
        (aside,) = (home / "history").glob("*.repaired")
        assert aside.read_bytes() == content
        assert [note.detail for note in read_notes(home) if note.store == f"history/{damaged.name}"]

    assert killed >= 6


def test_nothing_is_repaired_while_a_runtime_is_coming_up(home: Path) -> None:
    with begun(home), pytest.raises(Locked):
        _repaired(home)
