"""One socket: a session of the runtime, what it reads and writes, and how it ends.

Messages are worked on as they come, many at the same time but no more than a bound; while that many are under way
nothing more is read. Answers may overtake each other; what joins them with their requests is the correlationID.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

import anyio

from bindings.websocket.config import WebThingLimits
from bindings.websocket.consuming import Consuming, Subscription
from bindings.websocket.exposing import Exposing
from bindings.websocket.invoking import Invoking
from bindings.websocket.messages import MessageType, WebThingMessage, read, spell
from bindings.websocket.outbox import WebThingOutbox
from runtime.ports import Publication, Request, Sink
from things.addresses import Kind
from things.delivery import DeliveryStatus
from things.errors import SkepError, UnknownThing
from things.identity import Principal
from things.jsontext import encode
from things.messages import Given, JSONValue, Message, Operation, Origin
from things.places import Place
from things.problems import problem
from things.service_ids import DIRECTORY
from things.times import rfc3339

log = logging.getLogger(__name__)

Event = Any
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

GONE = "gone"
"""The client has ended the socket itself."""
_CLOSE_CODES = {GONE: 1000, "shut-down": 1001, "queue-full": 1013}
_REFUSED = 1008
_CLOSE_S = 0.5


class WebThingConnection:
    """One client's session (`runtime.ports.Session`)."""

    binding = "websocket"

    def __init__(
        self,
        sink: Sink,
        principal: Principal,
        source: str | None,
        limits: WebThingLimits,
        *,
        place: Place | None = None,
        abort: Callable[[], None] | None = None,
    ) -> None:
        self.sink = sink
        self.principal = principal
        self.source = source
        self.place = place
        self.session_id = sink.new_id()
        self.origin = Origin(binding=self.binding, session_id=self.session_id, source=source, place=place)
        self.limits = limits
        self.closed_because: str | None = None
        self._abort = abort
        self._closed = asyncio.Event()
        self._refused = False
        self._outbox = WebThingOutbox(
            max_owed=limits.max_owed,
            max_notifications=limits.max_notifications,
            max_bytes=limits.max_queued_bytes,
            given_up=lambda kind: sink.sessions.dropped(self, kind, "queue-full"),
        )
        self._invoking = Invoking(self)
        self._consuming = Consuming(self, self._invoking.operations)
        self._exposing = Exposing(self)

    async def serve(self, receive: Receive, send: Send) -> None:
        """Carry messages both ways until either side ends."""
        self.sink.sessions.opened(self)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, send)
                tasks.start_soon(self._read, receive)
                await self._closed.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.close(GONE)
        if self.closed_because != GONE:
            code = _CLOSE_CODES.get(self.closed_because or GONE, _REFUSED)
            with anyio.move_on_after(_CLOSE_S) as late:
                await send({"type": "websocket.close", "code": code, "reason": (self.closed_because or "")[:120]})
            # A client that does not read would never see the end.
            if late.cancelled_caught and self._abort is not None:
                self._abort()

    # ------------------------------------------------------------ what the register calls

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        sessions, rights = self.sink.sessions, self.sink.sessions.rights
        about = (publication.thing_id, publication.kind, publication.name)

        def permitted() -> bool:
            is_judged = rights is not None and rights == sessions.rights
            return is_judged or sessions.may_see(self.principal, *about)

        for tag in tags:
            if isinstance(tag, Subscription):
                series = (tag, publication.name) if publication.kind is Kind.PROPERTY else None
                self._outbox.note(
                    self._notification(publication, tag), series, kind=publication.kind, permitted=permitted
                )

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return self._owe(self._exposing.spell(request), delivered)

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        if not self._invoking.report(status):
            return False
        delivered()
        return True

    def close(self, reason: str) -> None:
        if self.closed_because is not None:
            return
        self.closed_because = reason
        self._outbox.close()
        self.sink.sessions.closed(self)
        self._closed.set()

    # ------------------------------------------------------------ what its two sides use

    def answer(self, to: WebThingMessage, *, at: int | None = None, **members: JSONValue) -> None:
        """Answer a message, as of `at` if not of now; a client that does not read its answers is let go."""
        if not self._owe(self._spelled(MessageType.RESPONSE, to, members, at)):
            self.close("queue-full")

    def notify(self, about: WebThingMessage, **members: JSONValue) -> bool:
        """Tell more of an operation that has been answered; False if the client does not keep up."""
        return self._owe(self._spelled(MessageType.NOTIFICATION, about, members))

    def message(
        self,
        operation: Operation,
        thing_id: str,
        name: str,
        data: JSONValue = None,
        *,
        of: WebThingMessage | None = None,
        **given: Unpack[Given],
    ) -> Message:
        """A message of this client, received now, made `of` what it sent."""
        return Message(
            operation=operation,
            principal=self.principal,
            thing_id=thing_id,
            name=name,
            data=data,
            received=self.sink.clock(),
            confirmation=None if of is None else of.confirmation,
            size=0 if of is None else of.size,
            origin=self.origin,
            **given,
        )

    async def call(self, service: str, method: str, **data: JSONValue) -> Any:
        """Call a method of a built-in service with this client's rights."""
        return await self.sink.call(self.principal, service, method, data, self.origin)

    async def td(self, thing_id: str) -> dict[str, Any]:
        """The TD as this client may see it; raises UnknownThing."""
        td = await self.call(DIRECTORY, "readTD", thingID=thing_id)
        if not isinstance(td, dict):
            raise UnknownThing(thing_id)
        return td

    async def final(self, status: DeliveryStatus, wait_s: float) -> DeliveryStatus:
        """The final status of a request if it comes within the wait, else the one it has."""
        if status.is_final or not wait_s:
            return status
        return await self.sink.final(status.request_id, wait_s) or status

    def wait_of(self, message: WebThingMessage, default_s: float) -> float:
        """How long the client wants to wait."""
        wait_s = message.seconds("wait")
        return default_s if wait_s is None else min(wait_s, self.limits.max_wait_s)

    # ------------------------------------------------------------ private

    def _owe(self, text: bytes, written: Callable[[], None] | None = None) -> bool:
        taken = self._outbox.owe(text, written)
        self._refused = self._refused or not taken
        return taken

    def _spelled(
        self, type_: MessageType, to: WebThingMessage, members: dict[str, JSONValue], at: int | None = None
    ) -> bytes:
        name = to.members.get("name")
        named: dict[str, JSONValue] = {"name": name} if isinstance(name, str) else {}
        return spell(
            type_,
            to.operation,
            to.thing_id,
            message_id=self.sink.new_id(),
            correlation_id=to.correlation_id,
            timestamp=self.sink.clock() if at is None else at,
            **{**named, **members},
        )

    def _notification(self, publication: Publication, subscription: Subscription) -> bytes:
        member = b"value" if publication.kind is Kind.PROPERTY else b"data"
        head = {
            "thingID": publication.thing_id,
            "messageID": self.sink.new_id(),
            "messageType": MessageType.NOTIFICATION.value,
            "operation": subscription.operation,
            "name": publication.name,
            "timestamp": rfc3339(publication.created),
        }
        if subscription.correlation_id is not None:
            head["correlationID"] = subscription.correlation_id
        text = encode(head)
        # The payload is JSON already; the same bytes go to everyone.
        return b'%s,"%s":%s}' % (text[:-1], member, publication.payload) if publication.payload else text

    async def _write(self, send: Send) -> None:
        while (item := await self._outbox.next()) is not None:
            text, written = item
            try:
                await send({"type": "websocket.send", "text": text.decode()})
            except OSError:
                self.close(GONE)
                return
            if written is not None and self.closed_because is None:
                written()
            if self._refused and self._outbox.has_room:
                self._refused = False
                self.sink.sessions.drained(self)

    async def _read(self, receive: Receive) -> None:
        under_way = anyio.Semaphore(self.limits.max_under_way)
        async with anyio.create_task_group() as tasks:
            while True:
                event = await receive()
                if event["type"] != "websocket.receive":
                    self.close(GONE)
                    return
                await under_way.acquire()
                tasks.start_soon(self._work, event.get("text") or event.get("bytes") or b"", under_way)

    async def _work(self, text: str | bytes, under_way: anyio.Semaphore) -> None:
        message: WebThingMessage | None = None
        try:
            message = read(text, max_bytes=self.limits.max_message_bytes)
            if message.type is MessageType.REQUEST and not self._exposing.knows(message):
                await self._consuming.handle(message)
            else:
                await self._exposing.handle(message)
        except SkepError as error:
            self._refuse(message, problem(error))
        except Exception:
            log.exception("message failed", extra={"session": self.session_id})
            self._refuse(message, problem(SkepError()))
        finally:
            under_way.release()

    def _refuse(self, message: WebThingMessage | None, error: dict[str, JSONValue]) -> None:
        if message is not None:
            self.answer(message, error=error)
            return
        # Nothing of the message can be trusted, so there is nothing to answer to by name.
        text = spell(
            MessageType.RESPONSE,
            "",
            "",
            message_id=self.sink.new_id(),
            correlation_id=None,
            timestamp=self.sink.clock(),
            error=error,
        )
        if not self._owe(text):
            self.close("queue-full")
