"""Replies that go on: event streams by raw ASGI where they are many, by sse-starlette where they are few."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Protocol

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bindings.http.channels import QueueChannel, StreamChannel
from bindings.http.exchange import EVENT_STREAM, Exchange
from bindings.http.sse import OPENING, PING
from runtime.ports import Request
from things.delivery import DeliveryStatus
from things.errors import SkepError

log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

Write = Callable[[bytes], Awaitable[None]]
Prelude = Callable[[StreamChannel, Write], Awaitable[None]]
"""Writes what comes before the live events: a replay."""


class Beside(Protocol):
    """What a stream tells beside its publications, once nothing of those waits."""

    def heard(self) -> None:
        """There may be more; does not block."""

    async def next(self) -> bytes:
        """The next events, b"" for none; raises SkepError."""


def stream_headers() -> Response:
    """What HEAD on a stream answers."""
    return Response(status_code=200, media_type=EVENT_STREAM)


class EventStream:
    """One stream of publications: opens its channel, replays, then drains the queue into one chunk at a time.

    Headers leave at once. The stream ends when its channel closes (slow client, ended login, shut-down) or the client
    goes; a client resumes by the id of the last event it has.
    """

    def __init__(
        self,
        exchange: Exchange,
        channel: StreamChannel,
        subscribe: Callable[[StreamChannel], None],
        prelude: Prelude | None,
        beside: Beside | None = None,
    ) -> None:
        self._exchange = exchange
        self._channel = channel
        self._subscribe = subscribe
        self._prelude = prelude
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, channel = self._exchange.context, self._channel
        with ExitStack() as stack:
            stack.enter_context(context.tickets.opened(self._exchange.ticket, channel.close))
            stack.enter_context(context.opened(channel))
            if self._beside is not None:
                stack.enter_context(context.changes.waking(self._changed))
            channel.holding = self._prelude is not None
            self._subscribe(channel)
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(_disconnected(receive, channel))
                await self._write(send)
                watcher.cancel()

    def _changed(self) -> None:
        assert self._beside is not None
        self._beside.heard()
        self._channel.wake.set()

    async def _write(self, send: Send) -> None:
        channel = self._channel

        async def write(chunk: bytes) -> None:
            channel.writing = True
            try:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            finally:
                channel.writing = False

        # A comment makes proxies and browsers see the stream at once. No blank line follows, which some clients take
        # for the end of an empty event.
        await write(OPENING)
        if self._prelude is not None:
            try:
                await self._prelude(channel, write)
            except SkepError as error:
                # The stream has begun; the client comes back with the last id it has.
                log.info("replay ended early", extra={"session": channel.session_id, "code": error.code})
                channel.close(error.code)
        while channel.closed_because is None:
            # Before looking: what comes while the directory is asked must wake.
            channel.wake.clear()
            chunk = channel.take(PING) or await self._other()
            if channel.closed_because is not None:
                break  # revoked while the directory was asked
            if chunk:
                await write(chunk)
            else:
                await channel.wake.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _other(self) -> bytes:
        if self._beside is None:
            return b""
        try:
            return await self._beside.next()
        except SkepError as error:
            self._channel.close(error.code)
            return b""


async def _disconnected(receive: Receive, channel: StreamChannel | QueueChannel) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    channel.close("gone")


class QueueStream:
    """One stream of statuses or requests, each confirmed as delivered once it is written; through sse-starlette, which
    brings pings and notices clients that go. These streams are one a client and carry little, so that the cost of a
    task each does not matter."""

    def __init__(
        self,
        exchange: Exchange,
        channel: QueueChannel,
        begin: Callable[[QueueChannel], None],
        spell: Callable[[Request | DeliveryStatus], ServerSentEvent],
    ) -> None:
        self._exchange = exchange
        self._channel = channel
        self._begin = begin
        self._spell = spell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, channel = self._exchange.context, self._channel
        with context.tickets.opened(self._exchange.ticket, channel.close), context.opened(channel):
            self._begin(channel)
            response = EventSourceResponse(
                self._events(),
                ping=max(1, round(context.config.ping_s)),
                send_timeout=context.config.body_timeout_s,
                sep="\n",
                headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            )
            await response(scope, receive, send)

    async def _events(self) -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent(comment="ok")
        while (item := await self._channel.next()) is not None:
            content, delivered = item
            yield self._spell(content)
            # Asked for the next one: this one has been written.
            if self._channel.closed_because is None:
                delivered()


class RawStream:
    """One stream of events that are already spelled: `following` gives the next, None at the end."""

    def __init__(
        self, exchange: Exchange, channel: QueueChannel, following: Callable[[], Awaitable[bytes | None]]
    ) -> None:
        self._exchange = exchange
        self._channel = channel
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, channel = self._exchange.context, self._channel
        with context.tickets.opened(self._exchange.ticket, channel.close), context.opened(channel):
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send({"type": "http.response.body", "body": OPENING, "more_body": True})
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(_disconnected(receive, channel))
                while (chunk := await self._following()) is not None:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                watcher.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
