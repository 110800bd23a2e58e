"""Bodies and replies that are whole, taken and written in one step.

ASGI hands a reply over in two messages, every header field passes two patterns on the way, and a body is waited for
that lies there. For what is asked most that is a third of the answer, so uvicorn's exchange is used as it uses it
itself; streams, HEAD and whatever changes the connection go the long way.
"""

from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

EXCHANGE = "exchange"
"""Where a connection keeps uvicorn's exchange in the state of its scope."""

Fields = list[tuple[bytes, bytes]]


def received(scope: Scope) -> bytes | None:
    """The body of a request, if all of it is here; once."""
    exchange: Any = scope["state"].get(EXCHANGE)
    if exchange is None or exchange.more_body or exchange.disconnected or exchange.waiting_for_100_continue:
        return None
    body = bytes(exchange.body)
    exchange.body = bytearray()
    return body


def sent(scope: Scope, status: int, fields: Fields, constant: bytes, body: bytes | memoryview) -> bool:
    """Write a reply with its fields, then the `constant` ones as they are on the wire; False if it must go the long
    way, and then nothing was written."""
    exchange: Any = scope["state"].get(EXCHANGE)
    if exchange is None or exchange.flow.write_paused or exchange.response_started or scope["method"] == "HEAD":
        return False
    if exchange.disconnected:
        return True
    head: list[bytes | memoryview] = [STATUS_LINE[status]]
    for name, value in exchange.default_headers:
        head += (name, b": ", value, b"\r\n")
    for name, value in fields:
        if name == b"connection" or b"\n" in value or b"\r" in value:
            return False
        head += (name, b": ", value, b"\r\n")
    if not exchange.keep_alive:
        head.append(b"connection: close\r\n")
    head += (constant, b"\r\n", body)
    exchange.response_started = exchange.response_complete = True
    exchange.waiting_for_100_continue = False
    exchange.transport.write(b"".join(head))
    exchange.message_event.set()
    if not exchange.keep_alive:
        exchange.transport.close()
    exchange.on_response()
    return True
