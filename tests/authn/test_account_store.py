"""What every database of accounts keeps, and how it says that it cannot; and a whole runtime on a database server."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from authn.accounts import Account, AccountStore, DeviceRequest
from authn.credentials import Credential, CredentialKind
from gateway.app import started
from gateway.config import Config
from skep import Agent, AgentRequest, Consumer
from tests.postgresql import emptied
from tests.support import PUMP as PUMP_TD
from things.errors import Conflict, StorageFailed
from things.identity import AccountType, Role
from things.messages import JSONValue

NOW = 1_795_262_400_000_000
PASSWORD = "correct horse battery"

PUMP = Account(account_id="1-a", name="pump", type=AccountType.AGENT, role="agent", created=NOW, updated=NOW)
TOKEN = Credential(
    credential_id="t1",
    kind=CredentialKind.TOKEN,
    account_id="1-a",
    account="pump",
    label="first",
    proof="h",
    created=NOW,
)
LOGIN = replace(TOKEN, credential_id="l1", kind=CredentialKind.LOGIN, parent="p1", expires=NOW + 1, source="::1")
DEVICE = DeviceRequest(account="new", public_key="k", state="pending", created=NOW, updated=NOW)

Opened = Callable[[], AccountStore]


@pytest.fixture
def server(postgresql_server: str) -> str:
    """The database server's address, with nothing in the database."""
    return emptied(postgresql_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens the accounts of one home; the second time as after a restart."""
    url = request.getfixturevalue("server") if request.param == "postgresql" else None
    stores: list[AccountStore] = []

    def again() -> AccountStore:
        if stores:
            stores[-1].close()
        stores.append(AccountStore(tmp_path, now=NOW, database_url=url))
        return stores[-1]

    yield again
    stores[-1].close()


def test_everything_is_there_after_a_restart(opened: Opened) -> None:
    store = opened()
    store.add(PUMP, TOKEN)
    store.save(LOGIN, DEVICE)

    store = opened()
    assert (store.accounts(), _by_id(store), store.device_requests()) == ([PUMP], [LOGIN, TOKEN], [DEVICE])


def test_saving_replaces_and_a_second_account_of_a_name_is_a_conflict(opened: Opened) -> None:
    store = opened()
    store.add(PUMP)
    fuller = replace(PUMP, display_name="Pumpe – 泵", disabled=True, updated=NOW + 5)
    store.save(fuller)
    with pytest.raises(Conflict):
        store.add(PUMP, TOKEN)

    assert (store.accounts(), store.credentials()) == ([fuller], [])


def test_an_account_goes_and_what_it_had_is_kept_as_ended(opened: Opened) -> None:
    store = opened()
    other = replace(PUMP, name="lamp", account_id="2-b")
    store.add(PUMP, TOKEN)
    store.add(other, replace(TOKEN, credential_id="t2", account_id="2-b", account="lamp"))
    store.save(LOGIN, replace(DEVICE, account="pump"), DEVICE)
    gone = [(Account, "pump"), (DeviceRequest, "pump"), (Credential, "l1")]
    store.save(replace(TOKEN, ended=NOW + 1), without=gone)

    assert [account.name for account in store.accounts()] == ["lamp"]
    assert [(one.credential_id, one.ended) for one in _by_id(store)] == [("t1", NOW + 1), ("t2", None)]
    assert store.device_requests() == [DEVICE]


def test_single_credentials_and_requests_are_forgotten(opened: Opened) -> None:
    store = opened()
    store.add(PUMP, TOKEN)
    store.save(LOGIN, replace(LOGIN, credential_id="l2"), replace(TOKEN, credential_id="t2"), DEVICE)
    store.save(without=[*((Credential, one) for one in ("l1", "unknown", "t2")), (DeviceRequest, "new")])

    assert [one.credential_id for one in _by_id(store)] == ["l2", "t1"]
    assert store.device_requests() == []


def test_half_of_what_belongs_together_is_never_kept(opened: Opened) -> None:
    store = opened()
    store.add(PUMP)
    with pytest.raises(Exception, match="accounts database"):
        store.save(TOKEN, replace(TOKEN, credential_id="t2", account=None))  # type: ignore[arg-type]

    assert store.credentials() == []


def _by_id(store: AccountStore) -> list[Credential]:
    return sorted(store.credentials(), key=lambda one: one.credential_id)


def test_a_server_that_is_not_there_is_explained_to_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StorageFailed) as failed:
        AccountStore(tmp_path, now=NOW, database_url="postgresql+psycopg://skep:secret@127.0.0.1:1/x")
    assert failed.value.detail == "the accounts database refused; the log says why"
    (record,) = caplog.records
    assert "127.0.0.1" in vars(record)["why"]
    assert "secret" not in str(vars(record))


@asynccontextmanager
async def site(home: Path, url: str, pumped: list[JSONValue]) -> AsyncIterator[tuple[Consumer, str]]:
    """A whole runtime on the server, with its pump connected; ann's consumer, and the runtime's address."""
    off = {"https": None, "http": "127.0.0.1:0"}
    config = Config.of({"database_url": url, "http": off, "mqtt": {"mqtt": "127.0.0.1:0", "mqtts": None}})
    async with started(home, config) as running:
        administration = running.stores.authenticator.administration
        if running.stores.authenticator.type_of("ann") is None:
            await administration.add(
                "ann", AccountType.CONSUMER, Role.OPERATOR, password=PASSWORD, with_token=False, by="test"
            )
            _, token = await administration.add("pumps", AccountType.AGENT, by="test")
            (home / "pumps.token").write_text(token or "")
        assert running.mqtt is not None
        assert running.http is not None
        agent = Agent(running.mqtt, "pumps", (home / "pumps.token").read_text())
        agent.expose("pump-1", PUMP_TD)

        @agent.action("pump-1", "setSpeed")
        async def set_speed(speed: JSONValue, request: AgentRequest) -> JSONValue:
            pumped.append(speed)
            return {"speed": speed}

        async with agent, Consumer(running.http, login=("ann", PASSWORD)) as consumer:
            yield consumer, running.http


async def _logins(consumer: Consumer) -> list[JSONValue]:
    found = await consumer.call("dtw:authn:user", "listSessions")
    assert isinstance(found, dict)
    logins = found["logins"]
    assert isinstance(logins, list)
    return logins


@pytest.mark.anyio
async def test_a_whole_runtime_lives_on_the_server(tmp_path: Path, server: str) -> None:
    pumped: list[JSONValue] = []
    async with site(tmp_path / "home", server, pumped) as (ann, address):
        requested = await ann.invoke("dtw:pumps:pump-1", "setSpeed", 4, wait_s=10, reference="first")
        assert await requested.result() == {"speed": 4}
        profile = await ann.call("dtw:authn:user", "getProfile")
        await ann.call("dtw:authn:user", "updatePassword", {"oldPassword": PASSWORD, "newPassword": PASSWORD + "!"})
        await ann.call("dtw:authn:user", "updatePassword", {"oldPassword": PASSWORD + "!", "newPassword": PASSWORD})
        async with Consumer(address, login=("ann", PASSWORD)) as other:
            assert len(await _logins(ann)) == 2
            await other.http.json("POST", "/authn/logout", {})
        assert len(await _logins(ann)) == 1

    async with site(tmp_path / "home", server, pumped) as (ann, _):
        known = await ann.by_reference("first")
        assert (known.status.state, known.status.output) == ("completed", {"speed": 4})
        assert [thing.id for thing in await ann.things()] == ["dtw:pumps:pump-1"]
        again = await ann.call("dtw:authn:user", "getProfile")
        assert isinstance(profile, dict)
        assert isinstance(again, dict)
        assert again["created"] == profile["created"]
    assert pumped == [4]
    assert not (tmp_path / "home" / "accounts.db").exists()
    assert not (tmp_path / "home" / "twin.db").exists()
