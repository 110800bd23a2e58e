"""Accounts as a Thing: `dtw:authn:admin`, for admins.

A caller is who the binding says; no method takes the caller from its input. Secrets appear in an answer once, when they
are made, and never in a log.
"""

from collections.abc import Callable, Sequence
from typing import cast

from authn.audit import Class
from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.credentials import CredentialKind
from authn.documents import (
    added,
    certificate_document,
    device_document,
    profile,
    sessions_document,
    token_document,
    verdict_document,
)
from authn.inputs import (
    Acts,
    AddClient,
    AddConsumer,
    AddSpeaker,
    Certificate,
    Client,
    CredentialID,
    Device,
    IssueToken,
    Keys,
    ListCredentials,
    MaybeClient,
    Password,
    Role,
    Serial,
    SessionID,
    Token,
    UpdateClient,
)
from authn.register_service import ended, listed
from things.errors import Unavailable
from things.holdings import Holdings
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, Nothing
from things.service_ids import ACCOUNTS
from things.vocabulary import ServiceType

LiveSessions = Callable[[str | None], Sequence[dict[str, JSONValue]]]
"""Open connections of an account (or all), as documents with at least `sessionID` and `clientID`."""
EndSession = Callable[[str], bool]
"""End one open connection by its session id; False if there is none."""


class AuthnAdmin(MethodService):
    """Accounts, credentials, sessions, devices, keys: for admins."""

    def __init__(
        self,
        authenticator: LocalAuthenticator,
        *,
        certificates: Certificates | None = None,
        sessions: LiveSessions = lambda _account: (),
        end_session: EndSession = lambda _session_id: False,
        holdings: Sequence[Holdings] = (),
    ) -> None:
        self._authenticator = authenticator
        self._administration = authenticator.administration
        self._register = authenticator.register
        self._certificates = certificates
        self._sessions = sessions
        self._end_session = end_session
        self._holdings = holdings
        super().__init__(
            ACCOUNTS,
            Operation.MANAGE,
            [
                Method(name="addClient", title="Add an account", input=AddClient, run=self._add),
                Method(name="addAgent", title="Add an agent", input=AddSpeaker, run=self._add_agent),
                Method(name="addService", title="Add a service", input=AddSpeaker, run=self._add_service),
                Method(name="addConsumer", title="Add a consumer", input=AddConsumer, run=self._add_consumer),
                Method(name="listClients", title="List accounts", input=Nothing, run=self._list, safe=True),
                Method(name="getClient", title="Read an account", input=Client, run=self._get, safe=True),
                Method(name="updateClient", title="Change name or key", input=UpdateClient, run=self._update),
                Method(name="setClientRole", title="Give a role", input=Role, run=self._set_role),
                Method(
                    name="setClientPassword",
                    title="Set a password",
                    input=Password,
                    run=self._set_password,
                    output=False,
                ),
                Method(name="disableClient", title="Disable an account", input=Client, run=self._disable, output=False),
                Method(name="enableClient", title="Enable an account", input=Client, run=self._enable, output=False),
                Method(name="removeClient", title="Remove an account", input=Client, run=self._remove, output=False),
                Method(name="issueToken", title="Give a long-lived token", input=IssueToken, run=self._issue),
                Method(name="listTokens", title="List tokens", input=MaybeClient, run=self._tokens, safe=True),
                Method(name="revokeToken", title="Revoke a token", input=Token, run=self._revoke, output=False),
                Method(
                    name="listSessions", title="List sessions", input=MaybeClient, run=self._list_sessions, safe=True
                ),
                Method(
                    name="endSession", title="End a login or connection", input=SessionID, run=self._end, output=False
                ),
                Method(
                    name="endSessions", title="End all of an account", input=Client, run=self._end_all, output=False
                ),
                Method(
                    name="listCredentials",
                    title="List everything that proves an account or lives by that",
                    input=ListCredentials,
                    run=self._credentials,
                    safe=True,
                ),
                Method(
                    name="revokeCredential",
                    title="End one, and all that came of it",
                    input=CredentialID,
                    run=self._end_credential,
                    output=False,
                ),
                Method(
                    name="revokeCredentials",
                    title="End everything that an account has",
                    input=Client,
                    run=self._end_credentials,
                ),
                Method(name="listDevices", title="List device requests", input=Nothing, run=self._devices, safe=True),
                Method(name="announceDevice", title="Approve before it asks", input=Device, run=self._announce),
                Method(name="approveDevice", title="Approve a device", input=Client, run=self._approve),
                Method(name="rejectDevice", title="Reject a device", input=Client, run=self._reject),
                Method(name="forgetDevice", title="Forget a request", input=Client, run=self._forget, output=False),
                Method(
                    name="issueCertificate", title="Make a client certificate", input=Certificate, run=self._certify
                ),
                Method(
                    name="listCertificates",
                    title="List client certificates",
                    input=MaybeClient,
                    run=self._issued,
                    safe=True,
                ),
                Method(
                    name="revokeCertificate",
                    title="Revoke a client certificate",
                    input=Serial,
                    run=self._uncertify,
                    output=False,
                ),
                Method(name="rotateKeys", title="Sign with a fresh key", input=Keys, run=self._rotate, output=False),
                Method(name="readAudit", title="Read the audit log", input=Acts, run=self._acts, safe=True),
                Method(name="verifyAudit", title="Check the audit log", input=Nothing, run=self._verify, safe=True),
            ],
            type_=ServiceType.ACCOUNT_ADMINISTRATION,
            title="Accounts",
            description="Accounts, credentials, sessions and devices of this installation.",
        )

    async def _add(self, given: AddClient, principal: Principal) -> JSONValue:
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
        return added(account, token)

    async def _add_agent(self, given: AddSpeaker, principal: Principal) -> JSONValue:
        return await self._add_speaker(given, AccountType.AGENT, principal)

    async def _add_service(self, given: AddSpeaker, principal: Principal) -> JSONValue:
        return await self._add_speaker(given, AccountType.SERVICE, principal)

    async def _add_speaker(self, given: AddSpeaker, type_: AccountType, principal: Principal) -> JSONValue:
        account, token = await self._administration.add(
            given.client_id,
            type_,
            public_key=given.public_key,
            display_name=given.display_name,
            by=principal.account,
        )
        return added(account, token)

    async def _add_consumer(self, given: AddConsumer, principal: Principal) -> JSONValue:
        account, token = await self._administration.add(
            given.client_id,
            AccountType.CONSUMER,
            given.role,
            password=given.password,
            display_name=given.display_name,
            with_token=given.password is None,
            by=principal.account,
        )
        return added(account, token)

    async def _list(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [profile(account, self._register) for _, account in sorted(self._register.accounts.items())]}

    async def _get(self, given: Client, _principal: Principal) -> JSONValue:
        return profile(self._register.account(given.client_id), self._register)

    async def _update(self, given: UpdateClient, principal: Principal) -> JSONValue:
        changed = await self._administration.update(
            given.client_id, display_name=given.display_name, public_key=given.public_key, by=principal.account
        )
        return profile(changed, self._register)

    async def _set_role(self, given: Role, principal: Principal) -> JSONValue:
        changed = await self._administration.set_role(given.client_id, given.role, by=principal.account)
        return profile(changed, self._register)

    async def _set_password(self, given: Password, principal: Principal) -> JSONValue:
        await self._administration.set_password(given.client_id, given.password, by=principal.account)
        return None

    async def _disable(self, given: Client, principal: Principal) -> JSONValue:
        await self._administration.disable(given.client_id, by=principal.account)
        return None

    async def _enable(self, given: Client, principal: Principal) -> JSONValue:
        await self._administration.enable(given.client_id, by=principal.account)
        return None

    async def _remove(self, given: Client, principal: Principal) -> JSONValue:
        await self._administration.remove(given.client_id, by=principal.account)
        return None

    async def _issue(self, given: IssueToken, principal: Principal) -> JSONValue:
        kept, text = await self._administration.issue_token(
            given.client_id, label=given.label, validity_s=given.expires_in, by=principal.account
        )
        return {**token_document(kept), "token": text}

    async def _tokens(self, given: MaybeClient, _principal: Principal) -> JSONValue:
        found = self._register.of_all(given.client_id, CredentialKind.TOKEN)
        return {"items": [token_document(token) for token in found]}

    async def _revoke(self, given: Token, principal: Principal) -> JSONValue:
        await self._administration.revoke_token(given.token_id, by=principal.account)
        return None

    async def _list_sessions(self, given: MaybeClient, _principal: Principal) -> JSONValue:
        logins = self._register.of_all(given.client_id, CredentialKind.LOGIN)
        return sessions_document(logins, self._sessions(given.client_id))

    async def _end(self, given: SessionID, principal: Principal) -> JSONValue:
        if self._end_session(given.session_id):
            self._authenticator.audit.record(
                "session-ended", by=principal.account, details={"session": given.session_id}
            )
        else:
            await self._administration.end_login(given.session_id, by=principal.account)
        return None

    async def _end_all(self, given: Client, principal: Principal) -> JSONValue:
        await self._administration.end_sessions(given.client_id, by=principal.account)
        return None

    async def _credentials(self, given: ListCredentials, _principal: Principal) -> JSONValue:
        return listed(
            self._register,
            self._holdings,
            client_id=given.client_id,
            account_id=given.account_id,
            with_ended=given.ended,
        )

    async def _end_credential(self, given: CredentialID, principal: Principal) -> JSONValue:
        await ended(self._authenticator, self._holdings, given.credential_id, by=principal.account)
        return None

    async def _end_credentials(self, given: Client, principal: Principal) -> JSONValue:
        count = await self._administration.revoke_all(given.client_id, by=principal.account)
        return {"clientID": given.client_id, "ended": count}

    async def _devices(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [device_document(request) for request in self._authenticator.provisioning.requests()]}

    async def _announce(self, given: Device, principal: Principal) -> JSONValue:
        return device_document(
            await self._authenticator.provisioning.announce(
                given.client_id, given.public_key, display_name=given.display_name, by=principal.account
            )
        )

    async def _approve(self, given: Client, principal: Principal) -> JSONValue:
        decided = await self._authenticator.provisioning.decide(given.client_id, approve=True, by=principal.account)
        return device_document(decided)

    async def _reject(self, given: Client, principal: Principal) -> JSONValue:
        decided = await self._authenticator.provisioning.decide(given.client_id, approve=False, by=principal.account)
        return device_document(decided)

    async def _forget(self, given: Client, principal: Principal) -> JSONValue:
        await self._authenticator.provisioning.forget(given.client_id, by=principal.account)
        return None

    async def _certify(self, given: Certificate, principal: Principal) -> JSONValue:
        if self._certificates is None:
            raise Unavailable("this installation has no certificate authority of its own")
        certificate, key, kept = await self._authenticator.certificates.issue(
            self._certificates, given.client_id, given.public_key, by=principal.account
        )
        made: dict[str, JSONValue] = {**certificate_document(kept), "certificate": certificate}
        return made if key is None else {**made, "key": key}

    async def _issued(self, given: MaybeClient, _principal: Principal) -> JSONValue:
        found = self._register.of_all(given.client_id, CredentialKind.CERTIFICATE)
        return {"items": [certificate_document(one) for one in found]}

    async def _uncertify(self, given: Serial, principal: Principal) -> JSONValue:
        await self._authenticator.certificates.revoke(given.serial, by=principal.account)
        return None

    async def _rotate(self, given: Keys, principal: Principal) -> JSONValue:
        await self._authenticator.rotate_keys(by=principal.account, long_lived=given.long_lived)
        return None

    async def _acts(self, given: Acts, _principal: Principal) -> JSONValue:
        class_ = Class(given.class_) if given.class_ else None
        acts = await self._authenticator.audited(after=given.after, limit=given.limit, class_=class_)
        return {"items": cast("list[JSONValue]", acts)}

    async def _verify(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return verdict_document(await self._authenticator.verified_audit())
