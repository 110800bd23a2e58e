"""Errors as problem details (RFC 9457), alike on every binding that tells errors by HTTP's numbers: the one table from
error codes to statuses, and what each document says."""

from collections.abc import Mapping
from http import HTTPStatus

from things.delivery import DeliveryStatus, Reason, State
from things.errors import ConfirmationRequired, Invalid, Malformed, Problem, SkepError, TDInvalid
from things.messages import JSONValue

STATUSES: Mapping[str, int] = {
    "internal": 500,
    "invalid": 400,
    "malformed": 400,
    "too-deep": 400,
    "bad-address": 400,
    "td-invalid": 400,
    "config-invalid": 400,
    "bad-cursor": 400,
    "too-large": 413,
    "unauthenticated": 401,
    "token-invalid": 401,
    "token-expired": 401,
    "forbidden": 403,
    "confirmation-required": 428,
    "not-found": 404,
    "unknown-thing": 404,
    "unknown-name": 404,
    "unknown-request": 404,
    "unknown-account": 404,
    "no-stub": 404,
    "conflict": 409,
    "illegal-status": 409,
    "superseded": 409,
    "cancelled": 409,
    "precondition-failed": 412,
    "not-connected": 503,
    "timeout": 504,
    "agent-error": 502,
    "expired": 504,
    "rejected": 502,
    "queue-full": 429,
    "too-many": 429,
    "rate-limited": 429,
    "storage-full": 507,
    "storage-failed": 503,
    "storage-damaged": 503,
    "newer-schema": 503,
    "locked": 503,
    "address-in-use": 503,
    "unavailable": 503,
    # Refusals that only HTTP knows.
    "method-not-allowed": 405,
    "not-acceptable": 406,
    "unsupported-media-type": 415,
    "not-implemented": 501,
    "headers-too-large": 431,
}

Details = dict[str, JSONValue]


class ValuesRefused(Invalid):
    """Some values of one message, by name; the others are stored. Its code is theirs where they share one, so that no
    class of `things.errors` stands for it."""

    def __init__(self, refused: Mapping[str, SkepError], stored: int) -> None:
        names = ", ".join(f"{ascii(name[:40])[1:-1]} ({error.code})" for name, error in refused.items())
        super().__init__(
            f"not stored: {names[:400]}; {stored} stored",
            [
                Problem(pointer="/" + name.replace("~", "~0").replace("/", "~1"), detail=error.detail, code=error.code)
                for name, error in refused.items()
            ],
        )
        self.refused = dict(refused)
        self.stored = stored
        kinds = {error.code: error for error in refused.values()}
        self.common: SkepError | None = next(iter(kinds.values())) if len(kinds) == 1 else None
        self.code = self.common.code if self.common is not None else Invalid.code


def details(code: str, detail: str) -> Details:
    """Problem details by an error's code."""
    status = STATUSES.get(code, 500)
    return {
        "type": f"urn:skep:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }


def problem(error: SkepError) -> Details:
    """What was refused and why."""
    found = details(error.code, error.detail)
    if isinstance(error, Invalid) and error.problems:
        # A JSON pointer as a URI fragment, as RFC 9457 shows it.
        found["errors"] = [
            {"pointer": f"#{item.pointer}", "detail": item.detail, "code": item.code} for item in error.problems
        ]
    if isinstance(error, TDInvalid | Malformed) and error.problems:
        # WoT Discovery, 7.2.2.1: directories name what is wrong with a description so.
        found["validationErrors"] = [
            {"field": item.pointer or "/", "description": item.detail} for item in error.problems
        ]
    if isinstance(error, ValuesRefused):
        found |= {"stored": error.stored, "rejected": {name: each.code for name, each in error.refused.items()}}
    if isinstance(error, ConfirmationRequired):
        found |= {"confirmation": error.token, "expiresIn": error.valid_s}
    return found


def failure(status: DeliveryStatus) -> Details | None:
    """Why a request ended without success; None for success and for what is still under way."""
    code: str
    match status.state:
        case State.COMPLETED if status.error is not None:
            code = Reason.AGENT_ERROR
        case State.FAILED:
            code = status.reason or Reason.AGENT_ERROR
        case State.CANCELLED:
            code = status.reason or "cancelled"
        case _:
            return None
    return details(code, status.error or f"the request ended {status.state}")
