"""The caller's inbox and the ledger: statuses of its own requests as they come, and requests to look up and cancel."""

import json

from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.channels import CollectingChannel, QueueChannel
from bindings.http.exchange import EVENT_STREAM, JSON, Exchange, json_reply, no_content
from bindings.http.problems import NotAcceptable
from bindings.http.replies import QueueStream, stream_headers
from bindings.http.routing import Documented, Route
from runtime.ports import Request
from things.delivery import DeliveryStatus, State
from things.documents import status_document
from things.errors import Invalid
from things.messages import JSONValue, Operation
from things.times import rfc3339

_STATES = frozenset(State)


def routes() -> list[Route]:
    listing = Documented(
        tag="requests",
        query=("thing", "name", "caller", "state", "from", "to", "cursor", "limit"),
        answers={200: JSON},
    )
    one = Documented(tag="requests", answers={200: JSON})
    inbox = Documented(tag="requests", query=("after", "wait", "limit", "lastEventID"), answers={200: EVENT_STREAM})
    return [
        Route("GET", "/inbox", _inbox, "Statuses of the caller's own requests", documented=inbox),
        Route("GET", "/requests", _list, "Actions and property writes, newest first", documented=listing),
        Route("GET", "/requests/{requestID}", _read, "One request with its whole life", documented=one),
        Route("DELETE", "/requests/{requestID}", _cancel, "Cancel a request", documented=Documented(tag="requests")),
    ]


async def _inbox(exchange: Exchange) -> ASGIApp:
    after = exchange.number("after")
    wait_s = exchange.seconds("wait", exchange.context.config.max_wait_s)
    if (after is None and wait_s is None) or exchange.accepts(EVENT_STREAM, explicitly=True):
        return _inbox_stream(exchange)
    if not exchange.accepts(JSON):
        raise NotAcceptable(f"{JSON} and {EVENT_STREAM}")
    return await _inbox_poll(exchange, after, wait_s or 0.0)


def _inbox_stream(exchange: Exchange) -> ASGIApp:
    if not exchange.accepts(EVENT_STREAM):
        raise NotAcceptable(f"{JSON} and {EVENT_STREAM}")
    if exchange.is_head:
        return stream_headers()
    context = exchange.context
    after = exchange.last_event()
    channel = QueueChannel(
        context.sink.sessions,
        exchange.principal,
        session_id=context.sink.new_id(),
        source=exchange.source,
        takes=DeliveryStatus,
        limit=context.config.stream_events,
    )
    return QueueStream(
        exchange, channel, lambda opened: context.sink.sessions.take_reports(opened, after), _status_event
    )


def _status_event(content: Request | DeliveryStatus) -> ServerSentEvent:
    assert isinstance(content, DeliveryStatus)
    text = json.dumps(status_document(content), separators=(",", ":"), ensure_ascii=False)
    return ServerSentEvent(text, event="status", id=str(content.seq) if content.seq else None)


async def _inbox_poll(exchange: Exchange, after: int | None, wait_s: float) -> ASGIApp:
    """`{"items":[…],"cursor"}`: the cursor is the `after` of the next poll."""
    context = exchange.context
    limit = exchange.number("limit", least=1, most=context.config.max_page_items) or context.config.page_items
    items = await service_calls.inbox(exchange, after, limit) if after is not None else []
    if not items and wait_s and not exchange.is_head:
        channel = CollectingChannel(
            context.sink.sessions,
            exchange.principal,
            session_id=context.sink.new_id(),
            source=exchange.source,
            limit=limit,
        )
        with context.opened(channel):
            # From `after` on: what came since the read above is replayed.
            context.sink.sessions.take_reports(channel, after)
            await channel.wait(wait_s)
        items = [status_document(status) for status in channel.statuses()]
    cursor = items[-1]["seq"] if items else after
    return json_reply({"items": items} if cursor is None else {"items": items, "cursor": str(cursor)})


async def _list(exchange: Exchange) -> ASGIApp:
    config = exchange.context.config
    states = exchange.query.get("state", ())
    for state in states:
        if state not in _STATES:
            raise Invalid(f"state {state[:40]!r} is none of {', '.join(State)}")
    query: dict[str, JSONValue] = {name: exchange.one(name) for name in ("thing", "name", "caller", "cursor")}
    for name in ("from", "to"):
        moment = exchange.moment(name)
        query[name] = None if moment is None else rfc3339(moment)
    query["state"] = [*states] or None
    query["limit"] = exchange.number("limit", least=1, most=config.max_page_items) or config.page_items
    return json_reply(await service_calls.requests(exchange, **query))


async def _read(exchange: Exchange) -> ASGIApp:
    return json_reply(await service_calls.request(exchange, exchange.params["requestID"]))


async def _cancel(exchange: Exchange) -> ASGIApp:
    """204 once it is cancelled or the agent has been told; 409 if it has ended."""
    message = exchange.message(Operation.CANCEL, "", exchange.params["requestID"], has_data=False)
    await exchange.context.sink.handle(message)
    return no_content()
