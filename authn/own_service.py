"""Everybody's own account as a Thing: `dtw:authn:user`. The caller is who the binding says, never part of an input."""

from collections.abc import Sequence

from authn.authenticator import LocalAuthenticator
from authn.documents import certificate_document, profile, sessions_document, token_document
from authn.inputs import (
    CredentialID,
    DisplayName,
    Logout,
    OwnCredentials,
    OwnPassword,
    PublicKey,
    Refresh,
    Serial,
    SessionID,
    Token,
)
from authn.register_service import ended, listed
from authn.service import LiveSessions
from things.holdings import Holdings
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, Nothing
from things.service_ids import OWN_ACCOUNT
from things.vocabulary import ServiceType


class AuthnUser(MethodService):
    """Everybody's own account: profile, password, key, tokens, sessions."""

    def __init__(
        self,
        authenticator: LocalAuthenticator,
        *,
        sessions: LiveSessions = lambda _account: (),
        holdings: Sequence[Holdings] = (),
    ) -> None:
        self._authenticator = authenticator
        self._administration = authenticator.administration
        self._register = authenticator.register
        self._sessions = sessions
        self._holdings = holdings
        super().__init__(
            OWN_ACCOUNT,
            Operation.READ,
            [
                Method(name="getProfile", title="Read one's profile", input=Nothing, run=self._profile, safe=True),
                Method(name="updateName", title="Change one's display name", input=DisplayName, run=self._name),
                Method(
                    name="updatePassword",
                    title="Change one's password",
                    input=OwnPassword,
                    run=self._password,
                    output=False,
                ),
                Method(name="updatePublicKey", title="Change one's public key", input=PublicKey, run=self._key),
                Method(name="refreshToken", title="Continue a login", input=Refresh, run=self._refresh),
                Method(name="logout", title="End this login, or all", input=Logout, run=self._logout, output=False),
                Method(name="listTokens", title="List one's tokens", input=Nothing, run=self._tokens, safe=True),
                Method(name="revokeToken", title="Revoke one's token", input=Token, run=self._revoke, output=False),
                Method(
                    name="listCertificates",
                    title="List one's client certificates",
                    input=Nothing,
                    run=self._certificates,
                    safe=True,
                ),
                Method(
                    name="revokeCertificate",
                    title="Revoke one's client certificate",
                    input=Serial,
                    run=self._uncertify,
                    output=False,
                ),
                Method(
                    name="listSessions", title="List one's sessions", input=Nothing, run=self._list_sessions, safe=True
                ),
                Method(name="endSession", title="End one's login", input=SessionID, run=self._end, output=False),
                Method(
                    name="listCredentials",
                    title="List what proves one's account or lives by that",
                    input=OwnCredentials,
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
            ],
            type_=ServiceType.OWN_ACCOUNT,
            title="My account",
            description="The caller's own account, whoever calls.",
        )

    async def _profile(self, _given: Nothing, principal: Principal) -> JSONValue:
        return profile(self._register.account(principal.account), self._register)

    async def _name(self, given: DisplayName, principal: Principal) -> JSONValue:
        changed = await self._administration.update(
            principal.account, display_name=given.display_name, by=principal.account
        )
        return profile(changed, self._register)

    async def _password(self, given: OwnPassword, principal: Principal) -> JSONValue:
        await self._authenticator.change_password(principal, given.old_password, given.new_password)
        return None

    async def _key(self, given: PublicKey, principal: Principal) -> JSONValue:
        account, challenge = await self._authenticator.set_public_key(
            principal, given.public_key, challenge=given.challenge, signature=given.signature
        )
        return profile(account, self._register) if challenge is None else {"challenge": challenge}

    async def _refresh(self, given: Refresh, principal: Principal) -> JSONValue:
        opened = await self._authenticator.refresh(given.refresh_token, source=None, of=principal.account)
        return opened.document()

    async def _logout(self, given: Logout, principal: Principal) -> JSONValue:
        await self._authenticator.logout(principal, everywhere=given.everywhere)
        return None

    async def _tokens(self, _given: Nothing, principal: Principal) -> JSONValue:
        return {"items": [token_document(token) for token in self._register.tokens_of(principal.account)]}

    async def _revoke(self, given: Token, principal: Principal) -> JSONValue:
        await self._administration.revoke_token(given.token_id, by=principal.account, of=principal.account)
        return None

    async def _certificates(self, _given: Nothing, principal: Principal) -> JSONValue:
        found = self._authenticator.certificates.of(principal.account)
        return {"items": [certificate_document(one) for one in found]}

    async def _uncertify(self, given: Serial, principal: Principal) -> JSONValue:
        await self._authenticator.certificates.revoke(given.serial, by=principal.account, of=principal.account)
        return None

    async def _list_sessions(self, _given: Nothing, principal: Principal) -> JSONValue:
        live = self._sessions(principal.account)
        return sessions_document(self._register.logins_of(principal.account), live)

    async def _end(self, given: SessionID, principal: Principal) -> JSONValue:
        await self._administration.end_login(given.session_id, by=principal.account, of=principal.account)
        return None

    async def _credentials(self, given: OwnCredentials, principal: Principal) -> JSONValue:
        return listed(self._register, self._holdings, client_id=principal.account, with_ended=given.ended)

    async def _end_credential(self, given: CredentialID, principal: Principal) -> JSONValue:
        own = principal.account
        await ended(self._authenticator, self._holdings, given.credential_id, by=own, of=own)
        return None
