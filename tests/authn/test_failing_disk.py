"""What ends while nothing can be stored: it takes effect, is answered by the failure, and is stored once it can be."""

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.credentials import CredentialKind
from authn.register import Revocation
from tests.authn.installations import GOOD, HOST, OTHER, Clock, agent_token, claimed, consumer, installation
from tests.authn.test_client_certificates import shown
from tests.authn.test_provisioning import Device, provisioned
from things import whole_files
from things.errors import Conflict, NotFound, StorageFailed, StorageFull, TokenInvalid, Unauthenticated
from things.identity import Role

pytestmark = pytest.mark.anyio

Act = Callable[[LocalAuthenticator], Awaitable[object]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextmanager
def failing(authenticator: LocalAuthenticator) -> Iterator[None]:
    """The database takes no write."""
    engine = authenticator._store._engine

    def refuse(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only=ON")

    event.listen(engine, "begin", refuse)
    try:
        yield
    finally:
        event.remove(engine, "begin", refuse)
        engine.dispose()


async def refused(authenticator: LocalAuthenticator, act: Act) -> None:
    with failing(authenticator), pytest.raises(StorageFailed):
        await act(authenticator)


async def acts(authenticator: LocalAuthenticator) -> list[tuple[object, object, object]]:
    """What the audit log says: act, target, outcome."""
    return [(line["act"], line.get("target"), line["outcome"]) for line in await authenticator.audited()]


def token_id(authenticator: LocalAuthenticator, name: str) -> str:
    (token,) = authenticator.register.tokens_of(name)
    return token.credential_id


async def settled_by_the_next_change(authenticator: LocalAuthenticator) -> None:
    await consumer(authenticator, "somebody-else")


async def settled_by_housekeeping(authenticator: LocalAuthenticator) -> None:
    await authenticator.keep_house()


async def settled_by_the_end(authenticator: LocalAuthenticator) -> None:
    """Closing stores it."""


SETTLED: list[Act] = [settled_by_the_next_change, settled_by_housekeeping, settled_by_the_end]


@pytest.mark.parametrize("settled", SETTLED)
async def test_a_token_that_ended_while_nothing_could_be_stored_is_no_good_after_a_restart(
    tmp_path: Path, clock: Clock, settled: Act
) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        token = await agent_token(authenticator, "pump")
        await authenticator.keep_house()
        ended = token_id(authenticator, "pump")
        await refused(authenticator, lambda one: one.administration.revoke_token(ended, by="root"))
        with pytest.raises(TokenInvalid):
            authenticator.verify(token)

        await settled(authenticator)

    with installation(tmp_path, clock) as authenticator, pytest.raises(TokenInvalid):
        authenticator.verify(token)


async def test_whoever_repeats_an_end_is_told_that_it_is_not_stored_until_it_is(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        await agent_token(authenticator, "pump")
        ended = token_id(authenticator, "pump")

        def again(one: LocalAuthenticator) -> Awaitable[object]:
            return one.administration.revoke(ended, by="root")

        await refused(authenticator, again)
        await refused(authenticator, again)
        assert authenticator.problem is not None

        with pytest.raises(NotFound):
            await again(authenticator)

        kept = {one.credential_id: one for one in authenticator._store.credentials()}
        assert kept[ended].because == "revoked"
        assert authenticator.problem is None


async def test_a_removed_account_stays_removed_and_another_may_have_its_name(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        former = await agent_token(authenticator, "pump")
        other = await agent_token(authenticator, "lamp")
        for name in ("pump", "lamp"):
            await refused(authenticator, lambda one, name=name: one.administration.remove(name, by="root"))  # type: ignore[misc]
        fresh = await agent_token(authenticator, "pump")

    with installation(tmp_path, clock) as authenticator:
        assert sorted(authenticator.register.accounts) == ["pump", "root"]
        assert authenticator.verify(fresh).account == "pump"
        for token in (former, other):
            with pytest.raises(TokenInvalid):
                authenticator.verify(token)


async def test_a_role_that_was_taken_and_an_account_that_was_disabled_stay_so(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        await consumer(authenticator, "vera", Role.MANAGER)
        await consumer(authenticator, "carl")
        await refused(authenticator, lambda one: one.administration.set_role("vera", Role.VIEWER, by="root"))
        await refused(authenticator, lambda one: one.administration.disable("carl", by="root"))

    with installation(tmp_path, clock) as authenticator:
        assert (await authenticator.login("vera", GOOD, source=HOST)).role == Role.VIEWER
        with pytest.raises(Unauthenticated):
            await authenticator.login("carl", GOOD, source=HOST)


async def test_what_a_failed_change_did_not_do_is_not_done_later(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        await consumer(authenticator, "vera")
        await refused(authenticator, lambda one: one.administration.issue_token("vera", by="root"))
        await refused(authenticator, lambda one: consumer(one, "carl"))
        await refused(authenticator, lambda one: one.administration.update("vera", display_name="Vera", by="root"))
        await settled_by_the_next_change(authenticator)

        assert authenticator.register.tokens_of("vera") == []
        assert sorted(one.name for one in authenticator._store.accounts()) == ["root", "somebody-else", "vera"]
        assert [one.display_name for one in authenticator._store.accounts()] == ["", "", ""]


async def test_uses_that_could_not_be_stored_are_stored_later(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        token = await agent_token(authenticator, "pump")
        authenticator.verify(token)
        used = clock()
        await refused(authenticator, lambda one: one.keep_house())

        await authenticator.keep_house()

        assert [one.used for one in authenticator._store.credentials() if one.account == "pump"] == [used]


async def device(authenticator: LocalAuthenticator) -> tuple[Device, str]:
    """One that was let in, and the token it fetched with its key."""
    pump = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", pump.public, by="root")
    return pump, (await provisioned(authenticator, pump)).token or ""


async def end_token(authenticator: LocalAuthenticator) -> None:
    await authenticator.administration.revoke_token(token_id(authenticator, "pump-7"), by="root")


async def end_key(authenticator: LocalAuthenticator) -> None:
    (key,) = authenticator.register.of(authenticator.register.account("pump-7"), CredentialKind.KEY)
    await authenticator.administration.revoke(key.credential_id, by="root")


async def end_everything(authenticator: LocalAuthenticator) -> None:
    await authenticator.administration.revoke_all("pump-7", by="root")


async def end_all_keys(authenticator: LocalAuthenticator) -> None:
    await authenticator.rotate_keys(by="root", long_lived=True)


@pytest.mark.parametrize("end", [end_token, end_key, end_everything, end_all_keys])
async def test_a_device_whose_token_or_key_ended_fetches_no_other(tmp_path: Path, clock: Clock, end: Act) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        pump, token = await device(authenticator)
        await refused(authenticator, end)

        with pytest.raises(TokenInvalid):
            authenticator.verify(token)
        with pytest.raises(Conflict):
            await pump.ask(authenticator)

    with installation(tmp_path, clock) as authenticator:
        assert authenticator.register.requests == {}
        assert authenticator.register.of(authenticator.register.account("pump-7")) == []
        with pytest.raises(TokenInvalid):
            authenticator.verify(token)


async def test_a_rotation_ends_the_tokens_of_everybody_and_says_so(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        login = await claimed(authenticator)
        texts = [await agent_token(authenticator, name) for name in ("pump", "lamp", "door")]
        who = [authenticator.verify(text) for text in texts]
        told: list[Revocation] = []
        authenticator.on_revoked(told.append)

        await refused(authenticator, end_all_keys)

        assert {one.account for one in told} == {"root", "pump", "lamp", "door"}
        assert all(any(revocation.covers(one) for revocation in told) for one in (*who, login.principal))
        for text in texts:
            with pytest.raises(TokenInvalid):
                authenticator.verify(text)
        assert ("keys-rotated", None, "not stored") in await acts(authenticator)

    with installation(tmp_path, clock) as authenticator:
        for text in texts:
            with pytest.raises(TokenInvalid):
                authenticator.verify(text)


@pytest.mark.parametrize("failing_at", ["token", "retired"])
async def test_a_rotation_whose_keys_cannot_be_written_ends_the_logins_all_the_same(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, failing_at: str
) -> None:
    write = whole_files.write_whole

    def full(path: Path, content: bytes) -> None:
        if path.name.startswith(failing_at):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with installation(tmp_path, clock) as authenticator:
        login = await claimed(authenticator)
        token = await agent_token(authenticator, "pump")
        monkeypatch.setattr("authn.tokens.write_whole", full)
        with pytest.raises(StorageFull):
            await authenticator.rotate_keys(by="root")

        with pytest.raises(TokenInvalid):
            authenticator.verify(login.access_token)
        assert authenticator.verify(token).account == "pump"

    monkeypatch.undo()
    with installation(tmp_path, clock) as authenticator:
        assert authenticator.verify(token).account == "pump"
        with pytest.raises(TokenInvalid):
            await authenticator.refresh(login.refresh_token, source=HOST)


async def test_acts_that_took_effect_are_in_the_audit_log_and_others_are_not(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)
        for name in ("anna", "bert", "carl", "dora", "emil"):
            await consumer(authenticator, name, Role.MANAGER)
        opened = await authenticator.open_login("anna", GOOD, source=HOST)
        pem, _, certificate = await authenticator.certificates.issue(
            Certificates(tmp_path / "certs", clock), "emil", None, by="root"
        )
        admin = authenticator.administration
        done: list[tuple[str, str, Act]] = [
            ("role-set", "bert", lambda one: admin.set_role("bert", Role.VIEWER, by="root")),
            ("account-disabled", "carl", lambda one: admin.disable("carl", by="root")),
            ("account-removed", "dora", lambda one: admin.remove("dora", by="root")),
            ("login-ended", "anna", lambda one: admin.end_login(opened.principal.login_id or "", by="root")),
            ("password-set", "anna", lambda one: admin.set_password("anna", OTHER, by="root")),
            (
                "certificate-revoked",
                "emil",
                lambda one: one.certificates.revoke(certificate.credential_id, by="root"),
            ),
            ("credentials-revoked", "emil", lambda one: admin.revoke_all("emil", by="root")),
        ]
        for _, _, act in done:
            await refused(authenticator, act)
        await refused(authenticator, lambda one: admin.enable("carl", by="root"))

        said = await acts(authenticator)
        assert [one for one in said if one[2] == "not stored"] == [
            (act, target, "not stored") for act, target, _ in done
        ]
        with pytest.raises(Unauthenticated):
            await authenticator.by_certificate(shown(pem))
