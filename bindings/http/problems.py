"""Errors as replies: problem documents with the header fields that belong to them.

Beside the codes of `things.errors` stand four refusals that only HTTP knows. An unknown exception is "internal error"
to the client and a traceback in our log.
"""

from typing import Any

from starlette.responses import Response

from bindings.web.refusals import PROBLEM_JSON, fields_of
from things import problems
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.jsontext import encode
from things.problems import STATUSES as STATUSES
from things.problems import Details, details, failure


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


def problem(error: SkepError, *, for_page: bool = False) -> Response:
    """The reply that says what was refused and why; `for_page` where a page's own script asked."""
    reply = _reply(problems.problem(error))
    reply.raw_headers += fields_of(reply.status_code, error, for_page=for_page)
    if isinstance(error, MethodNotAllowed):
        reply.raw_headers.append((b"allow", error.allowed.encode()))
    return reply


def document(code: str, detail: str, **extra: Any) -> Response:
    """A problem document by its code."""
    return _reply({**details(code, detail), **extra})


def unsuccessful(status: DeliveryStatus) -> Response | None:
    """The problem that a final but unsuccessful request is, naming the request; None for anything else."""
    found = failure(status)
    if found is None:
        return None
    found |= {"requestID": status.request_id, "state": status.state}
    if status.output is not None:
        found["output"] = status.output
    return _reply(found)


def _reply(found: Details) -> Response:
    return Response(encode(found), int(str(found["status"])), media_type=PROBLEM_JSON)
