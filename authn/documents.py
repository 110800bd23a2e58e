"""Accounts and what hangs on them as they are shown: never a password, a hash, or a token that was given before."""

from collections.abc import Iterable, Sequence

from authn.accounts import Account, Certificate, DeviceRequest, Login, LongToken
from authn.audit import Verdict
from authn.publickeys import fingerprint
from things.messages import JSONValue
from things.times import rfc3339


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


def added(account: Account, token: str | None) -> dict[str, JSONValue]:
    shown: dict[str, JSONValue] = {"clientID": account.name, "type": str(account.type), "role": account.role}
    return shown if token is None else {**shown, "token": token}


def token_document(token: LongToken) -> dict[str, JSONValue]:
    return {
        "tokenID": token.token_id,
        "clientID": token.account,
        "label": token.label,
        "created": rfc3339(token.created),
        "expires": None if token.expires is None else rfc3339(token.expires),
    }


def certificate_document(certificate: Certificate) -> dict[str, JSONValue]:
    return {
        "serial": certificate.serial,
        "clientID": certificate.account,
        "created": rfc3339(certificate.created),
        "expires": rfc3339(certificate.expires),
        "lastUsed": None if certificate.last_used is None else rfc3339(certificate.last_used),
    }


def sessions_document(
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
