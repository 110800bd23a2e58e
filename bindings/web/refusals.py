"""A refused request or WebSocket handshake: the problem document, and the header fields that belong to it."""

from collections.abc import Sequence

from starlette.types import Scope, Send

from things.errors import SkepError
from things.jsontext import encode
from things.problems import problem

PROBLEM_JSON = "application/problem+json"
CHALLENGES = (b'Bearer realm="skep"', b'Basic realm="skep", charset="UTF-8"')
"""What a client may log in with; directory bootstrapping asks for a usable challenge."""

_NO_STORE = (b"cache-control", b"no-store")


def fields_of(status: int, error: SkepError, *, for_page: bool = False) -> Sequence[tuple[bytes, bytes]]:
    """What a client needs to do better. A page's own requests get no basic challenge: the browser would ask for a
    password itself, in front of the page."""
    if status == 401:
        return [(b"www-authenticate", challenge) for challenge in (CHALLENGES[:1] if for_page else CHALLENGES)]
    if status == 429:
        seconds = getattr(error, "retry_after_s", 1.0)
        return [(b"retry-after", str(max(1, round(seconds + 0.5))).encode())]
    return ()


async def refuse(error: SkepError, scope: Scope, send: Send, *, status: int | None = None) -> None:
    """Answer an exchange or a handshake with a problem document; `status` where another fits than the error's."""
    found = problem(error)
    code = int(str(found["status"])) if status is None else status
    body = encode({**found, "status": code})
    fields = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        *fields_of(code, error),
        _NO_STORE,
    ]
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{prefix}.response.start", "status": code, "headers": fields})
    await send({"type": f"{prefix}.response.body", "body": body})
