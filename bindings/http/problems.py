"""Errors as RFC 9457 problem documents: the one table from error codes to HTTP statuses, and what each document says.

Beside the codes of `things.errors` stand four refusals that only HTTP knows. An unknown exception is "internal error"
to the client and a traceback in our log.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from things.delivery import DeliveryStatus, Reason, State
from things.errors import ConfirmationRequired, Invalid, SkepError
from things.jsontext import encode

PROBLEM_JSON = "application/problem+json"


class MethodNotAllowed(SkepError):
    code = "method-not-allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here; {allowed} are")
        self.allowed = allowed


class NotAcceptable(SkepError):
    code = "not-acceptable"

    def __init__(self, offered: str) -> None:
        super().__init__(f"nothing in Accept can be served; there is {offered}")


class UnsupportedMediaType(SkepError):
    code = "unsupported-media-type"


class NotImplementedHere(SkepError):
    code = "not-implemented"


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
    "rate-limited": 429,
    "storage-full": 507,
    "storage-failed": 503,
    "storage-damaged": 503,
    "newer-schema": 503,
    "locked": 503,
    "address-in-use": 503,
    "unavailable": 503,
    "method-not-allowed": 405,
    "not-acceptable": 406,
    "unsupported-media-type": 415,
    "not-implemented": 501,
    "headers-too-large": 431,
}

CHALLENGES = (b'Bearer realm="skep"', b'Basic realm="skep", charset="UTF-8"')
"""What a client may log in with; directory bootstrapping asks for a usable challenge."""


def problem(error: SkepError, *, for_page: bool = False) -> Response:
    """The reply that says what was refused and why. A page's own requests get no basic challenge: the browser would ask
    for a password itself, in front of the page."""
    extra: dict[str, Any] = {}
    if isinstance(error, Invalid) and error.problems:
        extra["validationErrors"] = [
            {"field": item.pointer or "/", "description": item.detail, "code": item.code} for item in error.problems
        ]
    if isinstance(error, ConfirmationRequired):
        extra |= {"confirmation": error.token, "expiresIn": error.valid_s}
    reply = document(error.code, error.detail, **extra)
    if reply.status_code == 401:
        for challenge in CHALLENGES[:1] if for_page else CHALLENGES:
            reply.raw_headers.append((b"www-authenticate", challenge))
    if reply.status_code == 429:
        seconds = getattr(error, "retry_after_s", 1.0)
        reply.raw_headers.append((b"retry-after", str(max(1, round(seconds + 0.5))).encode()))
    if isinstance(error, MethodNotAllowed):
        reply.raw_headers.append((b"allow", error.allowed.encode()))
    return reply


def document(code: str, detail: str, **extra: Any) -> Response:
    """A problem document by its code."""
    status = STATUSES.get(code, 500)
    body = {
        "type": f"urn:skep:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        **extra,
    }
    return Response(encode(body), status, media_type=PROBLEM_JSON)


def code_of(status: DeliveryStatus) -> str | None:
    """The error code of a final status that is no success; None for success and for what is still under way."""
    match status.state:
        case State.COMPLETED:
            return "agent-error" if status.error is not None else None
        case State.FAILED:
            return status.reason or Reason.AGENT_ERROR
        case State.CANCELLED:
            return status.reason or "cancelled"
        case _:
            return None


def unsuccessful(status: DeliveryStatus) -> Response | None:
    """The problem that a final but unsuccessful request is, naming the request; None for anything else."""
    code = code_of(status)
    if code is None:
        return None
    detail = status.error or f"the request ended {status.state}"
    extra: dict[str, Any] = {"requestID": status.request_id, "state": status.state}
    if status.output is not None:
        extra["output"] = status.output
    return document(code, detail, **extra)
