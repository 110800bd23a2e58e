"""Logins, tokens and their end: what is accepted, what is refused, and what a restart changes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from authn.authenticator import LocalAuthenticator
from authn.passwords import Passwords
from authn.register import Revocation
from authn.throttle import LoginBudgets
from tests.authn.installations import GOOD, HOST, OTHER, Clock, agent_token, claimed, consumer, installation
from things.errors import (
    BadAddress,
    Conflict,
    Forbidden,
    Invalid,
    RateLimited,
    TokenExpired,
    TokenInvalid,
    Unauthenticated,
)
from things.identity import RESERVED_ACCOUNTS, AccountType, Role

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(tmp_path: Path, clock: Clock) -> Iterator[LocalAuthenticator]:
    with installation(tmp_path, clock) as opened:
        yield opened


# ---------------------------------------------------------------- the first start


async def test_a_fresh_installation_has_no_account_and_knows_no_usual_password(
    authenticator: LocalAuthenticator,
) -> None:
    usual = [("admin", "admin"), ("admin", "password"), ("root", "root"), ("admin", ""), ("", ""), ("skep", "skep")]

    assert authenticator.register.accounts == {}
    for account, password in usual:
        with pytest.raises(Unauthenticated):
            await authenticator.login(account, password, source=HOST)


async def test_the_claim_makes_the_first_admin_once(authenticator: LocalAuthenticator, tmp_path: Path) -> None:
    code = authenticator.claim_code.code
    assert code is not None
    assert len(code) * 4 == 128
    assert (tmp_path / "claim").read_text().strip() == code
    assert (tmp_path / "claim").stat().st_mode & 0o777 == 0o600

    opened = await authenticator.claim(code, "alice", GOOD, source=HOST)

    assert authenticator.verify(opened.access_token).role == Role.ADMIN
    assert not (tmp_path / "claim").exists()
    with pytest.raises(Conflict):
        await authenticator.claim(code, "mallory", GOOD, source=HOST)


async def test_a_wrong_or_late_claim_code_is_refused(authenticator: LocalAuthenticator, clock: Clock) -> None:
    code = authenticator.claim_code.code
    assert code is not None
    for wrong in ("", "0" * 32, code[:-1], code + "0", "é" * 32):
        with pytest.raises(Forbidden):
            await authenticator.claim(wrong, "alice", GOOD, source=HOST)

    clock.pass_s(3_601)

    with pytest.raises(Forbidden):
        await authenticator.claim(code, "alice", GOOD, source=HOST)


async def test_a_weak_password_leaves_the_claim_open(authenticator: LocalAuthenticator) -> None:
    code = authenticator.claim_code.code
    assert code is not None
    with pytest.raises(Invalid):
        await authenticator.claim(code, "alice", "12345678", source=HOST)

    await authenticator.claim(code, "alice", GOOD, source=HOST)


async def test_a_restart_before_the_claim_makes_another_code(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as first:
        earlier = first.claim_code.code
    with installation(tmp_path, clock) as second:
        assert second.claim_code.code not in (None, earlier)
        with pytest.raises(Forbidden):
            await second.claim(earlier or "", "alice", GOOD, source=HOST)


# ---------------------------------------------------------------- logins


async def test_a_password_opens_a_login_and_a_wrong_one_does_not(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")

    opened = await authenticator.open_login("vera", GOOD, source=HOST)

    document = opened.document()
    assert {**document, "accessToken": "", "refreshToken": ""} == {
        "accessToken": "",
        "refreshToken": "",
        "expiresIn": 900,
        "clientID": "vera",
        "role": "viewer",
    }
    for account, password in [("vera", OTHER), ("vera", ""), ("nobody", GOOD), ("vera\x00", GOOD), ("VERA", GOOD)]:
        with pytest.raises(Unauthenticated) as refusal:
            await authenticator.open_login(account, password, source=HOST)
        assert refusal.value.detail == Unauthenticated().detail


async def test_an_access_token_ends_and_the_refresh_token_continues_the_login(
    authenticator: LocalAuthenticator, clock: Clock
) -> None:
    first = await claimed(authenticator)
    authenticator.verify(first.access_token)
    clock.pass_s(900)
    with pytest.raises(TokenExpired):
        authenticator.verify(first.access_token)

    second = await authenticator.refresh(first.refresh_token, source=HOST)

    principal = authenticator.verify(second.access_token)
    assert (principal.account, principal.login_id) == ("root", first.principal.login_id)


async def test_a_refresh_token_used_twice_ends_the_login_for_both(authenticator: LocalAuthenticator) -> None:
    first = await claimed(authenticator)
    heard: list[Revocation] = []
    authenticator.on_revoked(heard.append)
    second = await authenticator.refresh(first.refresh_token, source=HOST)
    session = authenticator.verify(second.access_token)

    with pytest.raises(TokenInvalid):
        await authenticator.refresh(first.refresh_token, source="198.51.100.9")

    for token in (first.access_token, second.access_token):
        with pytest.raises(TokenInvalid):
            authenticator.verify(token)
    with pytest.raises(TokenInvalid):
        await authenticator.refresh(second.refresh_token, source=HOST)
    assert [revocation.covers(session) for revocation in heard] == [True]


async def test_a_reused_refresh_token_does_not_end_other_logins(authenticator: LocalAuthenticator) -> None:
    stolen = await claimed(authenticator)
    other = await authenticator.open_login("root", GOOD, source=HOST)
    await authenticator.refresh(stolen.refresh_token, source=HOST)
    with pytest.raises(TokenInvalid):
        await authenticator.refresh(stolen.refresh_token, source=HOST)

    assert authenticator.verify(other.access_token).account == "root"


async def test_a_login_survives_a_restart_and_so_does_its_end(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as first:
        kept = await claimed(first)
        ended = await first.open_login("root", GOOD, source=HOST)
        await first.logout(ended.principal)
    with installation(tmp_path, clock) as second:
        assert second.claim_code.code is None
        assert second.verify(kept.access_token).account == "root"
        await second.refresh(kept.refresh_token, source=HOST)
        with pytest.raises(TokenInvalid):
            second.verify(ended.access_token)


async def test_reuse_is_detected_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as first:
        old = await claimed(first)
        new = await first.refresh(old.refresh_token, source=HOST)
    with installation(tmp_path, clock) as second:
        with pytest.raises(TokenInvalid):
            await second.refresh(old.refresh_token, source=HOST)
        with pytest.raises(TokenInvalid):
            second.verify(new.access_token)


async def test_the_oldest_login_ends_when_there_are_too_many(authenticator: LocalAuthenticator, clock: Clock) -> None:
    first = await claimed(authenticator)
    for _ in range(49):
        clock.pass_s(1)
        await authenticator.open_login("root", GOOD, source=HOST)
    assert authenticator.verify(first.access_token)

    clock.pass_s(1)
    last = await authenticator.open_login("root", GOOD, source=HOST)

    assert authenticator.verify(last.access_token)
    with pytest.raises(TokenInvalid):
        authenticator.verify(first.access_token)


# ---------------------------------------------------------------- connections


async def test_a_long_lived_token_serves_as_password_of_its_own_account_only(
    authenticator: LocalAuthenticator,
) -> None:
    await claimed(authenticator)
    token = await agent_token(authenticator, "pump")
    await agent_token(authenticator, "lamp")

    principal = await authenticator.login("pump", token, source=HOST)

    assert (principal.account, principal.type, principal.role) == ("pump", AccountType.AGENT, Role.AGENT)
    assert authenticator.verify(token) == principal
    for foreign in ("lamp", "root", "", "nobody"):
        with pytest.raises(Unauthenticated):
            await authenticator.login(foreign, token, source=HOST)


async def test_a_revoked_token_is_refused_at_once_and_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as first:
        await claimed(first)
        token = await agent_token(first, "pump")
        principal = first.verify(token)
        heard: list[Revocation] = []
        first.on_revoked(heard.append)

        await first.administration.revoke_token(principal.token_id or "", by="root")

        assert [revocation.covers(principal) for revocation in heard] == [True]
        with pytest.raises(TokenInvalid):
            first.verify(token)
    with installation(tmp_path, clock) as second, pytest.raises(TokenInvalid):
        second.verify(token)


async def test_a_removed_accounts_token_does_not_serve_its_namesake(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    old = await agent_token(authenticator, "pump")
    await authenticator.administration.remove("pump", by="root")
    new = await agent_token(authenticator, "pump")

    assert authenticator.verify(new)
    with pytest.raises(TokenInvalid):
        authenticator.verify(old)


async def test_a_role_is_read_from_the_account_not_from_the_token(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera", Role.VIEWER)
    opened = await authenticator.open_login("vera", GOOD, source=HOST)
    heard: list[Revocation] = []
    authenticator.on_revoked(heard.append)
    assert authenticator.verify(opened.access_token).role == Role.VIEWER

    await authenticator.administration.set_role("vera", Role.OPERATOR, by="root")

    assert authenticator.verify(opened.access_token).role == Role.OPERATOR
    assert [(revocation.reason, revocation.covers(opened.principal)) for revocation in heard] == [("role", True)]


async def test_disabling_ends_every_credential_until_enabled_again(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    login = await authenticator.open_login("vera", GOOD, source=HOST)
    _, token = await authenticator.administration.issue_token("vera", by="root")
    by_password = await authenticator.login("vera", GOOD, source=HOST)
    by_token = authenticator.verify(token)
    heard: list[Revocation] = []
    authenticator.on_revoked(heard.append)

    await authenticator.administration.disable("vera", by="root")

    sessions = (login.principal, by_password, by_token)
    assert all(any(revocation.covers(session) for revocation in heard) for session in sessions)
    with pytest.raises(TokenInvalid):
        authenticator.verify(login.access_token)
    with pytest.raises(TokenInvalid):
        authenticator.verify(token)
    with pytest.raises(TokenInvalid):
        await authenticator.refresh(login.refresh_token, source=HOST)
    with pytest.raises(Unauthenticated):
        await authenticator.login("vera", GOOD, source=HOST)

    await authenticator.administration.enable("vera", by="root")

    assert authenticator.verify(token).account == "vera"
    assert (await authenticator.login("vera", GOOD, source=HOST)).account == "vera"
    with pytest.raises(TokenInvalid):
        authenticator.verify(login.access_token)


async def test_a_new_password_ends_logins_but_not_tokens(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")
    login = await authenticator.open_login("vera", GOOD, source=HOST)
    connection = await authenticator.login("vera", GOOD, source=HOST)
    _, token = await authenticator.administration.issue_token("vera", by="root")
    by_token = authenticator.verify(token)
    heard: list[Revocation] = []
    authenticator.on_revoked(heard.append)

    await authenticator.administration.set_password("vera", OTHER, by="root")

    assert any(revocation.covers(login.principal) for revocation in heard)
    assert any(revocation.covers(connection) for revocation in heard)
    assert not any(revocation.covers(by_token) for revocation in heard)
    assert authenticator.verify(token).account == "vera"
    with pytest.raises(TokenInvalid):
        authenticator.verify(login.access_token)
    with pytest.raises(Unauthenticated):
        await authenticator.login("vera", GOOD, source=HOST)


async def test_changing_ones_own_password_keeps_the_login_that_does_it(authenticator: LocalAuthenticator) -> None:
    own = await claimed(authenticator)
    other = await authenticator.open_login("root", GOOD, source=HOST)
    with pytest.raises(Unauthenticated):
        await authenticator.change_password(own.principal, OTHER, "third time lucky")

    await authenticator.change_password(own.principal, GOOD, OTHER)

    assert authenticator.verify(own.access_token)
    with pytest.raises(TokenInvalid):
        authenticator.verify(other.access_token)


async def test_logout_ends_this_login_and_logout_everywhere_all_but_tokens(authenticator: LocalAuthenticator) -> None:
    one = await claimed(authenticator)
    two = await authenticator.open_login("root", GOOD, source=HOST)
    three = await authenticator.open_login("root", GOOD, source=HOST)
    _, token = await authenticator.administration.issue_token("root", by="root")

    await authenticator.logout(one.principal)
    with pytest.raises(TokenInvalid):
        authenticator.verify(one.access_token)
    assert authenticator.verify(two.access_token)

    await authenticator.logout(two.principal, everywhere=True)
    for login in (two, three):
        with pytest.raises(TokenInvalid):
            authenticator.verify(login.access_token)
    assert authenticator.verify(token)


async def test_a_key_rotation_ends_logins_and_keeps_known_tokens(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as first:
        login = await claimed(first)
        token = await agent_token(first, "pump")
        heard: list[Revocation] = []
        first.on_revoked(heard.append)

        await first.rotate_keys(by="root")

        assert any(revocation.covers(login.principal) for revocation in heard)
        with pytest.raises(TokenInvalid):
            first.verify(login.access_token)
        assert first.verify(token).account == "pump"
    with installation(tmp_path, clock) as second:
        assert second.verify(token).account == "pump"
        await second.rotate_keys(by="root", long_lived=True)
        with pytest.raises(TokenInvalid):
            second.verify(token)


# ---------------------------------------------------------------- guessing


async def test_guessing_is_limited_per_account_and_source_and_released_by_time(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock, budgets=LoginBudgets.per_minute(10)) as authenticator:
        await claimed(authenticator)
        await consumer(authenticator, "vera")
        checked = limited = 0
        waits = []
        for _ in range(200):
            try:
                await authenticator.login("vera", OTHER, source=HOST)
            except RateLimited as refusal:
                limited += 1
                waits.append(refusal.retry_after_s)
            except Unauthenticated:
                checked += 1

        assert (checked, limited) == (10, 190)
        assert 0 < min(waits) <= max(waits) <= 60
        assert (await authenticator.login("vera", GOOD, source="198.51.100.9")).account == "vera"
        with pytest.raises(RateLimited):
            await authenticator.login("vera", GOOD, source=HOST)
        clock.pass_s(60)
        assert (await authenticator.login("vera", GOOD, source=HOST)).account == "vera"


async def test_many_sources_share_the_accounts_budget(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock, budgets=LoginBudgets.per_minute(10)) as authenticator:
        await claimed(authenticator)
        checked = 0
        for number in range(300):
            try:
                await authenticator.login("root", OTHER, source=f"2001:db8:0:{number:x}::1")
            except RateLimited:
                continue
            except Unauthenticated:
                checked += 1

        assert checked == 100


async def test_one_ipv6_network_is_one_source(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock, budgets=LoginBudgets.per_minute(10)) as authenticator:
        await claimed(authenticator)
        for number in range(10):
            with pytest.raises(Unauthenticated):
                await authenticator.login("root", OTHER, source=f"2001:db8::{number:x}")

        with pytest.raises(RateLimited):
            await authenticator.login("root", GOOD, source="2001:db8::ffff")


async def test_good_logins_cost_nothing(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock, budgets=LoginBudgets.per_minute(3)) as authenticator:
        await claimed(authenticator)
        for _ in range(20):
            await authenticator.login("root", GOOD, source=HOST)


@pytest.mark.usefixtures("costly_passwords")
async def test_an_unknown_account_costs_the_work_of_a_known_one() -> None:
    """The hash is computed either way; the shortest times are compared, which a busy machine disturbs least."""
    passwords = Passwords()
    kept = await passwords.hash(GOOD)
    known: list[float] = []
    unknown: list[float] = []
    for _ in range(7):
        for target, stored in ((known, kept), (unknown, None)):
            begun = time.perf_counter()
            assert not await passwords.matches(stored, OTHER)
            target.append(time.perf_counter() - begun)

    assert 0.5 < min(known) / min(unknown) < 2


# ---------------------------------------------------------------- names and passwords

BAD_NAMES = [
    "",
    "+",
    "#",
    "$share",
    "$SYS",
    "a/b",
    "..",
    "../x",
    ".hidden",
    "-x",
    "A",
    "pump station",
    "pump\x00",
    "pump\n",
    "pump\r\n",
    "\u202epump",
    "pu\u200bmp",
    "\u0430lice",  # Cyrillic a
    "ａlice",  # full width
    "ﬁx",
    "é",
    "e\u0301",
    "a:b",
    "a@b",
    "a~b",
    "a%2fb",
    "a" * 65,
    "a" * 65_536,
    '","admin":true,"x":"',
    "'; DROP TABLE accounts;--",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
async def test_a_name_that_is_no_account_is_refused(authenticator: LocalAuthenticator, name: str) -> None:
    with pytest.raises(BadAddress) as refusal:
        await authenticator.administration.add(name, AccountType.AGENT, by="root")

    assert refusal.value.code == "bad-address"
    assert len(refusal.value.detail) < 400
    with pytest.raises(Unauthenticated):
        await authenticator.login(name, GOOD, source=HOST)


@pytest.mark.parametrize("name", sorted(RESERVED_ACCOUNTS))
async def test_names_of_built_in_services_are_taken(authenticator: LocalAuthenticator, name: str) -> None:
    with pytest.raises(BadAddress):
        await authenticator.administration.add(name, AccountType.SERVICE, by="root")


async def test_a_second_account_of_a_name_is_a_conflict(authenticator: LocalAuthenticator) -> None:
    token = await agent_token(authenticator, "pump")

    with pytest.raises(Conflict):
        await authenticator.administration.add("pump", AccountType.SERVICE, by="root")

    assert authenticator.verify(token).type is AccountType.AGENT


@pytest.mark.parametrize(
    "password",
    ["", "short", "1234567", "12345678", "87654321", "aaaaaaaa", "abababab", "password", "Password1", "  password  "],
)
async def test_a_password_that_is_tried_first_is_refused(authenticator: LocalAuthenticator, password: str) -> None:
    with pytest.raises(Invalid):
        await authenticator.administration.add("vera", AccountType.CONSUMER, Role.VIEWER, password=password, by="root")


@pytest.mark.parametrize(
    "password", ["vera", "vera1234", "abcdefgh", "x" * 1_025, "a\ud800bcdefgh", "eyJhbGciOiJ9.eyJzdWIi.c2ln"]
)
async def test_a_weak_password_is_refused(authenticator: LocalAuthenticator, password: str) -> None:
    with pytest.raises(Invalid):
        await authenticator.administration.add("vera", AccountType.CONSUMER, Role.VIEWER, password=password, by="root")

    assert "vera" not in authenticator.register.accounts


@pytest.mark.parametrize("password", [GOOD, "ünïcödé pässwörd", "x7#Kq!pL", "🐝🐝🐝hive🐝🐝", "maple " * 170])
async def test_a_decent_password_is_accepted(authenticator: LocalAuthenticator, password: str) -> None:
    await authenticator.administration.add("vera", AccountType.CONSUMER, Role.VIEWER, password=password, by="root")

    assert (await authenticator.login("vera", password, source=HOST)).account == "vera"


@pytest.mark.parametrize(
    ("type_", "role"),
    [
        (AccountType.CONSUMER, "agent"),
        (AccountType.CONSUMER, "service"),
        (AccountType.AGENT, "admin"),
        (AccountType.AGENT, "service"),
        (AccountType.SERVICE, "agent"),
        (AccountType.CONSUMER, "gardener"),
        (AccountType.CONSUMER, "ADMIN"),
    ],
)
async def test_a_role_that_does_not_fit_or_exist_is_refused(
    authenticator: LocalAuthenticator, type_: AccountType, role: str
) -> None:
    with pytest.raises(Invalid):
        await authenticator.administration.add("vera", type_, role, by="root")


# ---------------------------------------------------------------- the last admin


async def test_the_last_admin_cannot_be_demoted_disabled_or_removed(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    acts = authenticator.administration
    await consumer(authenticator, "vera")
    for attempt in (
        acts.set_role("root", Role.VIEWER, by="root"),
        acts.disable("root", by="root"),
        acts.remove("root", by="root"),
    ):
        with pytest.raises(Conflict, match="last admin"):
            await attempt

    await acts.set_role("vera", Role.ADMIN, by="root")
    await acts.disable("root", by="vera")

    with pytest.raises(Conflict, match="last admin"):
        await acts.remove("vera", by="vera")


# ---------------------------------------------------------------- secrets at rest


async def test_no_secret_lies_readable_in_database_or_audit_log(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        opened = await claimed(authenticator)
        token = await agent_token(authenticator, "pump")
        with pytest.raises(Unauthenticated):
            await authenticator.login("root", "canary password", source=HOST)
        again = await authenticator.refresh(opened.refresh_token, source=HOST)
    secrets = [GOOD, "canary password", token, opened.access_token, opened.refresh_token, again.refresh_token]
    secrets += [text.rpartition(".")[2] for text in secrets[2:]]

    content = b"".join(path.read_bytes() for path in files_below(tmp_path))

    assert [secret for secret in secrets if secret.encode() in content] == []


async def test_files_with_secrets_are_the_owners_alone(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock) as authenticator:
        await claimed(authenticator)

        open_ = [path.name for path in files_below(tmp_path) if path.stat().st_mode & 0o077]

        assert open_ == []


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
