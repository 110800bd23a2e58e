"""Errors as problem details (RFC 9457) inside messages: the table from error codes to status numbers."""

from collections.abc import Mapping
from http import HTTPStatus

from things.delivery import DeliveryStatus, Reason, State
from things.errors import ConfirmationRequired, Invalid, SkepError
from things.messages import JSONValue

STATUSES: Mapping[str, int] = {
    "invalid": 400,
    "malformed": 400,
    "too-deep": 400,
    "bad-address": 400,
    "td-invalid": 400,
    "bad-cursor": 400,
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
    "conflict": 409,
    "illegal-status": 409,
    "precondition-failed": 409,
    "superseded": 409,
    "cancelled": 409,
    "too-large": 413,
    "queue-full": 429,
    "rate-limited": 429,
    "internal": 500,
    "agent-error": 500,
    "rejected": 500,
    "not-connected": 503,
    "timeout": 503,
    "expired": 503,
    "storage-full": 503,
    "storage-failed": 503,
    "unavailable": 503,
}


def problem(error: SkepError) -> dict[str, JSONValue]:
    """What was refused and why."""
    found = details(error.code, error.detail)
    if isinstance(error, Invalid) and error.problems:
        found["validationErrors"] = [
            {"field": item.pointer or "/", "description": item.detail, "code": item.code} for item in error.problems
        ]
    if isinstance(error, ConfirmationRequired):
        found |= {"confirmation": error.token, "expiresIn": error.valid_s}
    return found


def details(code: str, detail: str) -> dict[str, JSONValue]:
    """Problem details by an error's code."""
    status = STATUSES.get(code, 500)
    return {
        "type": f"urn:skep:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }


def failure(status: DeliveryStatus) -> dict[str, JSONValue] | None:
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
