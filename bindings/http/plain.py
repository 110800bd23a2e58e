"""Replies with a body and no fields of their own: most of what is read."""

from starlette.types import Receive, Scope, Send


class Plain:
    """A body, its media type and a status."""

    __slots__ = ("body", "raw_headers", "status_code")

    def __init__(self, body: bytes, media_type: str, status_code: int = 200) -> None:
        self.body = body
        self.status_code = status_code
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media_type.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
