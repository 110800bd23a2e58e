"""The register of credentials: what an account has and had, what came of what, and how each of it ends."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from authn.accounts import AccountStore
from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.credentials import REVOKED_KEPT_US, Credential, CredentialKind, lineage
from authn.lineage import credential_id
from authn.logins import MAX_ACCESS
from authn.register import NOTED_EVERY_US
from tests.authn.installations import GOOD, HOST, OTHER, Clock, agent_token, claimed, consumer, installation
from tests.authn.test_client_certificates import shown
from tests.authn.test_provisioning import Device, provisioned
from things.errors import NotFound, TokenInvalid, Unauthenticated, UnknownAccount
from things.identity import Principal

pytestmark = pytest.mark.anyio

KINDS = ("password", "login", "access", "token", "certificate", "key")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(tmp_path: Path, clock: Clock) -> Iterator[LocalAuthenticator]:
    with installation(tmp_path / "home", clock) as opened:
        yield opened


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Certificates:
    return Certificates(tmp_path / "certs", clock)


def kinds(authenticator: LocalAuthenticator, name: str) -> list[str]:
    return sorted(str(one.kind) for one in authenticator.register.of(authenticator.register.account(name)))


def one(authenticator: LocalAuthenticator, name: str, kind: CredentialKind) -> Credential:
    (found,) = authenticator.register.of(authenticator.register.account(name), kind)
    return found


async def test_a_login_came_of_a_password_and_an_access_token_of_the_login(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    opened = await authenticator.open_login("vera", GOOD, source=HOST)

    password = one(authenticator, "vera", CredentialKind.PASSWORD)
    login = one(authenticator, "vera", CredentialKind.LOGIN)
    access = one(authenticator, "vera", CredentialKind.ACCESS)
    assert (login.parent, access.parent) == (password.credential_id, login.credential_id)
    assert (password.made_by, login.made_by, login.source) == ("root", "vera", HOST)
    assert credential_id(opened.principal) == login.credential_id
    connection = await authenticator.login("vera", GOOD, source=HOST)
    assert credential_id(connection) == password.credential_id


def test_a_lineage_is_a_credential_and_all_below_it() -> None:
    first = Credential(credential_id="1", kind=CredentialKind.PASSWORD, account_id="a", account="a", created=0)
    second, third = replace(first, credential_id="2", parent="1"), replace(first, credential_id="3", parent="2")
    other = replace(first, credential_id="4")

    assert lineage(first, [third, other, second]) == [first, second, third]
    assert lineage(third, [first, second, third, other]) == [third]


async def by(authenticator: LocalAuthenticator, authority: Certificates, kind: str) -> Principal:
    """Who comes by a credential of a kind, once more."""
    match kind:
        case "password":
            return await authenticator.login("vera", GOOD, source=HOST)
        case "login" | "access":
            return (await authenticator.open_login("vera", GOOD, source=HOST)).principal
        case "token":
            _, text = await authenticator.administration.issue_token("vera", by="root")
            return authenticator.verify(text)
        case _:
            pem, _, _ = await authenticator.certificates.issue(authority, "vera", None, by="root")
            return await authenticator.by_certificate(shown(pem))


@pytest.mark.parametrize("kind", ["password", "login", "access", "token", "certificate"])
async def test_one_that_is_revoked_ends_alone_with_what_came_of_it(
    authenticator: LocalAuthenticator, authority: Certificates, clock: Clock, kind: str
) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    clock.pass_s(60)
    all_of_them = {other: await by(authenticator, authority, other) for other in KINDS if other != "key"}
    told: list[Principal] = []
    authenticator.on_revoked(lambda gone: told.extend(who for who in all_of_them.values() if gone.covers(who)))
    ended = all_of_them[kind].token_id if kind == "access" else credential_id(all_of_them[kind])
    assert ended is not None

    await authenticator.administration.revoke(ended, by="root")

    fallen = {name for name, who in all_of_them.items() if authenticator.standing(who) is None}
    assert fallen == ({"password", "login", "access"} if kind == "password" else {kind})
    assert {who.login_id for who in told} >= {all_of_them[name].login_id for name in fallen}
    assert not any(who in told for name, who in all_of_them.items() if name not in fallen)
    with pytest.raises(NotFound):
        await authenticator.administration.revoke(ended, by="root")


async def test_an_access_token_that_is_revoked_is_refused_and_its_login_goes_on(
    authenticator: LocalAuthenticator,
) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    opened = await authenticator.open_login("vera", GOOD, source=HOST)
    assert opened.principal.token_id is not None
    authenticator.verify(opened.access_token)

    await authenticator.administration.revoke(opened.principal.token_id, by="root", of="vera")

    with pytest.raises(TokenInvalid):
        authenticator.verify(opened.access_token)
    again = await authenticator.refresh(opened.refresh_token, source=HOST)
    assert authenticator.verify(again.access_token).account == "vera"


async def test_nobody_revokes_what_is_another_account_s(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    await consumer(authenticator, "carl")
    password = one(authenticator, "vera", CredentialKind.PASSWORD)

    with pytest.raises(NotFound):
        await authenticator.administration.revoke(password.credential_id, by="carl", of="carl")

    assert (await authenticator.login("vera", GOOD, source=HOST)).account == "vera"


async def device_token(authenticator: LocalAuthenticator) -> str:
    """The token that a device fetched with its key."""
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    return (await provisioned(authenticator, device)).token or ""


async def test_everything_an_account_ever_had_ends_at_once(
    authenticator: LocalAuthenticator, authority: Certificates, clock: Clock
) -> None:
    await claimed(authenticator)
    token = await device_token(authenticator)
    clock.pass_s(60)
    pem, _, _ = await authenticator.certificates.issue(authority, "pump-7", None, by="root")
    assert kinds(authenticator, "pump-7") == ["certificate", "key", "token"]
    assert one(authenticator, "pump-7", CredentialKind.TOKEN).parent == (
        one(authenticator, "pump-7", CredentialKind.KEY).credential_id
    )
    who = authenticator.verify(token)
    heard: list[bool] = []
    authenticator.on_revoked(lambda gone: heard.append(gone.covers(who)))

    assert await authenticator.administration.revoke_all("pump-7", by="root") == 3

    assert kinds(authenticator, "pump-7") == []
    assert heard == [True]
    with pytest.raises(TokenInvalid):
        authenticator.verify(token)
    with pytest.raises(Unauthenticated):
        await authenticator.by_certificate(shown(pem))
    assert authenticator.register.requests == {}
    with pytest.raises(UnknownAccount):
        await authenticator.administration.revoke_all("nobody", by="root")


async def test_a_key_that_is_revoked_takes_the_token_with_it_that_it_fetched(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    token = await device_token(authenticator)
    key = one(authenticator, "pump-7", CredentialKind.KEY)

    await authenticator.administration.revoke(key.credential_id, by="root")

    with pytest.raises(TokenInvalid):
        authenticator.verify(token)


async def test_what_a_removed_account_had_is_known_and_another_of_the_name_has_none_of_it(
    tmp_path: Path, clock: Clock
) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        old = await agent_token(authenticator, "pump")
        former = authenticator.register.account("pump").account_id
        await authenticator.administration.remove("pump", by="root")
        clock.pass_s(1)
        await agent_token(authenticator, "pump")

    with installation(tmp_path, clock) as authenticator:
        (ended,) = authenticator.register.ever(former).values()
        (fresh,) = authenticator.register.of(authenticator.register.account("pump"))
        assert (ended.kind, ended.account, ended.ended is None) == (CredentialKind.TOKEN, "pump", False)
        assert fresh.account_id != former
        with pytest.raises(TokenInvalid):
            authenticator.verify(old)
        with pytest.raises(NotFound):
            await authenticator.administration.revoke(ended.credential_id, by="root")


async def test_uses_are_known_by_the_hour_and_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        token = await agent_token(authenticator, "pump")
        assert one(authenticator, "pump", CredentialKind.TOKEN).used is None
        authenticator.verify(token)
        first = clock()
        clock.pass_s(60)
        authenticator.verify(token)
        assert one(authenticator, "pump", CredentialKind.TOKEN).used == first
        clock.pass_s(NOTED_EVERY_US / 1_000_000)
        authenticator.verify(token)
        await authenticator.keep_house()
        assert next(kept for kept in authenticator._store.credentials() if kept.account == "pump").used == clock()

    with installation(tmp_path, clock) as authenticator:
        assert one(authenticator, "pump", CredentialKind.TOKEN).used == clock()


async def test_what_has_ended_is_kept_within_bounds(
    authenticator: LocalAuthenticator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("authn.credentials.MAX_REVOKED", 20)
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    for _ in range(30):
        _, text = await authenticator.administration.issue_token("vera", by="root")
        clock.pass_s(1)
        await authenticator.administration.revoke_token(authenticator.verify(text).login_id or "", by="root")
    account_id = authenticator.register.account("vera").account_id
    assert len(authenticator.register.ever(account_id)) == 21  # the password stands

    clock.pass_s(REVOKED_KEPT_US / 1_000_000)
    await authenticator.keep_house()

    assert [kept.kind for kept in authenticator.register.ever(account_id).values()] == [CredentialKind.PASSWORD]
    assert len(authenticator._store.credentials()) == len(authenticator.register.credentials)


async def test_what_was_asked_by_a_login_outlives_its_logout_and_not_its_revocation(
    authenticator: LocalAuthenticator,
) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    left = (await authenticator.open_login("vera", GOOD, source=HOST)).principal
    taken = (await authenticator.open_login("vera", GOOD, source=HOST)).principal
    await authenticator.logout(left)
    await authenticator.administration.revoke(taken.login_id or "", by="root")

    assert authenticator.standing(left) is None
    assert authenticator.standing(left, after_logout=True) == left
    assert authenticator.standing(taken, after_logout=True) is None


async def test_a_login_has_so_many_access_tokens_and_those_before_are_refused(
    authenticator: LocalAuthenticator,
) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    opened = first = await authenticator.open_login("vera", GOOD, source=HOST)
    for _ in range(MAX_ACCESS):
        opened = await authenticator.refresh(opened.refresh_token, source=HOST)

    assert kinds(authenticator, "vera").count("access-token") == MAX_ACCESS
    assert authenticator.verify(opened.access_token).account == "vera"
    with pytest.raises(TokenInvalid):
        authenticator.verify(first.access_token)


async def test_a_login_that_changed_the_password_hangs_on_the_new_one(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    opened = await authenticator.open_login("vera", GOOD, source=HOST)
    former = one(authenticator, "vera", CredentialKind.PASSWORD)
    await authenticator.change_password(opened.principal, GOOD, OTHER)

    fresh = one(authenticator, "vera", CredentialKind.PASSWORD)
    assert one(authenticator, "vera", CredentialKind.LOGIN).parent == fresh.credential_id != former.credential_id
    assert authenticator.standing(opened.principal) == opened.principal
    await authenticator.administration.revoke(fresh.credential_id, by="root")

    assert authenticator.standing(opened.principal) is None


def test_nothing_is_stored_twice_of_what_proves_an_account(tmp_path: Path) -> None:
    store = AccountStore(tmp_path, now=1)
    with store._engine.connect() as connection:
        names = {name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
    store.close()

    assert names == {"accounts", "authn_migrations", "credentials", "device_requests", "revisions"}
