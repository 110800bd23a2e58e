"""The one tree of errors, and so the one registry of stable codes.

Raise the precise class with its arguments; every class builds its own sentence. Each protocol binding maps the classes
to its own status numbers in one table; delivery reasons (`things.delivery.Reason`) are a subset of these codes.

    SkepError                    internal
    ├── Invalid                  invalid            content that breaks a schema or rule
    │   ├── Malformed            malformed          not JSON, not UTF-8, duplicate keys
    │   ├── TooDeep              too-deep           nesting over the limit
    │   ├── BadAddress           bad-address        account, Thing or twin id, topic or path that cannot be one
    │   ├── TDInvalid            td-invalid         a Thing Description with problems, all listed
    │   ├── ConfigInvalid        config-invalid     skep.toml or an option
    │   └── BadCursor            bad-cursor         a cursor this runtime never gave
    ├── TooLarge                 too-large
    ├── Unauthenticated          unauthenticated    no or wrong credentials
    │   ├── TokenInvalid         token-invalid
    │   └── TokenExpired         token-expired
    ├── Forbidden                forbidden
    │   └── ConfirmationRequired confirmation-required  allowed once the caller confirms it
    ├── NotFound                 not-found
    │   ├── UnknownThing         unknown-thing
    │   ├── UnknownName          unknown-name       the Thing has no such affordance
    │   ├── UnknownRequest       unknown-request
    │   ├── UnknownAccount       unknown-account
    │   └── NoStub               no-stub            nothing here leads to that domain
    ├── Conflict                 conflict           same reference, other content; duplicate account
    │   ├── IllegalStatus        illegal-status     a transition the delivery table does not have
    │   └── PreconditionFailed   precondition-failed
    ├── NotConnected             not-connected
    ├── TimedOut                 timeout
    ├── AgentFailed              agent-error
    ├── Expired                  expired
    ├── Rejected                 rejected
    ├── QueueFull                queue-full
    ├── TooMany                  too-many           a limit of what an account may keep
    ├── RateLimited              rate-limited
    ├── StorageFull              storage-full
    ├── StorageFailed            storage-failed     a sync failed; nothing more is acknowledged
    ├── StorageDamaged           storage-damaged    a file that cannot be trusted; never silently reset
    │   └── NewerSchema          newer-schema       a file that a later version of skep wrote
    ├── Locked                   locked             another runtime holds this home
    ├── AddressInUse             address-in-use     a port somebody else listens on
    └── Unavailable              unavailable        a part that is switched off or not installed
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from things.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a document: where (JSON pointer, RFC 6901), what, and a stable code."""

    pointer: str
    detail: str
    code: str = "invalid"


class SkepError(Exception):
    """Anything skep refuses or fails at; `code` is stable, `detail` is for people."""

    code = "internal"

    def __init__(self, detail: str = "internal error") -> None:
        super().__init__(detail)
        self.detail = detail

    @classmethod
    def reported(cls, detail: str) -> Self:
        """The error of this class that another process reported in a sentence of its own. What else a class carries
        keeps its default."""
        # Past `__init__`, which builds the sentence from arguments that were not sent.
        error = cls.__new__(cls, detail)
        error.detail = detail
        return error


class Invalid(SkepError):
    code = "invalid"
    problems: Sequence[Problem] = ()

    def __init__(self, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.problems = tuple(problems)


class Malformed(Invalid):
    code = "malformed"


class TooDeep(Invalid):
    code = "too-deep"

    def __init__(self, limit: int) -> None:
        super().__init__(f"nested deeper than {limit} levels")


class BadAddress(Invalid):
    code = "bad-address"


class TDInvalid(Invalid):
    """A Thing Description with problems; `problems` lists every one of them."""

    code = "td-invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0] if problems else Problem(pointer="", detail="not a Thing Description")
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first.pointer or '/'}: {first.detail}{more}", problems)


class ConfigInvalid(Invalid):
    code = "config-invalid"


class BadCursor(Invalid):
    code = "bad-cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor[:40]!r} is not a cursor this runtime gave")


class TooLarge(SkepError):
    code = "too-large"
    limit = 0
    """In bytes; 0 where it is not known."""

    def __init__(self, limit: int, what: str = "payload") -> None:
        super().__init__(f"{what} is larger than {limit} bytes")
        self.limit = limit


class Unauthenticated(SkepError):
    """No or wrong credentials; the sentence never tells which half was wrong."""

    code = "unauthenticated"

    def __init__(self, detail: str = "wrong account or credentials") -> None:
        super().__init__(detail)


class TokenInvalid(Unauthenticated):
    code = "token-invalid"

    def __init__(self, detail: str = "this token is not valid here") -> None:
        super().__init__(detail)


class TokenExpired(Unauthenticated):
    code = "token-expired"

    def __init__(self, detail: str = "this token has expired") -> None:
        super().__init__(detail)


class Forbidden(SkepError):
    code = "forbidden"

    def __init__(self, detail: str = "not allowed") -> None:
        super().__init__(detail)


class ConfirmationRequired(Forbidden):
    """Allowed once it is confirmed: the same again, with `token`, within `valid_s` seconds."""

    code = "confirmation-required"
    token = ""
    valid_s = 0.0

    def __init__(self, rule: str, token: str, valid_s: float) -> None:
        super().__init__(f"{rule} asks for a confirmation: repeat the same with its token within {valid_s:.0f} s")
        self.token = token
        self.valid_s = valid_s


class NotFound(SkepError):
    code = "not-found"

    def __init__(self, detail: str = "not found") -> None:
        super().__init__(detail)


class UnknownThing(NotFound):
    code = "unknown-thing"

    def __init__(self, thing_id: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"no Thing {thing_id!r}{did_you_mean(thing_id, known)}")


class UnknownName(NotFound):
    code = "unknown-name"

    def __init__(self, thing_id: str, kind: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"Thing {thing_id!r} has no {kind} {name!r}{did_you_mean(name, known)}")


class UnknownRequest(NotFound):
    code = "unknown-request"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"no request {request_id!r}")


class UnknownAccount(NotFound):
    code = "unknown-account"

    def __init__(self, account: str) -> None:
        super().__init__(f"no account {account!r}")


class NoStub(NotFound):
    code = "no-stub"

    def __init__(self, domain: str) -> None:
        super().__init__(f"no stub leads to the domain {domain[:80]!r}")


class Conflict(SkepError):
    code = "conflict"


class IllegalStatus(Conflict):
    code = "illegal-status"

    def __init__(self, request_id: str, current: str, wanted: str) -> None:
        super().__init__(f"request {request_id!r} is {current}; it cannot become {wanted}")


class PreconditionFailed(Conflict):
    code = "precondition-failed"


class NotConnected(SkepError):
    code = "not-connected"

    def __init__(self, agent: str) -> None:
        super().__init__(f"agent {agent!r} is not connected")


class TimedOut(SkepError):
    code = "timeout"

    def __init__(self, detail: str = "no answer in time") -> None:
        super().__init__(detail)


class AgentFailed(SkepError):
    code = "agent-error"


class Expired(SkepError):
    code = "expired"

    def __init__(self, detail: str = "expired before it was handed to the agent") -> None:
        super().__init__(detail)


class Rejected(SkepError):
    code = "rejected"


class QueueFull(SkepError):
    code = "queue-full"

    def __init__(self, whose: str, limit: int, what: str = "requests waiting") -> None:
        super().__init__(f"{whose} already has {limit} {what}")


class TooMany(SkepError):
    code = "too-many"

    def __init__(self, whose: str, limit: int, what: str) -> None:
        super().__init__(f"{whose} may have {limit:,} {what} and no more")


class RateLimited(SkepError):
    code = "rate-limited"
    retry_after_s = 1.0

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many messages; try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class StorageFull(SkepError):
    code = "storage-full"

    def __init__(self, detail: str = "no space left for data") -> None:
        super().__init__(detail)


class StorageFailed(SkepError):
    code = "storage-failed"


class StorageDamaged(SkepError):
    code = "storage-damaged"


class NewerSchema(StorageDamaged):
    code = "newer-schema"

    def __init__(self, path: str, version: object, known: int) -> None:
        super().__init__(f"{path} was written with schema {version}; this version reads up to {known}")


class Locked(SkepError):
    code = "locked"
    by_command = False
    """Whether it will not be for long: a command holds it, and no runtime."""

    def __init__(self, detail: str, *, by_command: bool = False) -> None:
        super().__init__(detail)
        self.by_command = by_command


class AddressInUse(SkepError):
    code = "address-in-use"


class Unavailable(SkepError):
    code = "unavailable"


def error_named(code: str, detail: str) -> SkepError:
    """The error with this code, as another process reported it; a plain SkepError that carries the code where this
    version has no class for it."""
    kind = _CLASSES.get(code)
    if kind is not None:
        return kind.reported(detail)
    error = SkepError.reported(detail)
    error.code = code
    return error


def _by_code(kind: type[SkepError]) -> dict[str, type[SkepError]]:
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        found = _by_code(child) | found
    return found


_CLASSES = _by_code(SkepError)
