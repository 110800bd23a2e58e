"""The client-server interface: one exchange is one message and its response.

`POST /node/messages` takes a whole message; `GET`, `POST`, `PUT` and `DELETE /node/{address}` are read, create, update
and delete with the request's JSON as `body`. The response's code is the HTTP status (a response that did not come in
time is 504), its body the JSON. Updates have no response and are 202. Addresses are percent-encoded.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.types import Scope

from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.websocket import admitted
from bindings.web.credentials import by_certificate, by_header, refuse_foreign_page, source_of
from bindings.web.fields import Fields
from things.envelopes import Document, Envelope, code_of, read, refusal, refused
from things.errors import BadAddress, Invalid, SkepError, TimedOut, TooLarge
from things.jsontext import decode, encode

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_TYPES = {"GET": "read", "POST": "create", "PUT": "update", "DELETE": "delete"}
_BODY_S = 30.0
MESSAGES = b"/node/messages"


class _Inlet:
    """The wire of a session that lives for one exchange."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    def wake(self) -> None:
        self.woken.set()

    def end(self, code: int, reason: str) -> None:
        self.woken.set()


class RestEndpoint:
    """An ASGI application below `/node`."""

    def __init__(self, node: MessagingNode) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            status, body = await self._exchange(scope, receive)
        except SkepError as error:
            code = code_of(error)
            status, body = (504 if isinstance(error, TimedOut) else code), refused(error)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="skep"'))
        if status == 413:
            headers.append((b"connection", b"close"))
        text = encode(body)
        headers.append((b"content-length", str(len(text)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text if scope["method"] != "HEAD" else b""})

    async def _exchange(self, scope: Scope, receive: Receive) -> tuple[int, Document]:
        brought = (scope, Fields(scope["headers"]), self._node.sink.authenticator, self._node.is_own_origin)
        refuse_foreign_page(scope, brought[1], self._node.is_own_origin)
        principal = await by_header(*brought) or await by_certificate(*brought) or admitted(self._node, scope)
        is_message = scope["raw_path"] == MESSAGES
        type_ = _TYPES.get(scope["method"])
        if type_ is None or (is_message and type_ != "create"):
            return 405, refusal(405, "a message is posted" if is_message else f"{', '.join(_TYPES)} are possible here")
        text = await self._body(scope, receive)
        given = decode(text, max_bytes=self._node.settings.max_frame_bytes) if text else {}
        here = f"hyperty-runtime://{self._node.settings.domain}/rest-{self._node.sink.new_id()}"
        if is_message:
            if not isinstance(given, dict):
                raise Invalid("a message is an object")
            envelope = read({"id": 1, "from": here, **given}, size=len(text))
        else:
            attribute = parse_qs(scope["query_string"].decode("latin-1")).get("attribute")
            if attribute:
                given = {**given, "attribute": attribute[0]} if isinstance(given, dict) else given
            document: Document = {"id": 1, "type": type_, "from": here, "to": _address(scope["raw_path"])}
            envelope = read({**document, "body": given}, size=len(text))
        runtimes = self._node.runtimes
        session, _ = runtimes.opened(principal, here, source=source_of(scope), with_token=False, is_kept=False)
        try:
            return await self._answered(envelope, session)
        finally:
            await runtimes.end(session, "done")

    async def _answered(self, envelope: Envelope, session: NodeSession) -> tuple[int, Document]:
        inlet = _Inlet()
        session.wires.append(inlet)
        try:
            # Begins before the node's own wait for the response and ends before it: by HTTP that is 504.
            wait_s = self._node.settings.response_s
            async with asyncio.timeout(wait_s) as deadline:
                await self._node.relay.take(envelope, session)
                if envelope.type == "update" and not session.waiting and not session.asked:
                    return 202, {"code": 202}
                while True:
                    while (text := session.take()) is None:
                        inlet.woken.clear()
                        await inlet.woken.wait()
                    answer = read(decode(text, max_bytes=len(text)))
                    if not answer.is_response or answer.id != envelope.id:
                        continue
                    if answer.body.get("code") != 100:
                        break
                    if not deadline.expired():
                        deadline.reschedule(asyncio.get_running_loop().time() + wait_s)
        except TimeoutError as error:
            raise TimedOut("Response timeout!") from error
        body = dict(answer.body)
        code = body.get("code")
        return (code if isinstance(code, int) and 200 <= code < 600 else 200), body

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._node.settings.max_frame_bytes
        length = Fields(scope["headers"]).get("content-length")
        if length is not None and length.isdigit() and int(length) > most:
            raise TooLarge(most)
        parts: list[bytes] = []
        size = 0
        async with asyncio.timeout(_BODY_S):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    raise Invalid("the request ended early")
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise TooLarge(most)
                if not event.get("more_body"):
                    return b"".join(parts)


def _address(raw_path: bytes) -> str:
    try:
        return unquote_to_bytes(raw_path.removeprefix(b"/node/")).decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise BadAddress("the address is percent-encoded UTF-8") from error
