"""Accounts and what hangs on them as they are shown: never a password, a hash, or a token that was given before."""

from collections.abc import Iterable, Sequence

from authn.accounts import Account, DeviceRequest
from authn.audit import Verdict
from authn.credentials import Credential
from authn.lineage import credential_id
from authn.publickeys import fingerprint
from authn.register import Register
from things.holdings import Holding
from things.messages import JSONValue
from things.times import rfc3339


def profile(account: Account, register: Register) -> dict[str, JSONValue]:
    """An account as it is shown."""
    key = register.key(account)
    return {
        "clientID": account.name,
        "type": str(account.type),
        "role": account.role,
        "displayName": account.display_name,
        "disabled": account.disabled,
        "hasPassword": register.password(account) is not None,
        "publicKey": None if key is None else key.proof,
        "created": rfc3339(account.created),
        "updated": rfc3339(account.updated),
    }


def added(account: Account, token: str | None) -> dict[str, JSONValue]:
    shown: dict[str, JSONValue] = {"clientID": account.name, "type": str(account.type), "role": account.role}
    return shown if token is None else {**shown, "token": token}


def credential_document(credential: Credential) -> dict[str, JSONValue]:
    """One entry of the register; what could be logged in with is not in it."""
    return {
        "credentialID": credential.credential_id,
        "kind": str(credential.kind),
        "clientID": credential.account,
        "accountID": credential.account_id,
        "parent": credential.parent,
        "madeBy": credential.made_by,
        "label": credential.label,
        "source": credential.source,
        "created": rfc3339(credential.created),
        "lastUsed": _time(credential.used),
        "expires": _time(credential.expires),
        "ended": _time(credential.ended),
        "because": credential.because,
    }


def holding_document(holding: Holding) -> dict[str, JSONValue]:
    """What lives by a credential, in the same form."""
    principal = holding.principal
    return {
        "credentialID": holding.holding_id,
        "kind": holding.kind,
        "clientID": principal.account,
        "accountID": principal.account_id,
        "parent": credential_id(principal),
        "madeBy": principal.account,
        "label": holding.label,
        "source": holding.source,
        "created": _time(holding.created),
        "lastUsed": None,
        "expires": _time(holding.expires),
        "ended": None,
        "because": None,
    }


def token_document(token: Credential) -> dict[str, JSONValue]:
    return {
        "tokenID": token.credential_id,
        "clientID": token.account,
        "label": token.label,
        "created": rfc3339(token.created),
        "expires": _time(token.expires),
    }


def certificate_document(certificate: Credential) -> dict[str, JSONValue]:
    return {
        "serial": certificate.credential_id,
        "clientID": certificate.account,
        "created": rfc3339(certificate.created),
        "expires": _time(certificate.expires),
        "lastUsed": _time(certificate.used),
    }


def sessions_document(logins: Iterable[Credential], live: Sequence[dict[str, JSONValue]]) -> dict[str, JSONValue]:
    return {
        "logins": [
            {
                "sessionID": login.credential_id,
                "clientID": login.account,
                "created": rfc3339(login.created),
                "refreshed": _time(login.used),
                "expires": _time(login.expires),
                "source": login.source,
            }
            for login in sorted(logins, key=lambda login: login.created)
        ],
        "connections": [dict(session) for session in live],
    }


def _time(at: int | None) -> JSONValue:
    return None if at is None else rfc3339(at)


def device_document(request: DeviceRequest) -> dict[str, JSONValue]:
    return {
        "clientID": request.account,
        "state": request.state,
        "fingerprint": fingerprint(request.public_key),
        "displayName": request.display_name,
        "source": request.source,
        "created": rfc3339(request.created),
        "updated": rfc3339(request.updated),
    }


def verdict_document(verdict: Verdict) -> dict[str, JSONValue]:
    return {
        "intact": verdict.intact,
        "acts": verdict.acts,
        "file": verdict.file,
        "line": verdict.line,
        "reason": verdict.reason,
        "key": verdict.key,
        "anchors": verdict.anchors,
        "heads": {str(class_): {"seq": head.seq, "line": head.line} for class_, head in verdict.heads.items()},
        "notes": list(verdict.notes),
    }
