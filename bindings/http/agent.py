"""The agent's side: its Things' descriptions, what it publishes, the requests for its Things and its answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sse_starlette import ServerSentEvent
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.http import reads
from bindings.http.channels import QueueChannel
from bindings.http.documents import request_document
from bindings.http.empty import STORED, TAKEN
from bindings.http.exchange import EVENT_STREAM, JSON, LD_JSON, TD_JSON, Exchange, json_reply, no_content
from bindings.http.polls import Held, PollChannel
from bindings.http.problems import STATUSES, NotAcceptable, document
from bindings.http.replies import QueueStream, stream_headers
from bindings.http.routing import Documented, Route
from runtime.ports import BatchResult, Request
from things.addresses import encode_segment, own_twin
from things.delivery import DeliveryStatus
from things.errors import Forbidden, Invalid, Malformed, TokenExpired, UnknownThing
from things.identity import AccountType
from things.jsontext import decode
from things.messages import JSONValue, Message, Operation
from things.times import parse_time

_BATCH = {
    Operation.PUBLISH_EVENT.value: Operation.PUBLISH_EVENT,
    Operation.PUBLISH_PROPERTY.value: Operation.PUBLISH_PROPERTY,
}


def routes() -> list[Route]:
    thing = "/agent/things/{thing}"
    publish = Documented(tag="agent", query=("guarantee", "created"), body=JSON, answers={204: ""})
    td = Documented(tag="agent", body=TD_JSON, answers={201: "", 204: ""})
    requests = Documented(tag="agent", query=("after", "wait"), answers={200: EVENT_STREAM})
    return [
        Route("PUT", thing, _put_td, "Publish a Thing Description", documented=td),
        Route("DELETE", thing, _remove_td, "Remove a Thing", documented=Documented(tag="agent")),
        Route("POST", f"{thing}/events/{{name}}", _publish_event, "Publish an event", documented=publish),
        Route("POST", f"{thing}/properties", _publish_properties, "Publish property values", documented=publish),
        Route("POST", "/agent/batch", _publish_batch, "Publish what was stored while away", documented=publish),
        Route("GET", "/agent/requests", _requests, "Requests for the agent's Things", documented=requests),
        Route("POST", "/agent/status/{requestID}", _report, "Answer a request", documented=publish),
    ]


# ---------------------------------------------------------------- descriptions


async def _put_td(exchange: Exchange) -> ASGIApp:
    thing_id = _own(exchange)
    text = await exchange.body(TD_JSON, LD_JSON, JSON)
    if not text:
        raise Malformed("a Thing Description is needed")
    try:
        data = text.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Malformed("a Thing Description is UTF-8") from error
    is_new = await _is_new(exchange, thing_id)
    await exchange.context.sink.handle(exchange.message(Operation.PUBLISH_TD, thing_id, "", data))
    location = f"/things/{encode_segment(thing_id)}"
    return no_content(201, location=location) if is_new else no_content()


async def _is_new(exchange: Exchange, thing_id: str) -> bool:
    try:
        await reads.td(exchange, thing_id)
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
    """An object of names and values, stored together; 400 tells which were refused, the others are stored."""
    values = await exchange.json()
    if not isinstance(values, dict) or not values:
        raise Invalid("an object of property names and values is needed")
    thing_id, durable = _own(exchange), _durable(exchange)
    created, message_id = exchange.moment("created"), exchange.idempotency_key()
    exchange.size_each //= len(values)
    messages = [
        exchange.message(
            Operation.PUBLISH_PROPERTY,
            thing_id,
            name,
            value,
            message_id=message_id,
            created=created,
            durable=durable,
        )
        for name, value in values.items()
    ]
    if len(messages) == 1:
        await exchange.stored(messages[0])
        return STORED if durable else TAKEN
    result = await exchange.context.sink.batch(messages)
    if not result.rejected:
        return STORED if durable else TAKEN
    names = list(values)
    codes = {names[index]: code for index, _, code in result.rejected}
    worst = max(codes.values(), key=lambda code: STATUSES.get(code, 500))
    refused = ", ".join(f"{name}: {code}" for name, code in codes.items())
    return document(worst, f"refused: {refused}", rejected=codes, stored=result.stored)


async def _publish_batch(exchange: Exchange) -> ASGIApp:
    """`{"stored","duplicates","rejected":[{"index","messageID","code"}]}`; a malformed array is refused whole."""
    config = exchange.context.config
    text = await exchange.body(limit=config.max_batch_bytes)
    items = decode(text, max_bytes=config.max_batch_bytes) if text else None
    if not isinstance(items, list):
        raise Malformed("a JSON array of envelopes is needed")
    if len(items) > config.max_batch_items:
        raise Invalid(f"a batch holds at most {config.max_batch_items} envelopes")
    exchange.size_each //= max(len(items), 1)
    messages: list[Message] = []
    indexes: list[int] = []
    rejected: list[tuple[int, str | None, str]] = []
    for index, item in enumerate(items):
        try:
            messages.append(_envelope(exchange, item))
            indexes.append(index)
        except Invalid as error:
            message_id = item.get("messageID") if isinstance(item, dict) else None
            rejected.append((index, message_id if isinstance(message_id, str) else None, error.code))
    result = await exchange.context.sink.batch(messages) if messages else BatchResult(stored=0, duplicates=0)
    rejected += [(indexes[index], message_id, code) for index, message_id, code in result.rejected]
    return json_reply(
        {
            "stored": result.stored,
            "duplicates": result.duplicates,
            "rejected": [
                {"index": index, "messageID": message_id, "code": code} for index, message_id, code in sorted(rejected)
            ],
        }
    )


def _envelope(exchange: Exchange, item: JSONValue) -> Message:
    if not isinstance(item, dict) or item.get("v") != 1:
        raise Invalid('an envelope is an object with "v": 1')
    operation = _BATCH.get(str(item.get("operation")))
    thing, name = item.get("thingID"), item.get("name")
    if operation is None or not isinstance(thing, str) or not isinstance(name, str) or not name:
        raise Invalid("an envelope needs operation (publish_event or publish_property), thingID and name")
    message_id, created = item.get("messageID"), item.get("created")
    if message_id is not None and not (isinstance(message_id, str) and 0 < len(message_id) <= 128):
        raise Invalid("messageID is text of 1 to 128 characters")
    if created is not None and not isinstance(created, str):
        raise Invalid("created is a time as text")
    return exchange.message(
        operation,
        own_twin(exchange.principal.account, thing),
        name,
        item.get("data"),
        has_data="data" in item,
        message_id=message_id,
        created=None if created is None else parse_time(created),
    )


# ---------------------------------------------------------------- requests and answers


async def _requests(exchange: Exchange) -> ASGIApp:
    if exchange.principal.type is AccountType.CONSUMER:
        raise Forbidden("only agents and services are asked to do something")
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
            given = await channel.collect(after, wait_s)
    except BaseException:
        context.pollers.detach(channel, turn)
        raise
    if channel.closed_because is not None:
        context.pollers.detach(channel, turn)
        raise TokenExpired(f"the agent's session ended: {channel.closed_because}")
    return _PollReply(exchange, channel, turn, given, after)


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
