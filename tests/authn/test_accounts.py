"""The accounts database: migrations with a copy first, damage refused, full disks survived."""

import contextlib
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import authn.accounts
import authn.migrations
from authn.accounts import Account, AccountStore
from authn.authenticator import LocalAuthenticator
from authn.credentials import Credential, CredentialKind
from authn.migrations import REGISTER
from tests.authn.installations import GOOD, HOST, Clock, claimed, consumer, installation
from things.errors import Conflict, NewerSchema, StorageDamaged, StorageFull, TokenInvalid
from things.identity import AccountType

PUMP = Account(account_id="1-", name="pump", type=AccountType.AGENT, role="agent", created=1, updated=1)
TOKEN = Credential(
    credential_id="t1",
    kind=CredentialKind.TOKEN,
    account_id="1-",
    account="pump",
    label="first",
    proof="h",
    created=1,
)


def opened(home: Path) -> AccountStore:
    return AccountStore(home, now=1)


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(PUMP, TOKEN)
    store.close()

    store = opened(tmp_path)

    assert (store.accounts(), store.credentials()) == ([PUMP], [TOKEN])
    with pytest.raises(Conflict):
        store.add(PUMP)
    store.save(without=[(Account, "pump"), (Credential, "t1")])
    assert (store.accounts(), store.credentials()) == ([], [])
    store.close()


def test_writes_are_synced_and_logged_ahead(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store._engine.connect() as connection:
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    store.close()

    assert (journal, synchronous) == ("wal", 2)


TOLD_APART = 3
"""The step from which on accounts have ids of their own."""


@pytest.mark.parametrize("done", range(1, REGISTER + 1))
def test_each_older_schema_is_brought_up_to_date_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    steps = authn.migrations.STEPS
    monkeypatch.setattr(authn.migrations, "STEPS", steps[:done])
    engine = authn.accounts._engine(tmp_path / "accounts.db", None)
    authn.migrations.migrate(engine, now=1, file=tmp_path / "accounts.db")
    engine.dispose()
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        # What the first schema knows; later columns have their defaults.
        connection.execute(
            "INSERT INTO accounts (name, type, role, display_name, password_hash, disabled, created, updated)"
            " VALUES ('pump', 'agent', 'agent', '', 'h', 0, 1, 1)"
        )
        if done >= TOLD_APART:
            connection.execute("UPDATE accounts SET account_id = '1-', password_id = 'first'")
        connection.execute(
            "INSERT INTO long_tokens (token_id, account, label, token_hash, created)"
            " VALUES ('t1', 'pump', 'first', 'h', 1)"
        )
    connection.close()
    monkeypatch.setattr(authn.migrations, "STEPS", steps)

    store = opened(tmp_path)

    (account,) = store.accounts()
    assert account == PUMP
    password = replace(TOKEN, credential_id="first-1-", kind=CredentialKind.PASSWORD, label="", proof="h")
    assert sorted(store.credentials(), key=lambda one: one.credential_id) == [password, TOKEN]
    assert store.device_requests() == []
    store.close()
    with sqlite3.connect(tmp_path / f"accounts.db.before-{done + 1}") as copy:
        assert copy.execute("SELECT name FROM accounts").fetchall() == [("pump",)]
    copy.close()


def test_all_that_proved_an_account_is_taken_into_the_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = authn.migrations.STEPS
    monkeypatch.setattr(authn.migrations, "STEPS", steps[:REGISTER])
    engine = authn.accounts._engine(tmp_path / "accounts.db", None)
    authn.migrations.migrate(engine, now=1, file=tmp_path / "accounts.db")
    engine.dispose()
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        for statement in (
            "INSERT INTO accounts VALUES ('pump', 'agent', 'agent', '', 'hash', 'PEM', 0, 1, 1, '1-', 'first')",
            "INSERT INTO accounts VALUES ('vera', 'consumer', 'viewer', '', 'other', NULL, 0, 2, 2, '2-x', 'p2')",
            "INSERT INTO logins VALUES ('l1', 'pump', 'r1', 3, 4, 5, '::1', 'first')",
            "INSERT INTO logins VALUES ('l2', 'vera', 'r2', 3, 4, 5, NULL, 'p2')",
            "INSERT INTO long_tokens VALUES ('t1', 'pump', 'provisioned', 't', 3, NULL)",
            "INSERT INTO certificates VALUES ('1f', 'pump', 3, 9, 4, 6)",
        ):
            connection.execute(statement)
    connection.close()
    monkeypatch.setattr(authn.migrations, "STEPS", steps)

    store = opened(tmp_path)

    found = {one.credential_id: one for one in store.credentials()}
    told = {id_: (str(one.kind), one.account_id, one.parent, one.proof) for id_, one in found.items()}
    assert told == {
        "first-1-": ("password", "1-", None, "hash"),
        "key-1-": ("key", "1-", None, "PEM"),
        "l1": ("login", "1-", "first-1-", "r1"),
        "t1": ("token", "1-", "key-1-", "t"),
        "1f": ("certificate", "1-", None, None),
        "p2": ("password", "2-x", None, "other"),
        "l2": ("login", "2-x", "p2", "r2"),
    }
    assert (found["1f"].ended, found["1f"].used, found["l1"].used, found["l1"].source) == (6, 4, 4, "::1")
    store.close()


def test_credentials_that_ended_before_it_was_kept_why_are_not_taken_for_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = authn.migrations.STEPS
    monkeypatch.setattr(authn.migrations, "STEPS", steps[: REGISTER + 1])
    engine = authn.accounts._engine(tmp_path / "accounts.db", None)
    authn.migrations.migrate(engine, now=1, file=tmp_path / "accounts.db")
    engine.dispose()
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        connection.execute(
            "INSERT INTO credentials VALUES ('l1', 'login', '1-', 'pump', NULL, '', '', 'r', NULL, 3, NULL, 9, 4)"
        )
    connection.close()
    monkeypatch.setattr(authn.migrations, "STEPS", steps)

    store = opened(tmp_path)

    (login,) = store.credentials()
    assert (login.ended, login.because, login.is_left) == (4, None, False)
    store.close()


def test_a_store_that_holds_fewer_changes_than_it_did_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    began = store.revision
    store.add(PUMP, TOKEN)
    store.save(without=[(Account, "pump")])
    held = store.revision
    store.close()

    assert held == began + 2
    AccountStore(tmp_path, now=1, least_revision=held).close()
    with pytest.raises(StorageDamaged, match="skep stores accept"):
        AccountStore(tmp_path, now=1, least_revision=held + 1)


def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.add(PUMP)
    store.close()
    steps = authn.migrations.STEPS
    broken = (("broken", ("CREATE TABLE fresh (a INTEGER)", "UPDATE accounts SET role = 'x'", "NONSENSE")),)
    monkeypatch.setattr(authn.migrations, "STEPS", steps + broken)
    with pytest.raises(Exception, match="accounts database"):
        opened(tmp_path)
    monkeypatch.setattr(authn.migrations, "STEPS", steps)

    store = opened(tmp_path)

    assert store.accounts() == [PUMP]
    store.close()
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "fresh" not in tables


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(authn.migrations, "STEPS", authn.migrations.STEPS[:1])

    with pytest.raises(NewerSchema):
        opened(tmp_path)


@pytest.mark.parametrize("damage", ["overwritten", "header", "text"])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, damage: str) -> None:
    store = opened(tmp_path)
    store.add(PUMP)
    store.close()
    path = tmp_path / "accounts.db"
    content = path.read_bytes()
    match damage:
        case "overwritten":
            content = content[:4_096] + os.urandom(len(content) - 4_096)
        case "header":
            content = b"\0" * 100 + content[100:]
        case _:
            content = b"this is no database " * 500
    path.write_bytes(content)

    with pytest.raises(StorageDamaged):
        opened(tmp_path)

    assert path.read_bytes() == content


def test_a_full_database_gives_its_reserve_for_one_more_change(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(PUMP)
    assert (tmp_path / "accounts.reserve").stat().st_size > 500_000
    real, calls = store._transact, []

    def full_until_freed(work: object) -> None:
        calls.append(work)
        if (tmp_path / "accounts.reserve").exists():
            raise StorageFull
        real(work)  # type: ignore[arg-type]

    store._transact = full_until_freed  # type: ignore[method-assign]

    store.save(without=[(Account, "pump")])

    assert store.accounts() == []
    assert len(calls) == 2
    store.close()


async def fill(authenticator: LocalAuthenticator) -> None:
    for number in range(1_000):
        await authenticator.administration.add(f"pump-{number}", AccountType.AGENT, by="root")


@pytest.mark.anyio
async def test_a_full_disk_lets_people_log_in_and_be_locked_out(tmp_path: Path) -> None:
    clock = Clock()
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        await consumer(authenticator, "vera")
        stolen = await authenticator.open_login("vera", GOOD, source=HOST)
        with authenticator._store._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StorageFull):
            await fill(authenticator)

        opened = [await authenticator.open_login("root", GOOD, source=HOST) for _ in range(40)]
        assert [authenticator.verify(login.access_token).account for login in opened] == ["root"] * 40
        assert len(authenticator._store.credentials()) < len(authenticator.register.credentials)
        with contextlib.suppress(StorageFull):
            await authenticator.administration.disable("vera", by="root")
        with pytest.raises(TokenInvalid):
            authenticator.verify(stolen.access_token)
