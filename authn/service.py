"""Accounts as Things: `dtw:authn:admin` for admins, `dtw:authn:user` for everybody about themselves.

A caller is who the binding says; no method takes the caller from its input. Secrets appear in an answer once, when they
are made, and never in a log.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from authn.accounts import Account, DeviceRequest, Login, LongToken
from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.publickeys import fingerprint
from things.addresses import Address, Kind
from things.errors import Unavailable
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.methods import Input, Method, Methods, Nothing
from things.times import rfc3339

ADMIN = "dtw:authn:admin"
USER = "dtw:authn:user"

LiveSessions = Callable[[str | None], Sequence[dict[str, JSONValue]]]
"""Open connections of an account (or all), as documents with at least `sessionID` and `clientID`."""
EndSession = Callable[[str], bool]
"""End one open connection by its session id; False if there is none."""

_Name = Annotated[str, Field(min_length=1, max_length=64)]
_Text = Annotated[str, Field(max_length=1_024)]
_Seconds = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class _Client(Input):
    client_id: _Name


class _AddClient(_Client):
    type: Literal["agent", "consumer", "service"]
    role: _Name | None = None
    display_name: _Text = ""
    password: str | None = None
    public_key: _Text | None = None
    token: bool = True
    expires_in: _Seconds | None = None


class _AddConsumer(_Client):
    display_name: _Text = ""
    password: str | None = None
    role: _Name | None = None


class _AddSpeaker(_Client):
    display_name: _Text = ""
    public_key: _Text | None = None


class _UpdateClient(_Client):
    display_name: _Text | None = None
    public_key: _Text | None = None


class _Role(_Client):
    role: _Name


class _Password(_Client):
    password: str


class _IssueToken(_Client):
    label: _Text = ""
    expires_in: _Seconds | None = None


class _MaybeClient(Input):
    client_id: _Name | None = None


class _Token(Input):
    token_id: _Name


class _Session(Input):
    session_id: _Name


class _Device(_Client):
    public_key: _Text
    display_name: _Text = ""


class _Certificate(_Client):
    public_key: _Text | None = None


class _Acts(Input):
    after: Annotated[int, Field(ge=0)] | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class _Keys(Input):
    long_lived: bool = False


class _DisplayName(Input):
    display_name: _Text


class _OwnPassword(Input):
    old_password: str
    new_password: str


class _PublicKey(Input):
    public_key: _Text


class _Refresh(Input):
    refresh_token: Annotated[str, Field(max_length=2_048)]


class _Logout(Input):
    everywhere: bool = False


class _Service:
    """What both Things have in common: a table of methods, all with one requirement."""

    thing_id: str
    td: dict[str, Any]

    def __init__(self, thing_id: str, operation: Operation, methods: Sequence[Method], td: dict[str, str]) -> None:
        self.thing_id = thing_id
        self._operation = operation
        self._methods = Methods(thing_id, methods)
        self.td = self._methods.td(type_=td["type"], title=td["title"], description=td["description"])

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method amounts to. Raises UnknownName."""
        return self._operation, Address(self.thing_id, Kind.ACTION, self._methods.get(name).name)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; the caller's right to has been decided. Raises SkepError."""
        return await self._methods.call(name, data, principal)


class AuthnAdmin(_Service):
    """Accounts, credentials, sessions, devices, keys: for admins."""

    def __init__(
        self,
        authenticator: LocalAuthenticator,
        *,
        certificates: Certificates | None = None,
        sessions: LiveSessions = lambda _account: (),
        end_session: EndSession = lambda _session_id: False,
    ) -> None:
        self._authenticator = authenticator
        self._administration = authenticator.administration
        self._register = authenticator.register
        self._certificates = certificates
        self._sessions = sessions
        self._end_session = end_session
        super().__init__(
            ADMIN,
            Operation.MANAGE,
            [
                Method(name="addClient", title="Add an account", input=_AddClient, run=self._add),
                Method(name="addAgent", title="Add an agent", input=_AddSpeaker, run=self._add_agent),
                Method(name="addService", title="Add a service", input=_AddSpeaker, run=self._add_service),
                Method(name="addConsumer", title="Add a consumer", input=_AddConsumer, run=self._add_consumer),
                Method(name="listClients", title="List accounts", input=Nothing, run=self._list, safe=True),
                Method(name="getClient", title="Read an account", input=_Client, run=self._get, safe=True),
                Method(name="updateClient", title="Change name or key", input=_UpdateClient, run=self._update),
                Method(name="setClientRole", title="Give a role", input=_Role, run=self._set_role),
                Method(name="setClientPassword", title="Set a password", input=_Password, run=self._set_password),
                Method(name="disableClient", title="Disable an account", input=_Client, run=self._disable),
                Method(name="enableClient", title="Enable an account", input=_Client, run=self._enable),
                Method(name="removeClient", title="Remove an account", input=_Client, run=self._remove),
                Method(name="issueToken", title="Give a long-lived token", input=_IssueToken, run=self._issue),
                Method(name="listTokens", title="List tokens", input=_MaybeClient, run=self._tokens, safe=True),
                Method(name="revokeToken", title="Revoke a token", input=_Token, run=self._revoke),
                Method(
                    name="listSessions", title="List sessions", input=_MaybeClient, run=self._list_sessions, safe=True
                ),
                Method(name="endSession", title="End a login or connection", input=_Session, run=self._end),
                Method(name="endSessions", title="End all of an account", input=_Client, run=self._end_all),
                Method(name="listDevices", title="List device requests", input=Nothing, run=self._devices, safe=True),
                Method(name="announceDevice", title="Approve before it asks", input=_Device, run=self._announce),
                Method(name="approveDevice", title="Approve a device", input=_Client, run=self._approve),
                Method(name="rejectDevice", title="Reject a device", input=_Client, run=self._reject),
                Method(name="forgetDevice", title="Forget a request", input=_Client, run=self._forget),
                Method(
                    name="issueCertificate", title="Make a client certificate", input=_Certificate, run=self._certify
                ),
                Method(name="rotateKeys", title="Sign with a fresh key", input=_Keys, run=self._rotate),
                Method(name="readAudit", title="Read the audit log", input=_Acts, run=self._acts, safe=True),
                Method(name="verifyAudit", title="Check the audit log", input=Nothing, run=self._verify, safe=True),
            ],
            {
                "type": "skep:AccountAdministration",
                "title": "Accounts",
                "description": "Accounts, credentials, sessions and devices of this installation.",
            },
        )

    async def _add(self, given: _AddClient, principal: Principal) -> JSONValue:
        account, token = await self._administration.add(
            given.client_id,
            AccountType(given.type),
            given.role,
            password=given.password,
            public_key=given.public_key,
            display_name=given.display_name,
            with_token=given.token,
            token_validity_s=given.expires_in,
            by=principal.account,
        )
        return _added(account, token)

    async def _add_agent(self, given: _AddSpeaker, principal: Principal) -> JSONValue:
        return await self._add_speaker(given, AccountType.AGENT, principal)

    async def _add_service(self, given: _AddSpeaker, principal: Principal) -> JSONValue:
        return await self._add_speaker(given, AccountType.SERVICE, principal)

    async def _add_speaker(self, given: _AddSpeaker, type_: AccountType, principal: Principal) -> JSONValue:
        account, token = await self._administration.add(
            given.client_id,
            type_,
            public_key=given.public_key,
            display_name=given.display_name,
            by=principal.account,
        )
        return _added(account, token)

    async def _add_consumer(self, given: _AddConsumer, principal: Principal) -> JSONValue:
        account, token = await self._administration.add(
            given.client_id,
            AccountType.CONSUMER,
            given.role,
            password=given.password,
            display_name=given.display_name,
            with_token=given.password is None,
            by=principal.account,
        )
        return _added(account, token)

    async def _list(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [profile(account) for _, account in sorted(self._register.accounts.items())]}

    async def _get(self, given: _Client, _principal: Principal) -> JSONValue:
        return profile(self._register.account(given.client_id))

    async def _update(self, given: _UpdateClient, principal: Principal) -> JSONValue:
        return profile(
            await self._administration.update(
                given.client_id,
                display_name=given.display_name,
                public_key=given.public_key,
                by=principal.account,
            )
        )

    async def _set_role(self, given: _Role, principal: Principal) -> JSONValue:
        return profile(await self._administration.set_role(given.client_id, given.role, by=principal.account))

    async def _set_password(self, given: _Password, principal: Principal) -> JSONValue:
        await self._administration.set_password(given.client_id, given.password, by=principal.account)
        return None

    async def _disable(self, given: _Client, principal: Principal) -> JSONValue:
        await self._administration.disable(given.client_id, by=principal.account)
        return None

    async def _enable(self, given: _Client, principal: Principal) -> JSONValue:
        await self._administration.enable(given.client_id, by=principal.account)
        return None

    async def _remove(self, given: _Client, principal: Principal) -> JSONValue:
        await self._administration.remove(given.client_id, by=principal.account)
        return None

    async def _issue(self, given: _IssueToken, principal: Principal) -> JSONValue:
        kept, text = await self._administration.issue_token(
            given.client_id, label=given.label, validity_s=given.expires_in, by=principal.account
        )
        return {**_token(kept), "token": text}

    async def _tokens(self, given: _MaybeClient, _principal: Principal) -> JSONValue:
        if given.client_id is not None:
            self._register.account(given.client_id)
        found = sorted(self._register.tokens.values(), key=lambda token: (token.account, token.created))
        return {"items": [_token(token) for token in found if given.client_id in (None, token.account)]}

    async def _revoke(self, given: _Token, principal: Principal) -> JSONValue:
        await self._administration.revoke_token(given.token_id, by=principal.account)
        return None

    async def _list_sessions(self, given: _MaybeClient, _principal: Principal) -> JSONValue:
        return _sessions_document(self._register.logins.values(), self._sessions(given.client_id), given.client_id)

    async def _end(self, given: _Session, principal: Principal) -> JSONValue:
        if self._end_session(given.session_id):
            self._authenticator.audit.record(
                "session-ended", by=principal.account, details={"session": given.session_id}
            )
        else:
            await self._administration.end_login(given.session_id, by=principal.account)
        return None

    async def _end_all(self, given: _Client, principal: Principal) -> JSONValue:
        await self._administration.end_sessions(given.client_id, by=principal.account)
        return None

    async def _devices(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [_device(request) for request in self._authenticator.provisioning.requests()]}

    async def _announce(self, given: _Device, principal: Principal) -> JSONValue:
        return _device(
            await self._authenticator.provisioning.announce(
                given.client_id, given.public_key, display_name=given.display_name, by=principal.account
            )
        )

    async def _approve(self, given: _Client, principal: Principal) -> JSONValue:
        decided = await self._authenticator.provisioning.decide(given.client_id, approve=True, by=principal.account)
        return _device(decided)

    async def _reject(self, given: _Client, principal: Principal) -> JSONValue:
        decided = await self._authenticator.provisioning.decide(given.client_id, approve=False, by=principal.account)
        return _device(decided)

    async def _forget(self, given: _Client, principal: Principal) -> JSONValue:
        await self._authenticator.provisioning.forget(given.client_id, by=principal.account)
        return None

    async def _certify(self, given: _Certificate, principal: Principal) -> JSONValue:
        if self._certificates is None:
            raise Unavailable("this installation has no certificate authority of its own")
        self._register.account(given.client_id)
        certificate, key = self._certificates.issue_client(given.client_id, given.public_key)
        self._authenticator.audit.record("certificate-issued", by=principal.account, target=given.client_id)
        made: dict[str, JSONValue] = {"clientID": given.client_id, "certificate": certificate}
        return made if key is None else {**made, "key": key}

    async def _rotate(self, given: _Keys, principal: Principal) -> JSONValue:
        await self._authenticator.rotate_keys(by=principal.account, long_lived=given.long_lived)
        return None

    async def _acts(self, given: _Acts, _principal: Principal) -> JSONValue:
        acts = await self._authenticator.audited(after=given.after, limit=given.limit)
        return {"items": cast("list[JSONValue]", acts)}

    async def _verify(self, _given: Nothing, _principal: Principal) -> JSONValue:
        verdict = await self._authenticator.verified_audit()
        return {
            "intact": verdict.intact,
            "acts": verdict.acts,
            "file": verdict.file,
            "line": verdict.line,
            "reason": verdict.reason,
            "lastHash": verdict.last_hash,
        }


class AuthnUser(_Service):
    """Everybody's own account: profile, password, key, tokens, sessions."""

    def __init__(
        self,
        authenticator: LocalAuthenticator,
        *,
        sessions: LiveSessions = lambda _account: (),
    ) -> None:
        self._authenticator = authenticator
        self._administration = authenticator.administration
        self._register = authenticator.register
        self._sessions = sessions
        super().__init__(
            USER,
            Operation.READ,
            [
                Method(name="getProfile", title="Read one's profile", input=Nothing, run=self._profile, safe=True),
                Method(name="updateName", title="Change one's display name", input=_DisplayName, run=self._name),
                Method(name="updatePassword", title="Change one's password", input=_OwnPassword, run=self._password),
                Method(name="updatePublicKey", title="Change one's public key", input=_PublicKey, run=self._key),
                Method(name="refreshToken", title="Continue a login", input=_Refresh, run=self._refresh),
                Method(name="logout", title="End this login, or all", input=_Logout, run=self._logout),
                Method(name="listTokens", title="List one's tokens", input=Nothing, run=self._tokens, safe=True),
                Method(name="revokeToken", title="Revoke one's token", input=_Token, run=self._revoke),
                Method(
                    name="listSessions", title="List one's sessions", input=Nothing, run=self._list_sessions, safe=True
                ),
                Method(name="endSession", title="End one's login", input=_Session, run=self._end),
            ],
            {
                "type": "skep:OwnAccount",
                "title": "My account",
                "description": "The caller's own account, whoever calls.",
            },
        )

    async def _profile(self, _given: Nothing, principal: Principal) -> JSONValue:
        return profile(self._register.account(principal.account))

    async def _name(self, given: _DisplayName, principal: Principal) -> JSONValue:
        changed = await self._administration.update(
            principal.account, display_name=given.display_name, by=principal.account
        )
        return profile(changed)

    async def _password(self, given: _OwnPassword, principal: Principal) -> JSONValue:
        await self._authenticator.change_password(principal, given.old_password, given.new_password)
        return None

    async def _key(self, given: _PublicKey, principal: Principal) -> JSONValue:
        changed = await self._administration.update(
            principal.account, public_key=given.public_key, by=principal.account
        )
        return profile(changed)

    async def _refresh(self, given: _Refresh, principal: Principal) -> JSONValue:
        opened = await self._authenticator.refresh(given.refresh_token, source=None, of=principal.account)
        return opened.document()

    async def _logout(self, given: _Logout, principal: Principal) -> JSONValue:
        await self._authenticator.logout(principal, everywhere=given.everywhere)
        return None

    async def _tokens(self, _given: Nothing, principal: Principal) -> JSONValue:
        return {"items": [_token(token) for token in self._register.tokens_of(principal.account)]}

    async def _revoke(self, given: _Token, principal: Principal) -> JSONValue:
        await self._administration.revoke_token(given.token_id, by=principal.account, of=principal.account)
        return None

    async def _list_sessions(self, _given: Nothing, principal: Principal) -> JSONValue:
        live = self._sessions(principal.account)
        return _sessions_document(self._register.logins.values(), live, principal.account)

    async def _end(self, given: _Session, principal: Principal) -> JSONValue:
        await self._administration.end_login(given.session_id, by=principal.account, of=principal.account)
        return None


def profile(account: Account) -> dict[str, JSONValue]:
    """An account as it is shown."""
    return {
        "clientID": account.name,
        "type": str(account.type),
        "role": account.role,
        "displayName": account.display_name,
        "disabled": account.disabled,
        "hasPassword": account.password_hash is not None,
        "publicKey": account.public_key,
        "created": rfc3339(account.created),
        "updated": rfc3339(account.updated),
    }


def _added(account: Account, token: str | None) -> dict[str, JSONValue]:
    shown: dict[str, JSONValue] = {"clientID": account.name, "type": str(account.type), "role": account.role}
    return shown if token is None else {**shown, "token": token}


def _token(token: LongToken) -> dict[str, JSONValue]:
    return {
        "tokenID": token.token_id,
        "clientID": token.account,
        "label": token.label,
        "created": rfc3339(token.created),
        "expires": None if token.expires is None else rfc3339(token.expires),
    }


def _sessions_document(
    logins: Iterable[Login], live: Sequence[dict[str, JSONValue]], account: str | None
) -> dict[str, JSONValue]:
    found = [login for login in logins if account in (None, login.account)]
    return {
        "logins": [
            {
                "sessionID": login.login_id,
                "clientID": login.account,
                "created": rfc3339(login.created),
                "refreshed": rfc3339(login.refreshed),
                "expires": rfc3339(login.expires),
                "source": login.source,
            }
            for login in sorted(found, key=lambda login: login.created)
        ],
        "connections": [dict(session) for session in live],
    }


def _device(request: DeviceRequest) -> dict[str, JSONValue]:
    return {
        "clientID": request.account,
        "state": request.state,
        "fingerprint": fingerprint(request.public_key),
        "displayName": request.display_name,
        "source": request.source,
        "created": rfc3339(request.created),
        "updated": rfc3339(request.updated),
    }
