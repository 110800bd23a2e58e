"""Notifications of the directory: Things created, updated and deleted, as W3C WoT Discovery names them.

A stream is a cursor over the changes that the directory keeps: it is woken by each, reads on from the last one it has
told, and so owes a slow client nothing. `Last-Event-ID` only sets where it begins, also after a restart.
"""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.http import service_calls
from bindings.http.channels import QueueChannel
from bindings.http.exchange import EVENT_STREAM, Exchange
from bindings.http.problems import NotAcceptable
from bindings.http.registration import enriched
from bindings.http.replies import RawStream, stream_headers
from bindings.http.routing import Documented, Route
from bindings.http.sse import PING, event
from things.delivery import DeliveryStatus
from things.errors import Invalid, NotFound, SkepError
from things.jsontext import encode

CHANGES = ("created", "updated", "deleted")
_AT_A_TIME = 100


def routes() -> list[Route]:
    documented = Documented(tag="directory", query=("diff", "lastEventID"), answers={200: EVENT_STREAM})
    return [
        Route("GET", "/events", _all, "Changes of the directory", documented=documented),
        Route("GET", "/events/{type}", _one, "Changes of one kind", documented=documented),
    ]


async def _all(exchange: Exchange) -> ASGIApp:
    return await _stream(exchange, CHANGES)


async def _one(exchange: Exchange) -> ASGIApp:
    what = exchange.params["type"].removeprefix("thing_")
    if what not in CHANGES or not exchange.params["type"].startswith("thing_"):
        raise NotFound("events are thing_created, thing_updated and thing_deleted")
    return await _stream(exchange, (what,))


async def _stream(exchange: Exchange, wanted: tuple[str, ...]) -> ASGIApp:
    if not exchange.accepts(EVENT_STREAM):
        raise NotAcceptable(EVENT_STREAM)
    diff = exchange.one("diff")
    if diff not in (None, "true", "false"):
        raise Invalid("diff is true or false")
    last = exchange.last_event()
    # Asked at once, so that a caller who may not read the directory hears so before a stream begins.
    newest = (await service_calls.changes(exchange, None, diff=False, limit=1))["last"]
    if exchange.is_head:
        return stream_headers()
    return _Notifications(exchange, wanted, diff == "true", newest if last is None else last)


class ChangesSince:
    """The changes of the directory after one of them, spelled for a stream of other things: which Thing, and `change`,
    the number to go on from."""

    def __init__(self, exchange: Exchange, after: int) -> None:
        self._exchange = exchange
        self._after = after
        self._is_due = True

    @classmethod
    async def begun(cls, exchange: Exchange, after: int | None) -> "ChangesSince":
        """From `after` on, None for what is still to come. Raises what the directory answers to who may not read it."""
        newest = (await service_calls.changes(exchange, None, diff=False, limit=1))["last"]
        return cls(exchange, newest if after is None else after)

    def heard(self) -> None:
        """Something changed."""
        self._is_due = True

    async def next(self) -> bytes:
        """The next events; b"" when there is nothing new."""
        chunk = b""
        while self._is_due and not chunk:
            self._is_due = False
            found = await service_calls.changes(self._exchange, self._after, diff=False, limit=_AT_A_TIME)
            if found["last"] != self._after:
                self._is_due = True
            self._after = found["last"]
            chunk = b"".join(
                event(encode({"id": item["thingID"], "change": item["id"]}), name=f"thing_{item['change']}")
                for item in found["items"]
            )
        return chunk


class _Notifications:
    """One stream of directory events."""

    def __init__(self, exchange: Exchange, wanted: tuple[str, ...], diff: bool, after: int) -> None:
        self._exchange = exchange
        self._wanted = wanted
        self._diff = diff
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._exchange.context
        channel = QueueChannel(
            context.sink.sessions,
            self._exchange.principal,
            session_id=context.sink.new_id(),
            source=self._exchange.source,
            takes=DeliveryStatus,
            limit=0,
        )

        async def following() -> bytes | None:
            while channel.closed_because is None:
                channel.wake.clear()
                try:
                    chunk, is_more = await self._next()
                except SkepError as error:
                    # The stream has begun; its client comes back with the last id it has.
                    channel.close(error.code)
                    return None
                if channel.closed_because is not None:
                    return None  # revoked while it was asked for
                if chunk:
                    return chunk
                if is_more:
                    continue
                try:
                    async with asyncio.timeout(context.config.ping_s):
                        await channel.wake.wait()
                except TimeoutError:
                    return PING
            return None

        with context.changes.waking(channel.wake.set):
            await RawStream(self._exchange, channel, following)(scope, receive, send)

    async def _next(self) -> tuple[bytes, bool]:
        """The next events, spelled, and whether there may be more behind them."""
        found = await service_calls.changes(self._exchange, self._after, diff=self._diff, limit=_AT_A_TIME)
        is_more = found["last"] != self._after
        self._after = found["last"]
        return b"".join(self._spelled(item) for item in found["items"] if item["change"] in self._wanted), is_more

    def _spelled(self, item: dict[str, Any]) -> bytes:
        data: dict[str, Any] = {"id": item["thingID"]}
        if "td" in item:
            data = enriched(item["td"], item, retrieved=self._exchange.context.sink.clock())
        elif "patch" in item:
            data = {**item["patch"], "registration": {"modified": item["modified"]}}
        return event(encode(data), name=f"thing_{item['change']}", id_=str(item["id"]))
