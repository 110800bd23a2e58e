"""The agent's side: its Things' descriptions, what it publishes, the requests for its Things and its answers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sse_starlette import ServerSentEvent
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.http import service_calls
from bindings.http.channels import QueueChannel
from bindings.http.documents import request_document
from bindings.http.exchange import (
    EVENT_STREAM,
    JSON,
    LD_JSON,
    STORED,
    TAKEN,
    TD_JSON,
    Exchange,
    json_reply,
    no_content,
)
from bindings.http.problems import NotAcceptable
from bindings.http.replies import QueueStream, stream_headers
from bindings.http.routes.polls import Held, PollChannel
from bindings.http.routing import Documented, Route
from bindings.web.credentials import refuse_foreign
from bindings.wire.batch import Item, read_batch
from bindings.wire.descriptions import read_td
from bindings.wire.values import read_values, store_values
from runtime.ports import Request
from things.addresses import encode_segment, own_twin
from things.delivery import DeliveryStatus
from things.errors import Forbidden, Invalid, Malformed, RateLimited, TokenExpired, UnknownThing
from things.identity import AccountType
from things.messages import JSONValue, Message, Operation

MAX_OWED_S = 10.0
"""How long a batch waits for its sender's budget; less than a client waits for an answer."""


def routes() -> list[Route]:
    thing = "/agent/things/{thing}"
    publish = Documented(tag="agent", query=("guarantee", "created"), body=JSON, answers={204: ""})
    answer = Documented(tag="agent", body=JSON, answers={204: ""})
    td = Documented(tag="agent", body=TD_JSON, answers={201: "", 204: ""})
    requests = Documented(tag="agent", query=("after", "wait"), answers={200: EVENT_STREAM})
    return [
        Route("PUT", thing, _put_td, "Publish a Thing Description", documented=td),
        Route("DELETE", thing, _remove_td, "Remove a Thing", documented=Documented(tag="agent")),
        Route("POST", f"{thing}/events/{{name}}", _publish_event, "Publish an event", documented=publish),
        Route("POST", f"{thing}/properties", _publish_properties, "Publish property values", documented=publish),
        Route("POST", "/agent/batch", _publish_batch, "Publish what was stored while away", documented=answer),
        Route("GET", "/agent/requests", _requests, "Requests for the agent's Things", documented=requests),
        Route("POST", "/agent/status/{requestID}", _report, "Answer a request", documented=answer),
    ]


# ---------------------------------------------------------------- descriptions


async def _put_td(exchange: Exchange) -> ASGIApp:
    thing_id = _own(exchange)
    text = await exchange.body(TD_JSON, LD_JSON, JSON)
    if not text:
        raise Malformed("a Thing Description is needed")
    data = read_td(text)
    is_new = await _is_new(exchange, thing_id)
    await exchange.context.sink.handle(exchange.message(Operation.PUBLISH_TD, thing_id, "", data))
    location = f"/things/{encode_segment(thing_id)}"
    return no_content(201, location=location) if is_new else no_content()


async def _is_new(exchange: Exchange, thing_id: str) -> bool:
    try:
        await service_calls.td(exchange, thing_id)
    except UnknownThing:
        return True
    except Forbidden:
        return False
    return False


async def _remove_td(exchange: Exchange) -> ASGIApp:
    await exchange.context.sink.handle(exchange.message(Operation.REMOVE_TD, _own(exchange), "", has_data=False))
    return no_content()


# ---------------------------------------------------------------- publishing


async def _publish_event(exchange: Exchange) -> ASGIApp:
    value, has_data = await exchange.optional_json()
    durable = _durable(exchange)
    message = exchange.message(
        Operation.PUBLISH_EVENT,
        _own(exchange),
        exchange.params["name"],
        value,
        has_data=has_data,
        message_id=exchange.idempotency_key(),
        created=exchange.moment("created"),
        durable=durable,
    )
    await exchange.stored(message)
    return STORED if durable else TAKEN


async def _publish_properties(exchange: Exchange) -> ASGIApp:
    """An object of names and values, stored together; a refusal names those that were not, the others are stored."""
    thing_id, durable = _own(exchange), _durable(exchange)
    created, message_id = exchange.moment("created"), exchange.idempotency_key()
    payload = await exchange.body()
    size = exchange.size_each

    def message_of(name: str, value: JSONValue, shared_by: int) -> Message:
        exchange.size_each = size // shared_by
        return exchange.message(
            Operation.PUBLISH_PROPERTY,
            thing_id,
            name,
            value,
            message_id=message_id,
            created=created,
            durable=durable,
        )

    values = read_values(payload, message_of)
    if len(values) == 1:
        (alone,) = values.values()
        await exchange.stored(alone())
    else:
        await store_values(values, exchange.context.sink.batch)
    return STORED if durable else TAKEN


async def _publish_batch(exchange: Exchange) -> ASGIApp:
    """`{"stored","duplicates","rejected"}` (`bindings.wire.batch`); a malformed array is refused whole."""
    max_bytes = exchange.context.config.max_batch_bytes

    def message_of(item: Item, size: int) -> Message:
        exchange.size_each = size
        return exchange.message(
            item.operation,
            item.thing_id,
            item.name,
            item.data,
            has_data=item.has_data,
            message_id=item.message_id,
            created=item.created,
            paced=True,
        )

    left_s = await _paid(exchange, MAX_OWED_S)
    payload = await exchange.body(limit=max_bytes)
    batch = await read_batch(payload, exchange.principal.account, message_of, max_bytes=max_bytes)
    # Others of this account may have been faster meanwhile.
    await _paid(exchange, left_s)
    exchange.stand()
    return json_reply(batch.report(await exchange.context.sink.batch(batch.sent_by(exchange.principal))))


async def _paid(exchange: Exchange, most_s: float) -> float:
    """Return when the caller has paid what it took beyond its budget, with what is left of `most_s`. Raises RateLimited
    if that is too short."""
    sink = exchange.context.sink
    while (owed_s := sink.owed_s(exchange.principal)) > 0:
        if owed_s > most_s:
            raise RateLimited(owed_s)
        await asyncio.sleep(owed_s)
        most_s -= owed_s
    return most_s


# ---------------------------------------------------------------- requests and answers


async def _requests(exchange: Exchange) -> ASGIApp:
    if exchange.principal.type is AccountType.CONSUMER:
        raise Forbidden("only agents and services are asked to do something")
    # A GET, and yet it takes what it is given: a page from elsewhere could have a browser do so.
    refuse_foreign(exchange.scope, exchange.headers, exchange.context.places.is_own_origin)
    after = exchange.number("after")
    wait_s = exchange.seconds("wait", exchange.context.config.max_wait_s)
    if (after is not None or wait_s is not None) and not exchange.accepts(EVENT_STREAM, explicitly=True):
        if not exchange.accepts(JSON):
            raise NotAcceptable(f"{JSON} and {EVENT_STREAM}")
        return await _poll(exchange, after, wait_s or 0.0)
    if not exchange.accepts(EVENT_STREAM):
        raise NotAcceptable(f"{JSON} with ?wait=N, and {EVENT_STREAM}")
    if exchange.is_head:
        return stream_headers()
    context = exchange.context
    channel = QueueChannel(
        context.sink.sessions,
        exchange.principal,
        session_id=context.sink.new_id(),
        source=exchange.source,
        takes=Request,
        limit=context.config.page_items,
    )
    return QueueStream(exchange, channel, context.sink.sessions.take_requests, _request_event)


def _request_event(content: Request | DeliveryStatus) -> ServerSentEvent:
    assert isinstance(content, Request)
    text = json.dumps(request_document(content), separators=(",", ":"), ensure_ascii=False)
    return ServerSentEvent(text, event="request", id=str(content.seq))


async def _poll(exchange: Exchange, after: int | None, wait_s: float) -> ASGIApp:
    context = exchange.context
    if exchange.is_head:
        return _PollReply.empty(context.config.poll_interval_s)
    channel = context.pollers.attach(exchange.principal, exchange.source)
    turn = channel.turn
    try:
        with context.streams.counted(channel.principal.account):
            watching = asyncio.create_task(_gone(exchange, channel, turn))
            try:
                given = await channel.collect(after, wait_s)
            finally:
                watching.cancel()
    except BaseException:
        context.pollers.detach(channel, turn)
        raise
    if channel.closed_because is not None:
        context.pollers.detach(channel, turn)
        raise TokenExpired(f"the agent's session ended: {channel.closed_because}")
    return _PollReply(exchange, channel, turn, given, after)


async def _gone(exchange: Exchange, channel: PollChannel, turn: int) -> None:
    await exchange.gone()
    channel.left(turn)


class _PollReply:
    """What a poll answers; its requests count as delivered once it is written."""

    def __init__(
        self, exchange: Exchange, channel: PollChannel, turn: int, given: Sequence[Held], after: int | None
    ) -> None:
        self._exchange = exchange
        self._channel = channel
        self._given = given
        self._after = after
        self._turn = turn

    @staticmethod
    def empty(interval_s: float) -> Response:
        return json_reply({"items": []}, poll_interval=f"{interval_s:g}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._exchange.context
        try:
            cursor = max([self._after or 0, *(held.request.seq for held in self._given)])
            body: dict[str, Any] = {"items": [request_document(held.request) for held in self._given]}
            if cursor:
                body["cursor"] = str(cursor)
            reply = json_reply(body, poll_interval=f"{context.config.poll_interval_s:g}")
            await reply(scope, receive, send)
            self._channel.written(self._given)
        finally:
            context.pollers.detach(self._channel, self._turn)


async def _report(exchange: Exchange) -> ASGIApp:
    """204 once it is committed; 404 for a request this agent was never asked, 409 for an illegal or late status."""
    status = await exchange.members("state")
    request_id = exchange.params["requestID"]
    await exchange.context.sink.handle(exchange.message(Operation.REPORT_STATUS, "", request_id, _known(status)))
    exchange.context.pollers.answered(exchange.principal.account, request_id)
    return no_content()


def _known(status: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    return {name: status[name] for name in ("state", "output", "error", "reason", "progress") if name in status}


def _own(exchange: Exchange) -> str:
    """The twin id of the agent's Thing in the path."""
    return own_twin(exchange.principal.account, exchange.params["thing"])


def _durable(exchange: Exchange) -> bool:
    guarantee = exchange.one("guarantee")
    if guarantee not in (None, "none", "committed"):
        raise Invalid("guarantee is none or committed")
    return guarantee != "none"
