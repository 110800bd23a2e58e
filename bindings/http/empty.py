"""Replies that say nothing but their status, made once and sent as they are."""

from starlette.types import Receive, Scope, Send

_END = {"type": "http.response.body", "body": b"", "more_body": False}


class Empty:
    """A reply without a body and without fields of its own. What protects documents in browsers protects nothing here,
    so the application sends it untouched; each field costs as much as a look-up."""

    __slots__ = ("_start", "raw_headers", "status_code")

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        # A 204 has no body by definition (RFC 9110 8.6); any other status must say so.
        self.raw_headers = [] if status_code == 204 else [(b"content-length", b"0")]
        self._start = {"type": "http.response.start", "status": status_code, "headers": self.raw_headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(self._start)
        await send(_END)


STORED = Empty(204)
"""What was sent is committed."""
TAKEN = Empty(202)
"""What was sent is taken, without guarantee."""
