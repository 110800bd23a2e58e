"""Messages of the messaging node: the envelope `{id, type, from, to, body}` and the responses to it.

Two generations of clients write it differently (upper or lower case types, numbers or text as id); both are read, and
what is answered keeps the id as it came. Addresses are opaque text: `runtime:/alice` and `hyper-1` are addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from things.errors import ConfirmationRequired, Invalid, SkepError
from things.messages import JSONValue

MAX_ADDRESS_CHARS = 1_024
MAX_ID_CHARS = 256

Document = dict[str, JSONValue]
"""An envelope as it is written."""

CODES: Mapping[str, int] = {
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
    "not-connected": 404,
    "timeout": 408,
    "expired": 408,
    "conflict": 409,
    "illegal-status": 409,
    "precondition-failed": 409,
    "too-large": 413,
    "queue-full": 429,
    "too-many": 429,
    "rate-limited": 429,
    "internal": 500,
    "agent-error": 500,
    "rejected": 500,
    "storage-full": 500,
    "storage-failed": 500,
    "storage-damaged": 500,
    "unavailable": 504,
}
"""Response codes by error code; the messages' own meaning of HTTP's numbers. All others are 400."""

_EVERYWHERE = frozenset({"global", "mn", "user", "user-guid", "acct"})
"""Schemes of addresses that no single domain serves."""

REQUESTS = frozenset({"create", "read", "update", "delete", "subscribe", "unsubscribe", "execute", "forward"})
"""Types whose sender waits for a response; whether others are answered is between those who use them."""


class Unknown(SkepError):
    """A type or method that is not carried out here (501)."""

    code = "not-implemented"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One message, read; `document` is what came."""

    id: int | str
    type: str
    """Lower case; "" where the sender wrote none."""
    sender: str
    to: str
    body: Mapping[str, JSONValue]
    document: Document
    size: int = 0
    """Bytes it came in as; 0 where it was made here."""

    @property
    def is_response(self) -> bool:
        return self.type == "response"

    @property
    def is_request(self) -> bool:
        return self.type in REQUESTS


def read(document: JSONValue, *, size: int = 0) -> Envelope:
    """The envelope that `document` is; raises Invalid that names the member."""
    if not isinstance(document, dict):
        raise Invalid("a message is an object with id, type, from, to and body")
    identity = document.get("id")
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise Invalid("`id` is a whole number or text")
    if isinstance(identity, str) and len(identity) > MAX_ID_CHARS:
        raise Invalid(f"`id` is at most {MAX_ID_CHARS} characters")
    type_ = document.get("type", "")
    if not isinstance(type_, str) or len(type_) > 64:
        raise Invalid("`type` is text of at most 64 characters")
    body = document.get("body")
    if body is None:
        body = {}
    elif not isinstance(body, dict):
        raise Invalid("`body` is an object")
    return Envelope(
        id=identity,
        type=type_.lower(),
        sender=_address(document, "from"),
        to=_address(document, "to"),
        body=body,
        document=document,
        size=size,
    )


def response(to: Envelope, body: Mapping[str, JSONValue]) -> Document:
    """The response to a message. Its `via` is never echoed: a client drops what comes back with its own."""
    return {"id": to.id, "type": "response", "from": to.to, "to": to.sender, "body": dict(body)}


def refusal(code: int, detail: str) -> Document:
    """The body of a refusal, readable for both generations."""
    return {"code": code, "description": detail, "desc": detail}


def refused(error: SkepError) -> Document:
    """The body that says why something was refused; `error` is the stable code."""
    body = {**refusal(code_of(error), error.detail), "error": error.code}
    if isinstance(error, ConfirmationRequired):
        body |= {"confirmation": error.token, "expiresIn": error.valid_s}
    return body


def code_of(error: SkepError) -> int:
    """The response code of an error."""
    return 501 if isinstance(error, Unknown) else CODES.get(error.code, 400)


def best_refusal(document: JSONValue, error: SkepError) -> Document:
    """The answer to something that is no envelope, with whatever of it can be read."""
    given: Mapping[str, Any] = document if isinstance(document, dict) else {}
    identity = given.get("id")
    sender, to = given.get("from"), given.get("to")
    return {
        "id": identity if isinstance(identity, int | str) and not isinstance(identity, bool) else 0,
        "type": "response",
        "from": to if isinstance(to, str) and len(to) <= MAX_ADDRESS_CHARS else "mn:/validator",
        "to": sender if isinstance(sender, str) and len(sender) <= MAX_ADDRESS_CHARS else "",
        "body": refused(error),
    }


def texts(value: JSONValue, *, limit: int) -> list[str]:
    """One text, a list of texts, or a nested list, as a flat list; raises Invalid for anything else."""
    if value is None:
        return []
    found: list[str] = []
    waiting: list[JSONValue] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not 0 < len(one) <= MAX_ADDRESS_CHARS:
                raise Invalid(f"an address has 1 to {MAX_ADDRESS_CHARS} characters")
            found.append(one)
        elif isinstance(one, list):
            waiting.extend(reversed(one))
        else:
            raise Invalid("a list of addresses is expected here")
        if len(found) + len(waiting) > limit:
            raise Invalid(f"at most {limit} addresses go into one message")
    return found


def scheme_of(address: str) -> str:
    """What stands before the colon; "" for an address without one."""
    scheme, colon, _ = address.partition(":")
    return scheme if colon else ""


def domain_of(address: str) -> str:
    """The domain of `scheme://domain/path`; "" where there is none."""
    _, slashes, rest = address.partition("://")
    return rest.partition("/")[0] if slashes else ""


def served_domain(address: str) -> str:
    """The domain whose node serves an address: `D` for `hyperty://D/x` and `domain://registry.D`; "" for addresses
    that say none, and for what is everybody's (`global://…`)."""
    scheme, domain = scheme_of(address), domain_of(address)
    if scheme in ("domain", "hyperty-catalogue"):
        return domain.partition(".")[2]
    return "" if scheme in _EVERYWHERE else domain


def _address(document: Document, member: str) -> str:
    value = document.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ADDRESS_CHARS:
        raise Invalid(f"`{member}` is an address of 1 to {MAX_ADDRESS_CHARS} characters")
    return value
