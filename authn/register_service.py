"""The register of credentials as the services show it: what proves an account, and what lives by that, as one list.

Passwords, keys, logins, tokens and certificates stand in the accounts database. Sessions, registrations and tickets are
kept by those who serve them, and name what they came of.
"""

from collections.abc import Sequence

from authn.authenticator import LocalAuthenticator
from authn.credentials import Credential
from authn.documents import credential_document, holding_document
from authn.register import Register
from things.errors import Invalid, NotFound
from things.holdings import Holdings
from things.messages import JSONValue


def listed(
    register: Register,
    holdings: Sequence[Holdings],
    *,
    client_id: str | None,
    account_id: str | None = None,
    with_ended: bool,
) -> JSONValue:
    """What an account has now; `with_ended` also what it had. By its id an account that was removed is found too.
    Raises UnknownAccount, NotFound, Invalid."""
    found = [one for one in _of(register, client_id, account_id) if with_ended or one.ended is None]
    found.sort(key=lambda one: (one.account, one.created))
    items: list[JSONValue] = [credential_document(one) for one in found]
    for kind in holdings:
        for holding in kind.held_by(client_id):
            if account_id in (None, holding.principal.account_id):
                items.append(holding_document(holding))
    return {"items": items}


async def ended(
    authenticator: LocalAuthenticator,
    holdings: Sequence[Holdings],
    credential_id: str,
    *,
    by: str,
    of: str | None = None,
) -> None:
    """End a credential with all that came of it, or one thing that lives by a credential; with `of`, only that
    account's. Raises NotFound."""
    if authenticator.register.standing(credential_id) is not None:
        await authenticator.administration.revoke(credential_id, by=by, of=of)
        return
    for kind in holdings:
        holding = await kind.end(credential_id, of=of)
        if holding is not None:
            details: dict[str, JSONValue] = {"credential": credential_id, "kind": holding.kind}
            authenticator.audit.record("credential-revoked", by=by, target=holding.principal.account, details=details)
            return
    raise NotFound(f"no credential {credential_id[:64]!r}")


def _of(register: Register, client_id: str | None, account_id: str | None) -> list[Credential]:
    if client_id is not None and account_id is None:
        return list(register.ever(register.account(client_id).account_id).values())
    if client_id is not None or account_id is None:
        raise Invalid("name an account by `clientID`, or one that was removed by `accountID`")
    found = register.ever(account_id)
    if not found:
        raise NotFound(f"nothing is known of an account {account_id!r}")
    return list(found.values())
