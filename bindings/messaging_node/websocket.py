"""WebSocket connections: `/ws` with its handshake, `/stub/connect?runtimeURL=` without one; JSON in text frames.

A connection is one wire of a session. It answers bad frames itself and goes on; it ends with its session, after what
waits has been written, or at once if its client does not read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Scope

from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.relay import SESSION, SESSION_TYPES
from bindings.messaging_node.sessions import NodeSession
from bindings.web.credentials import by_certificate, by_header, is_loopback_only, source_of
from bindings.web.fields import Fields
from bindings.web.refusals import refuse
from bindings.wire.envelopes import decode_whole
from things.envelopes import (
    MAX_ADDRESS_CHARS,
    Document,
    Envelope,
    best_refusal,
    code_of,
    read,
    refusal,
    refused,
    response,
)
from things.errors import Conflict, Invalid, Malformed, NotFound, SkepError, Unauthenticated
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_LEVELS = 2
"""Around a value: the message and its body."""
MAX_OWN = 1_000
"""Refusals that wait for a client that sends nonsense and does not read."""
_TURN = 100
"""Messages written before others have a turn."""
_STUCK_S = 2.0


class WebSocketEndpoint:
    """An ASGI application for one path; `handshake` says whether clients open their session by message."""

    def __init__(self, node: MessagingNode, *, handshake: bool) -> None:
        self._node = node
        self._handshake = handshake
        self._path = b"/ws" if handshake else b"/stub/connect"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_here = scope["raw_path"].rstrip(b"/") == self._path
        if scope["type"] != "websocket":
            if not is_here:
                await _plain(send, 404, b"nothing is here", [])
                return
            await _plain(send, 426, b"this is a WebSocket address", [(b"upgrade", b"websocket")])
            return
        event = await receive()
        if event["type"] != "websocket.connect":
            return
        try:
            if not is_here:
                raise NotFound(f"the messaging node is at {self._path.decode()}")
            brought = (scope, Fields(scope["headers"]), self._node.sink.authenticator, self._node.is_own_origin)
            principal = await by_header(*brought) or await by_certificate(*brought)
            runtime_url = None if self._handshake else _runtime_url(scope)
            if principal is None and runtime_url is not None:
                principal = self._unknown(scope)
        except SkepError as error:
            await refuse(error, scope, send, status=code_of(error))
            return
        connection = NodeConnection(self._node, scope, send, principal)
        if runtime_url is not None:
            assert principal is not None
            try:
                connection.attach(await _of_stub(self._node, runtime_url, principal, source_of(scope)))
            except SkepError as error:
                await refuse(error, scope, send, status=code_of(error))
                return
        await send({"type": "websocket.accept"})
        await connection.run(receive)

    def _unknown(self, scope: Scope) -> Principal:
        return admitted(self._node, scope)


def admitted(node: MessagingNode, scope: Scope) -> Principal:
    """A guest, where the node is open and the connection local; raises Unauthenticated."""
    if not node.settings.open:
        raise Unauthenticated("send a token in the Authorization header, or in the body of `open`")
    if not is_local(scope):
        raise Unauthenticated("without an account, only runtimes on this machine are admitted")
    return node.runtimes.guest()


def is_local(scope: Scope) -> bool:
    """Whether a program of this machine is at the other end."""
    return is_loopback_only(scope, Fields(scope["headers"]))


class NodeConnection:
    """One WebSocket; satisfies `sessions.Wire`."""

    def __init__(self, node: MessagingNode, scope: Scope, send: Send, principal: Principal | None) -> None:
        self._node = node
        self._scope = scope
        self._send = send
        self._principal = principal
        self._session: NodeSession | None = None
        self._token: str | None = None
        self._own: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._is_over = False

    # ------------------------------------------------------------ Wire

    def wake(self) -> None:
        self._wake.set()

    def end(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason)
            self._wake.set()
            # A client that does not read would never see the end.
            asyncio.get_running_loop().call_later(_STUCK_S, self._abort)

    def attach(self, session: NodeSession) -> None:
        """Carry a session from now on."""
        self._session = session
        session.wires.append(self)
        self._node.runtimes.back(session)
        self._wake.set()

    # ------------------------------------------------------------ both ways

    async def run(self, receive: Receive) -> None:
        writer: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write())
                try:
                    if self._session is None:
                        await self._opening(receive)
                    await self._read(receive)
                finally:
                    if self._closing is None:
                        writer.cancel()
        except* OSError:
            pass  # the client is gone
        finally:
            self._is_over = True
            session = self._session
            if session is not None:
                if self in session.wires:
                    session.wires.remove(self)
                if session.wires:
                    session.wires[-1].wake()
                elif not session.is_ended:
                    self._node.runtimes.away(session)

    async def _opening(self, receive: Receive) -> None:
        try:
            async with asyncio.timeout(self._node.settings.open_s):
                while self._session is None and self._closing is None:
                    event = await receive()
                    if event["type"] != "websocket.receive":
                        self._closing = (1000, "")
                        self._wake.set()
                        return
                    await self._frame(event)
        except TimeoutError:
            self.end(1008, "no session was opened")

    async def _read(self, receive: Receive) -> None:
        while self._closing is None:
            event = await receive()
            if event["type"] != "websocket.receive":
                return
            await self._frame(event)
        # The writer says goodbye; whatever still comes in is not for us.
        while (await receive())["type"] == "websocket.receive":
            pass

    async def _write(self) -> None:
        written = 0
        while True:
            text = self._next()
            if text is not None:
                try:
                    await self._send({"type": "websocket.send", "text": text.decode()})
                except BaseException:
                    if self._session is not None:
                        self._session.put_back(text)
                    raise
                if self._session is not None:
                    self._session.wrote(text)
                written += 1
                if written % _TURN == 0:
                    await asyncio.sleep(0)
            elif self._closing is not None:
                code, reason = self._closing
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _next(self) -> bytes | None:
        if self._own:
            return self._own.popleft()
        session = self._session
        if session is None or not session.wires or session.wires[-1] is not self:
            return None
        return session.take()

    def _abort(self) -> None:
        abort = self._scope.get("state", {}).get("abort")
        if abort is not None and not self._is_over:
            abort()

    def _answer(self, document: Document) -> None:
        if len(self._own) >= MAX_OWN:
            self.end(1008, "too many refused messages")
            return
        self._own.append(encode(document))
        self._wake.set()

    # ------------------------------------------------------------ messages

    async def _frame(self, event: Any) -> None:
        document: JSONValue = None
        try:
            text = event.get("text")
            if text is None:
                raise Malformed("messages are JSON in text frames")
            document = decode_whole(text, _LEVELS, max_bytes=self._node.settings.max_frame_bytes)
            if self._is_disconnect(document):
                await self._close(None)
                return
            envelope = read(document, size=len(text))
        except SkepError as error:
            self._answer(best_refusal(document, error))
            return
        if envelope.type in SESSION_TYPES and envelope.to == SESSION:
            await self._session_message(envelope)
        elif self._session is None:
            self._answer(response(envelope, refusal(401, "open a session first")))
        elif not self._session.is_ended:
            await self._node.relay.take(envelope, self._session)

    def _is_disconnect(self, document: JSONValue) -> bool:
        return (
            isinstance(document, dict)
            and document.get("cmd") == "disconnect"
            and self._session is not None
            and self._session.token_hash is None
        )

    async def _session_message(self, envelope: Envelope) -> None:
        try:
            match envelope.type:
                case "open":
                    token = await self._open(envelope)
                case "re-open":
                    token = await self._reopen(envelope)
                case _:
                    await self._close(envelope)
                    return
        except SkepError as error:
            self._answer(response(envelope, refused(error)))
            return
        body: Document = {"code": 200}
        if token is not None:
            body["runtimeToken"] = token
        self._answer(response(envelope, body))

    async def _open(self, envelope: Envelope) -> str | None:
        standing = self._session
        if standing is not None:
            if standing.runtime_url != envelope.sender:
                raise Conflict("this connection already has a session")
            return self._token
        principal = self._credentials(envelope) or admitted(self._node, self._scope)
        runtimes = self._node.runtimes
        source = source_of(self._scope)
        await self._node.relay.admit(principal, envelope.sender, source=source, asked=envelope)
        lost = runtimes.taken_up(principal, envelope.sender, source=source)
        session, self._token = lost or runtimes.opened(principal, envelope.sender, source=source, with_token=True)
        try:
            # A session is promised to outlive whatever happens next.
            await self._node.journal.committed()
        except BaseException:
            if lost:
                runtimes.away(session)
            else:
                await runtimes.end(session, "done")
            raise
        self.attach(session)
        return self._token

    async def _reopen(self, envelope: Envelope) -> str | None:
        standing = self._session
        if standing is not None:
            if not standing.is_address(envelope.sender):
                raise Conflict("this connection already has a session")
            return self._token
        runtimes, source = self._node.runtimes, source_of(self._scope)
        session, principal = runtimes.found(envelope.sender, self._credentials(envelope), self._is_local())
        await self._node.relay.admit(principal, session.runtime_url, source=source, asked=envelope)
        # It may have ended meanwhile.
        session, principal = runtimes.found(envelope.sender, principal, self._is_local())
        runtimes.resumed(session, principal, source=source)
        self._token = envelope.sender.rpartition("/")[2]
        self.attach(session)
        return self._token

    def _is_local(self) -> bool:
        return is_local(self._scope)

    def _credentials(self, envelope: Envelope) -> Principal | None:
        token = envelope.body.get("accessToken")
        if token is None:
            return self._standing()
        if not isinstance(token, str):
            raise Invalid("`accessToken` is text")
        found = self._node.sink.authenticator.verify(token)
        if self._principal is not None and self._principal.account != found.account:
            raise Unauthenticated("this token is another account's than the connection's")
        return found

    def _standing(self) -> Principal | None:
        """Who connected, as its account is now: it may have lost its rights since the upgrade."""
        if self._principal is None:
            return None
        found = self._node.sink.authenticator.standing(self._principal)
        if found is None:
            raise Unauthenticated("what this connection came with has ended")
        return found

    async def _close(self, envelope: Envelope | None) -> None:
        session = self._session
        if session is not None:
            if envelope is not None and not envelope.sender.startswith(session.runtime_url):
                self._answer(response(envelope, refusal(403, "this session is another runtime's")))
                return
            while (waiting := session.take()) is not None:
                self._own.append(waiting)
            # This connection says goodbye itself, when what it says is certain.
            session.wires.remove(self)
            await self._node.runtimes.end(session, "closed")
            try:
                await self._node.journal.committed()
            finally:
                self.end(1000, "")
        if envelope is not None:
            self._answer(response(envelope, {"code": 200}))
        self.end(1000, "")


async def _of_stub(node: MessagingNode, runtime_url: str, principal: Principal, source: str | None) -> NodeSession:
    """The session of a runtime that connects without a handshake: the one it lost a moment ago, or a new one."""
    await node.relay.admit(principal, runtime_url, source=source)
    lost = node.runtimes.lost(runtime_url, principal, source=source)
    return lost or node.runtimes.opened(principal, runtime_url, source=source, with_token=False)[0]


def _runtime_url(scope: Scope) -> str:
    found = parse_qs(scope["query_string"].decode("latin-1")).get("runtimeURL", [])
    if len(found) != 1 or not 0 < len(found[0]) <= MAX_ADDRESS_CHARS:
        raise Invalid("connect with ?runtimeURL=, percent-encoded")
    return str(found[0])


async def _plain(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"text/plain"), length, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})
