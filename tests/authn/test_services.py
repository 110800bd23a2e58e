"""Accounts as Things: what the methods take and give, for admins and for everybody about themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.own_service import AuthnUser
from authn.service import AuthnAdmin
from tests.authn.installations import GOOD, HOST, OTHER, Clock, agent_token, claimed, consumer, installation
from things.errors import Conflict, Invalid, NotFound, TokenInvalid, Unauthenticated, UnknownAccount, UnknownName
from things.identity import LOCAL_ADMIN, AccountType, Principal
from things.messages import JSONValue, Operation
from things.td import ThingDescription

pytestmark = pytest.mark.anyio


@pytest.fixture
def authenticator(tmp_path: Path) -> Iterator[LocalAuthenticator]:
    with installation(tmp_path, Clock()) as opened:
        yield opened


@pytest.fixture
def admin(authenticator: LocalAuthenticator, tmp_path: Path) -> AuthnAdmin:
    connections: list[dict[str, JSONValue]] = [{"sessionID": "s1", "clientID": "vera", "binding": "mqtt"}]
    return AuthnAdmin(
        authenticator,
        certificates=Certificates(tmp_path / "certs", Clock()),
        sessions=lambda account: [one for one in connections if account in (None, one["clientID"])],
        end_session=lambda session_id: session_id == "s1",
    )


@pytest.fixture
def user(authenticator: LocalAuthenticator) -> AuthnUser:
    return AuthnUser(authenticator)


async def call(service: AuthnAdmin | AuthnUser, name: str, principal: Principal = LOCAL_ADMIN, **given: Any) -> Any:
    return await service.call(name, given or None, principal)


def principal(name: str, role: str = "viewer") -> Principal:
    return Principal(account=name, type=AccountType.CONSUMER, role=role, login_id="x")


def test_the_services_are_things_whose_methods_all_have_a_requirement(admin: AuthnAdmin, user: AuthnUser) -> None:
    for service, operation in ((admin, Operation.MANAGE), (user, Operation.READ)):
        td = ThingDescription.of(service.td, agent=True)
        for name in service.td["actions"]:
            asked, address = service.requirement(name, None)
            assert (asked, address.thing_id, address.name) == (operation, service.thing_id, name)
            assert td.actions[name]
        for wrong in ("", "ADDCLIENT", "addclient", "addClient/", "call", "__init__", "_add"):
            with pytest.raises(UnknownName):
                service.requirement(wrong, None)


async def test_adding_an_account_of_each_type(admin: AuthnAdmin, authenticator: LocalAuthenticator) -> None:
    added = await call(admin, "addClient", clientID="pump", type="agent", displayName="Pump station")
    assert {**added, "token": ""} == {"clientID": "pump", "type": "agent", "role": "agent", "token": ""}
    assert authenticator.verify(added["token"]).account == "pump"

    vera = await call(admin, "addClient", clientID="vera", type="consumer", role="viewer")
    assert (await authenticator.login("vera", vera["token"], source=HOST)).role == "viewer"

    rollup = await call(admin, "addService", clientID="rollup")
    assert authenticator.verify(rollup["token"]).role == "service"

    otto = await call(admin, "addConsumer", clientID="otto", password=GOOD)
    assert otto == {"clientID": "otto", "type": "consumer", "role": "none"}


async def test_a_profile_shows_no_secret(admin: AuthnAdmin) -> None:
    await call(admin, "addConsumer", clientID="otto", password=GOOD, role="operator")

    shown = await call(admin, "getClient", clientID="otto")

    assert sorted(shown) == [
        "clientID",
        "created",
        "disabled",
        "displayName",
        "hasPassword",
        "publicKey",
        "role",
        "type",
        "updated",
    ]
    assert (shown["hasPassword"], shown["role"]) == (True, "operator")
    assert [item["clientID"] for item in (await call(admin, "listClients"))["items"]] == ["otto"]


async def test_role_password_disable_enable_remove(admin: AuthnAdmin, authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "vera")

    assert (await call(admin, "setClientRole", clientID="vera", role="manager"))["role"] == "manager"
    await call(admin, "setClientPassword", clientID="vera", password=OTHER)
    assert (await authenticator.login("vera", OTHER, source=HOST)).role == "manager"
    await call(admin, "disableClient", clientID="vera")
    with pytest.raises(Unauthenticated):
        await authenticator.login("vera", OTHER, source=HOST)
    await call(admin, "enableClient", clientID="vera")
    await authenticator.login("vera", OTHER, source=HOST)
    await call(admin, "removeClient", clientID="vera")
    refused: list[tuple[str, dict[str, Any]]] = [
        ("getClient", {}),
        ("setClientRole", {"role": "viewer"}),
        ("setClientPassword", {"password": GOOD}),
        ("disableClient", {}),
        ("removeClient", {}),
        ("issueToken", {}),
        ("endSessions", {}),
    ]
    for name, more in refused:
        with pytest.raises(UnknownAccount):
            await call(admin, name, clientID="vera", **more)
    with pytest.raises(Conflict, match="last admin"):
        await call(admin, "removeClient", clientID="root")


async def test_tokens_are_given_listed_and_revoked(admin: AuthnAdmin, authenticator: LocalAuthenticator) -> None:
    await agent_token(authenticator, "pump")
    given = await call(admin, "issueToken", clientID="pump", label="spare", expiresIn=3_600)
    assert authenticator.verify(given["token"]).account == "pump"

    listed = (await call(admin, "listTokens", clientID="pump"))["items"]
    assert [token["label"] for token in listed] == ["first", "spare"]
    assert all("token" not in token for token in listed)

    await call(admin, "revokeToken", tokenID=given["tokenID"])
    with pytest.raises(TokenInvalid):
        authenticator.verify(given["token"])
    with pytest.raises(NotFound):
        await call(admin, "revokeToken", tokenID=given["tokenID"])


async def test_sessions_are_listed_and_ended(admin: AuthnAdmin, authenticator: LocalAuthenticator) -> None:
    opened = await claimed(authenticator)
    shown = await call(admin, "listSessions")
    assert [login["sessionID"] for login in shown["logins"]] == [opened.principal.login_id]
    assert [session["sessionID"] for session in shown["connections"]] == ["s1"]

    await call(admin, "endSession", sessionID="s1")
    await call(admin, "endSession", sessionID=opened.principal.login_id)

    with pytest.raises(TokenInvalid):
        authenticator.verify(opened.access_token)
    with pytest.raises(NotFound):
        await call(admin, "endSession", sessionID="nothing")


async def test_a_client_certificate_is_made_for_an_account(
    admin: AuthnAdmin, authenticator: LocalAuthenticator
) -> None:
    await agent_token(authenticator, "pump")

    made = await call(admin, "issueCertificate", clientID="pump")

    assert made["certificate"].startswith("-----BEGIN CERTIFICATE")
    assert made["key"].startswith("-----BEGIN PRIVATE KEY")
    with pytest.raises(UnknownAccount):
        await call(admin, "issueCertificate", clientID="nobody")


async def test_the_audit_log_is_verified_by_rpc(admin: AuthnAdmin) -> None:
    await call(admin, "addClient", clientID="pump", type="agent")

    verdict = await call(admin, "verifyAudit")

    assert (verdict["intact"], verdict["acts"], verdict["reason"]) == (True, 1, None)


async def test_the_audit_log_is_read_by_rpc(admin: AuthnAdmin) -> None:
    for number in range(5):
        await call(admin, "addClient", clientID=f"pump-{number}", type="agent")

    latest = (await call(admin, "readAudit", limit=2))["items"]
    after = (await call(admin, "readAudit", after=1, limit=2))["items"]

    assert [act["target"] for act in latest] == ["pump-3", "pump-4"]
    assert [act["seq"] for act in after] == [2, 3]
    assert (await call(admin, "readAudit", after=6))["items"] == []
    assert await admin.call("readAudit", {"class": "administration", "limit": 2}, LOCAL_ADMIN) == {"items": latest}
    assert await admin.call("readAudit", {"class": "use"}, LOCAL_ADMIN) == {"items": []}
    with pytest.raises(Invalid):
        await admin.call("readAudit", {"class": "nothing"}, LOCAL_ADMIN)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("addClient", {}),
        ("addClient", {"clientID": "x"}),
        ("addClient", {"clientID": "x", "type": "user"}),
        ("addClient", {"clientID": "x", "type": "agent", "admin": True}),
        ("addClient", {"clientID": 7, "type": "agent"}),
        ("addClient", {"clientID": "x", "type": "agent", "role": ["admin"]}),
        ("addClient", {"client_id": "x", "type": "agent"}),
        ("addClient", {"clientID": "x", "type": "agent", "expiresIn": 0}),
        ("addClient", {"clientID": "x", "type": "agent", "expiresIn": 1e12}),
        ("addClient", {"clientID": "x", "type": "agent", "displayName": "evil\u202e"}),
        ("addClient", {"clientID": "x", "type": "agent", "displayName": "x" * 129}),
        ("addClient", {"clientID": "x", "type": "agent", "publicKey": "nonsense"}),
        ("addClient", {"clientID": "x" * 65_536, "type": "agent"}),
        ("addConsumer", {"clientID": "x", "password": "weak"}),
        ("listClients", {"all": True}),
        ("getClient", []),
        ("getClient", "x"),
    ],
)
async def test_wrong_input_is_invalid_and_makes_nothing(
    admin: AuthnAdmin, authenticator: LocalAuthenticator, method: str, given: JSONValue
) -> None:
    with pytest.raises(Invalid):
        await admin.call(method, given, LOCAL_ADMIN)

    assert authenticator.register.accounts == {}


async def test_everybody_acts_on_their_own_account_only(user: AuthnUser, authenticator: LocalAuthenticator) -> None:
    root = await claimed(authenticator)
    await consumer(authenticator, "vera")
    foreign, _ = await authenticator.administration.issue_token("root", by="root")
    vera = principal("vera")

    assert (await call(user, "getProfile", vera))["clientID"] == "vera"
    assert (await call(user, "updateName", vera, displayName="Vera V."))["displayName"] == "Vera V."
    assert (await call(user, "listTokens", vera))["items"] == []
    assert (await call(user, "listSessions", vera))["logins"] == []
    with pytest.raises(Invalid):
        await call(user, "getProfile", vera, clientID="root")
    with pytest.raises(NotFound):
        await call(user, "revokeToken", vera, tokenID=foreign.credential_id)
    with pytest.raises(NotFound):
        await call(user, "endSession", vera, sessionID=root.principal.login_id)
    with pytest.raises(TokenInvalid):
        await call(user, "refreshToken", vera, refreshToken=root.refresh_token)
    assert authenticator.verify(root.access_token)


async def test_changing_ones_password_by_rpc_needs_the_old_one(
    user: AuthnUser, authenticator: LocalAuthenticator
) -> None:
    await consumer(authenticator, "vera")
    vera = principal("vera")
    with pytest.raises(Unauthenticated):
        await call(user, "updatePassword", vera, oldPassword=OTHER, newPassword=OTHER)
    with pytest.raises(Invalid):
        await call(user, "updatePassword", vera, oldPassword=GOOD, newPassword="weak")

    await call(user, "updatePassword", vera, oldPassword=GOOD, newPassword=OTHER)

    assert (await authenticator.login("vera", OTHER, source=HOST)).account == "vera"


async def test_refresh_and_logout_by_rpc(user: AuthnUser, authenticator: LocalAuthenticator) -> None:
    opened = await claimed(authenticator)
    again = await call(user, "refreshToken", opened.principal, refreshToken=opened.refresh_token)
    assert authenticator.verify(again["accessToken"])

    await call(user, "logout", opened.principal)

    with pytest.raises(TokenInvalid):
        authenticator.verify(again["accessToken"])
