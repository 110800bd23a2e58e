"""Notifications of the directory: Things created, updated and deleted, as W3C WoT Discovery names them.

The last changes are kept in memory, so that a client that comes back with `Last-Event-ID` gets what it missed while the
runtime ran; after a restart it reads the listing. Whether somebody may know of a Thing is asked for every event.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.http import reads
from bindings.http.channels import QueueChannel
from bindings.http.exchange import EVENT_STREAM, Exchange
from bindings.http.listing import CHANGES, Change
from bindings.http.problems import NotAcceptable, NotImplementedHere
from bindings.http.replies import RawStream, stream_headers
from bindings.http.routing import Documented, Route
from bindings.http.sse import PING, event
from things.addresses import is_twin
from things.delivery import DeliveryStatus
from things.errors import Forbidden, Invalid, NotFound
from things.jsontext import encode

_DEVICES_OWN = frozenset({"forms", "base", "security", "securityDefinitions", "links", "uriVariables", "id"})
"""Members of an agent's TD that consumers never see, or see as this runtime's own."""
_AFFORDANCES = ("properties", "actions", "events")


def routes() -> list[Route]:
    documented = Documented(tag="directory", query=("diff",), answers={200: EVENT_STREAM})
    return [
        Route("GET", "/events", _all, "Changes of the directory", documented=documented),
        Route("GET", "/events/{type}", _one, "Changes of one kind", documented=documented),
        Route("GET", "/search/sparql", _sparql, "Not offered", documented=Documented(tag="directory")),
        Route("POST", "/search/sparql", _sparql, "Not offered", documented=Documented(tag="directory")),
    ]


async def _all(exchange: Exchange) -> ASGIApp:
    return _stream(exchange, CHANGES)


async def _one(exchange: Exchange) -> ASGIApp:
    what = exchange.params["type"].removeprefix("thing_")
    if what not in CHANGES or not exchange.params["type"].startswith("thing_"):
        raise NotFound("events are thing_created, thing_updated and thing_deleted")
    return _stream(exchange, (what,))


async def _sparql(exchange: Exchange) -> ASGIApp:
    raise NotImplementedHere("there is no SPARQL search; JSONPath is at /search/jsonpath")


def _stream(exchange: Exchange, wanted: tuple[str, ...]) -> ASGIApp:
    if not exchange.accepts(EVENT_STREAM):
        raise NotAcceptable(EVENT_STREAM)
    diff = exchange.one("diff")
    if diff not in (None, "true", "false"):
        raise Invalid("diff is true or false")
    last = exchange.headers.get("last-event-id")
    if last is not None and (not last.isascii() or not last.isdigit() or len(last) > 19):
        raise Invalid("Last-Event-ID is not one of this runtime's")
    if exchange.principal.role == "none":
        raise Forbidden
    if exchange.is_head:
        return stream_headers()
    return _Notifications(exchange, wanted, diff == "true", None if last is None else int(last))


class _Notifications:
    """One stream of directory events."""

    def __init__(self, exchange: Exchange, wanted: tuple[str, ...], diff: bool, after: int | None) -> None:
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
        changes: deque[Change] = deque()

        def heard(change: Change) -> None:
            if change.what not in self._wanted:
                return
            changes.append(change)
            if len(changes) > context.config.stream_events:
                channel.close("queue-full")
            channel.wake.set()

        async def following() -> bytes | None:
            while channel.closed_because is None:
                if not changes:
                    channel.wake.clear()
                    try:
                        async with asyncio.timeout(context.config.ping_s):
                            await channel.wake.wait()
                    except TimeoutError:
                        return PING
                    continue
                spelled = await self._spelled(changes.popleft())
                if spelled is not None:
                    return spelled
            return None

        context.listing.listen(heard)
        try:
            if self._after is not None:
                changes.extend(change for change in context.listing.since(self._after) if change.what in self._wanted)
            stream = RawStream(self._exchange, channel, following)
            await stream(scope, receive, send)
        finally:
            context.listing.unlisten(heard)

    async def _spelled(self, change: Change) -> bytes | None:
        """The event, or None if this caller may not know of the Thing."""
        data: dict[str, Any] = {"id": change.thing_id}
        if change.what == "deleted":
            # There is no TD left to ask for; who could have seen it is decided by address alone.
            if not self._exchange.context.may_read(self._exchange.principal, change.thing_id):
                return None
        else:
            try:
                td = await reads.td(self._exchange, change.thing_id)
            except NotFound:
                return None
            if self._diff:
                data = td if change.what == "created" else _visible_patch(change, td)
        return event(encode(data), name=f"thing_{change.what}", id_=str(change.id))


def _visible_patch(change: Change, td: Mapping[str, Any]) -> dict[str, Any]:
    """What changed, as this caller sees it: of a twin, values come from the twin's TD, never from the device's."""
    if not is_twin(change.thing_id):
        return {**change.patch, "id": change.thing_id}
    patch: dict[str, Any] = {"id": change.thing_id}
    for name, value in change.patch.items():
        if name in _DEVICES_OWN:
            continue
        if name in _AFFORDANCES and isinstance(value, dict):
            seen = td.get(name, {})
            patch[name] = {one: seen.get(one) for one in value if one in seen or value[one] is None}
        elif name in td or value is None:
            patch[name] = td.get(name)
    return patch
