"""Event streams and long polls over publications: one affordance, one Thing, or many subscriptions at once.

A stream that comes with `Last-Event-ID` first gets what it missed from history, page by page, while live events are
held back; a long poll with `after` reads the same pages, and one of a single affordance goes on where the client's last
one ended (`bindings.http.poll_positions`). What has no history row (descriptions, progress of actions) is live only.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.channels import CollectingChannel, StreamChannel
from bindings.http.documents import publication_document
from bindings.http.exchange import EVENT_STREAM, JSON, Exchange, json_reply, no_content
from bindings.http.notifications import ChangesSince
from bindings.http.poll_positions import Position, poller
from bindings.http.problems import NotAcceptable
from bindings.http.replies import EventStream, Prelude, Write, stream_headers
from bindings.http.routing import Documented, Route
from bindings.http.sse import Spelling, event_bytes
from runtime.ports import Pattern, Publication
from things.addresses import Kind, TwinID, is_twin
from things.errors import Invalid, UnknownName, UnknownThing
from things.jsontext import encode
from things.times import parse_time

_REPLAY_PAGE = 500
_STORED = (Kind.EVENT, Kind.PROPERTY)


def routes() -> list[Route]:
    return [
        Route("GET", "/things/{id}/events/{name}", _event, "Subscribe to an event", documented=_ONE),
        Route("GET", "/things/{id}/events", _events, "Subscribe to all events of a Thing", documented=_ONE),
        Route("GET", "/stream", _stream, "Many subscriptions in one stream, or by long poll", documented=_MANY),
    ]


_ONE = Documented(tag="streams", query=("sse", "wait", "latest", "lastEventID"), answers={200: EVENT_STREAM})
_MANY = Documented(
    tag="streams",
    query=(
        *("agent", "thing", "name", "kind", "after", "wait", "limit", "sse", "latest", "inbox", "changes"),
        "lastEventID",
    ),
    answers={200: EVENT_STREAM},
)


# ---------------------------------------------------------------- one Thing


async def _event(exchange: Exchange) -> ASGIApp:
    thing_id, name = exchange.params["id"], exchange.params["name"]
    wait_s = exchange.seconds("wait", exchange.context.config.max_long_poll_s)
    if wait_s is None or exchange.accepts(EVENT_STREAM, explicitly=True):
        return await observe(exchange, thing_id, Kind.EVENT, name)
    if exchange.is_head:
        # Clients of the longpoll subprotocol first ask whether the address answers at all.
        await _pattern(exchange, thing_id, Kind.EVENT, name)
        announce_poll(exchange, thing_id, Kind.EVENT, name)
        return json_reply(None)
    next_one = await poll_once(exchange, thing_id, Kind.EVENT, name, wait_s)
    return json_reply(next_one.value) if next_one is not None else no_content()


async def _events(exchange: Exchange) -> ASGIApp:
    return await observe(exchange, exchange.params["id"], Kind.EVENT, None)


async def observe(exchange: Exchange, thing_id: str, kind: Kind, name: str | None) -> ASGIApp:
    """The stream of one affordance, or of all of a kind: bare values, named by affordance."""
    if not exchange.accepts(EVENT_STREAM):
        raise NotAcceptable(EVENT_STREAM)
    wanted = Wanted((await _pattern(exchange, thing_id, kind, name),))
    if exchange.is_head:
        return stream_headers()
    spelling = Spelling.UNNAMED if _unnamed(exchange) else Spelling.NAMED
    return _opened(exchange, wanted, spelling)


async def poll_once(exchange: Exchange, thing_id: str, kind: Kind, name: str, wait_s: float) -> Publication | None:
    """The next publication of one affordance, for clients of the longpoll subprotocol; None when the wait ends. What
    came since the client's last poll comes first."""
    pattern = await _pattern(exchange, thing_id, kind, name)
    context, sessions = exchange.context, exchange.context.sink.sessions
    with _polling(exchange, thing_id, kind, name) as position:
        channel = _collecting(exchange, limit=1)
        with context.opened(channel):
            # Subscribed before history is read, so that nothing falls in between.
            sessions.subscribe(channel, pattern, 0)
            found = await _next_after(exchange, pattern, position.row)
            if found is None:
                await channel.wait(wait_s)
                found = next(iter(channel.publications()), None)
            # Whoever is gone meanwhile was given nothing.
            position.row = (found.row_id if found is not None else 0) or sessions.published_row
            return found


async def _next_after(exchange: Exchange, pattern: Pattern, row_id: int) -> Publication | None:
    """The first publication after a row that was told already."""
    sessions = exchange.context.sink.sessions
    while True:
        missed = await sessions.missed(exchange.principal, (pattern,), row_id, 1)
        if missed.publications:
            return missed.publications[0]
        if not missed.has_more:
            return None
        row_id = missed.last_row


def announce_poll(exchange: Exchange, thing_id: str, kind: Kind, name: str) -> None:
    """A client that asks whether the address answers is going to poll: what comes from now on is for it."""
    with _polling(exchange, thing_id, kind, name):
        pass


def _polling(exchange: Exchange, thing_id: str, kind: Kind, name: str) -> AbstractContextManager[Position]:
    context = exchange.context
    who = poller(exchange.principal, exchange.source, exchange.headers.get("user-agent") or "", thing_id, kind, name)
    return context.polls.at(who, exchange.scope.get("client"), context.sink.sessions.published_row)


async def _pattern(exchange: Exchange, thing_id: str, kind: Kind, name: str | None) -> Pattern:
    """The subscription of one affordance; raises UnknownThing, UnknownName as the caller may see them."""
    if not is_twin(thing_id):
        raise UnknownThing(thing_id)
    twin = TwinID.parse(thing_id)
    td = await service_calls.td(exchange, thing_id)
    group = "properties" if kind is Kind.PROPERTY else "events"
    if name is not None and name not in td.get(group, {}):
        raise UnknownName(thing_id, kind, name)
    return Pattern(twin.account, twin.thing, kind, name)


# ---------------------------------------------------------------- many


@dataclass(frozen=True, slots=True)
class Wanted:
    """The subscriptions of one stream, and how to find the same in history."""

    patterns: tuple[Pattern, ...]

    @property
    def things(self) -> Sequence[str]:
        """The twin ids, if every subscription names one; else none, which means all."""
        ids = {f"dtw:{one.agent}:{one.thing}" for one in self.patterns if one.agent and one.thing}
        return sorted(ids) if all(one.agent and one.thing for one in self.patterns) else ()

    @property
    def names(self) -> Sequence[str]:
        names = {one.name for one in self.patterns if one.name is not None}
        return sorted(names) if all(one.name is not None for one in self.patterns) else ()

    @property
    def kind(self) -> Kind | None:
        kinds = {one.kind for one in self.patterns}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def is_stored(self) -> bool:
        """Whether history can hold anything of it."""
        return any(one.kind is None or one.kind in _STORED for one in self.patterns)

    @property
    def is_properties_only(self) -> bool:
        return all(one.kind is Kind.PROPERTY for one in self.patterns)

    def takes(self, row: dict[str, Any]) -> bool:
        """Whether a history row is one of what was asked for."""
        twin = TwinID.parse(row["thingID"])
        return any(
            one.agent in (None, twin.account)
            and one.thing in (None, twin.thing)
            and one.kind in (None, row["kind"])
            and one.name in (None, row["name"])
            for one in self.patterns
        )


async def _stream(exchange: Exchange) -> ASGIApp:
    wanted = Wanted(tuple(_patterns(exchange)))
    wait_s = exchange.seconds("wait", exchange.context.config.max_wait_s)
    after = exchange.number("after")
    if (wait_s is None and after is None) or exchange.accepts(EVENT_STREAM, explicitly=True):
        if not exchange.accepts(EVENT_STREAM):
            raise NotAcceptable(EVENT_STREAM)
        if exchange.is_head:
            return stream_headers()
        spelling = Spelling.MANY_UNNAMED if _unnamed(exchange) else Spelling.MANY
        with_changes, change = _beginning(exchange, "changes")
        return _opened(
            exchange,
            wanted,
            spelling,
            inbox=_beginning(exchange, "inbox"),
            beside=await ChangesSince.begun(exchange, change) if with_changes else None,
        )
    if not exchange.accepts(JSON):
        raise NotAcceptable(JSON)
    return await _long_poll(exchange, wanted, after, wait_s or 0.0)


async def _long_poll(exchange: Exchange, wanted: Wanted, after: int | None, wait_s: float) -> ASGIApp:
    """`{"items":[…],"cursor"}`: the cursor is the `after` of the next poll."""
    context = exchange.context
    limit = exchange.number("limit", least=1, most=context.config.max_page_items) or context.config.page_items
    items: list[dict[str, Any]] = []
    channel = _collecting(exchange, limit=limit)
    with context.opened(channel):
        # Subscribed before history is read, so that nothing falls in between.
        _subscribe(exchange, channel, wanted)
        cursor = after
        if after is not None and wanted.is_stored:
            items, cursor, _ = await _page(exchange, wanted, after, limit)
        if not items and not exchange.is_head:
            await channel.wait(wait_s)
    fresh = [one for one in channel.publications() if one.row_id == 0 or one.row_id > (cursor or 0)]
    if not items:
        items = [publication_document(one) for one in fresh]
        cursor = max([cursor or 0, *(one.row_id for one in fresh)])
    reply: dict[str, Any] = {"items": items}
    if cursor:
        reply["cursor"] = str(cursor)
    return json_reply(reply)


async def _page(exchange: Exchange, wanted: Wanted, after: int, limit: int) -> tuple[list[dict[str, Any]], int, bool]:
    """Up to `limit` stored rows after this one that are wanted, the last row that was looked at, and whether there may
    be more."""
    found: list[dict[str, Any]] = []
    while True:
        rows, cursor = await service_calls.rows_after(
            exchange, after, things=wanted.things, kind=wanted.kind, names=wanted.names, limit=limit
        )
        for row in rows:
            after = int(row["rowID"])
            if wanted.takes(row):
                found.append(row)
                if len(found) == limit:
                    return found, after, True
        if cursor is None:
            return found, after, False
        after = max(after, cursor)


def _beginning(exchange: Exchange, name: str) -> tuple[bool, int | None]:
    """Whether a stream is also to tell of something, and after which number; None for what is still to come."""
    text = exchange.one(name)
    return text is not None, None if text in (None, "true") else exchange.number(name)


def _opened(
    exchange: Exchange,
    wanted: Wanted,
    spelling: Spelling,
    *,
    inbox: tuple[bool, int | None] = (False, None),
    beside: ChangesSince | None = None,
) -> EventStream:
    context = exchange.context
    with_statuses, after_status = inbox
    channel = StreamChannel(
        context.sink.sessions,
        exchange.principal,
        session_id=context.sink.new_id(),
        source=exchange.source,
        encoder=context.encoder,
        spelling=spelling,
        coalesce=wanted.is_properties_only,
        max_events=context.config.stream_events,
        max_bytes=context.config.stream_bytes,
        abort=exchange.scope.get("state", {}).get("abort"),
        with_statuses=with_statuses,
    )
    channel.place = exchange.place

    def begin(opened: StreamChannel) -> None:
        _subscribe(exchange, opened, wanted)
        if with_statuses:
            context.sink.sessions.take_reports(opened, after_status)

    return EventStream(exchange, channel, begin, _prelude(exchange, wanted, spelling), beside)


def _subscribe(exchange: Exchange, channel: StreamChannel | CollectingChannel, wanted: Wanted) -> None:
    for tag, pattern in enumerate(wanted.patterns):
        exchange.context.sink.sessions.subscribe(channel, pattern, tag)


def _prelude(exchange: Exchange, wanted: Wanted, spelling: Spelling) -> Prelude | None:
    latest = _latest(exchange, wanted, spelling) if exchange.one("latest") in ("true", "1") else None
    last = exchange.last_event() if wanted.is_stored else None
    if last is None:
        return latest
    replay = _replay(exchange, wanted, spelling, last)
    if latest is None:
        return replay

    async def both(channel: StreamChannel, write: Write) -> None:
        # What is computed, such as who is online, has no rows and would stay as the client last saw it.
        await replay(channel, write)
        await latest(channel, write)

    return both


def _replay(exchange: Exchange, wanted: Wanted, spelling: Spelling, after: int) -> Prelude:
    async def replay(channel: StreamChannel, write: Write) -> None:
        last = after
        while channel.closed_because is None:
            # What is dropped from here on is committed, so a further page will bring it.
            channel.missed = False
            rows, looked_at, more = await _page(exchange, wanted, last, _REPLAY_PAGE)
            if rows and channel.closed_because is None:
                await write(b"".join(_spelled(row, spelling) for row in rows))
            last = max(last, looked_at)
            if not more and not channel.missed:
                break
        channel.skip_to(last)
        channel.holding = False

    return replay


def _latest(exchange: Exchange, wanted: Wanted, spelling: Spelling) -> Prelude:
    async def latest(channel: StreamChannel, write: Write) -> None:
        for pattern in wanted.patterns:
            for publication in exchange.context.sink.sessions.latest(exchange.principal, pattern, exchange.place):
                if channel.closed_because is not None:
                    return
                if publication is None:
                    # Thousands of Things may be looked at before one of them has anything.
                    await asyncio.sleep(0)
                    continue
                await write(event_bytes(publication, spelling, publication.row_id))
        channel.holding = False

    return latest


def _spelled(row: dict[str, Any], spelling: Spelling) -> bytes:
    publication = Publication(
        twin=TwinID.parse(row["thingID"]),
        thing_id=row["thingID"],
        kind=Kind(row["kind"]),
        name=row["name"],
        value=row["value"],
        payload=encode(row["value"]),
        created=parse_time(row["created"]),
        row_id=int(row["rowID"]),
    )
    return event_bytes(publication, spelling, publication.row_id)


def _patterns(exchange: Exchange) -> Iterable[Pattern]:
    """One subscription for each combination of what stands in the query; `*` and nothing stand for any."""
    query = exchange.query
    kinds = [_kind(text) for text in query.get("kind", ("*",))]
    names = [None if text == "*" else text for text in query.get("name", ("*",))]
    agents = [None if text == "*" else text for text in query.get("agent", ("*",))]
    pairs: list[tuple[str | None, str | None]] = []
    for text in query.get("thing", ("*",)):
        if is_twin(text):
            twin = TwinID.parse(text)
            if any(agent in (None, twin.account) for agent in agents):
                pairs.append((twin.account, twin.thing))
        else:
            pairs += [(agent, None if text == "*" else text) for agent in agents]
    if not pairs:
        raise Invalid("no Thing can be of this agent")
    limit = exchange.context.config.max_patterns
    if len(pairs) * len(kinds) * len(names) > limit:
        raise Invalid(f"more than {limit} subscriptions in one stream")
    return [Pattern(agent, thing, kind, name) for agent, thing in pairs for kind in kinds for name in names]


def _kind(text: str) -> Kind | None:
    if text == "*":
        return None
    try:
        return Kind(text)
    except ValueError as error:
        raise Invalid(f"kind {text[:40]!r} is none of {', '.join(Kind)}") from error


def _unnamed(exchange: Exchange) -> bool:
    sse = exchange.one("sse")
    if sse not in (None, "named", "unnamed"):
        raise Invalid("sse is named or unnamed")
    return sse == "unnamed"


def _collecting(exchange: Exchange, *, limit: int) -> CollectingChannel:
    context = exchange.context
    channel = CollectingChannel(
        context.sink.sessions,
        exchange.principal,
        session_id=context.sink.new_id(),
        source=exchange.source,
        limit=limit,
    )
    channel.place = exchange.place
    return channel
