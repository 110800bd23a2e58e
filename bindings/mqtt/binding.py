"""The MQTT binding: decides what a wire engine asks.

Who somebody is comes from the authenticator at CONNECT and from nowhere else. Every publish, wills included, becomes a
message for the sink (`bindings.mqtt.publishes`), every filter a subscription of the client's session.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import assert_never

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.admission import authenticated, by_token, check_will
from bindings.mqtt.away import AwaySession
from bindings.mqtt.clients import BINDING, ClientSession, PublicationEncoder
from bindings.mqtt.engines.seam import (
    Closed,
    Engine,
    Flow,
    Grant,
    Hello,
    Link,
    Listening,
    Missed,
    Outcome,
    Publish,
    SubscribeOptions,
)
from bindings.mqtt.forms import forms_of
from bindings.mqtt.groups import Groups
from bindings.mqtt.missed import DEFAULT_DEPTH, Depth, MissedRows, missed_by
from bindings.mqtt.own_rows import OwnRows
from bindings.mqtt.positions import Positions
from bindings.mqtt.publishes import Publishes
from bindings.mqtt.reasons import SERVER_BUSY, filter_reason, reason_code
from bindings.mqtt.topics import (
    InboxFilter,
    SharedFilter,
    SystemFilter,
    ThingsFilter,
    parse_filter,
    published_series,
)
from runtime.ports import Pattern, Sink
from things.addresses import Kind, TwinID
from things.errors import Forbidden, RateLimited, SkepError
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue
from things.places import Listener as PlaceListener
from things.places import Places, Urls
from things.refusals import REFUSALS
from things.td import ThingDescription

log = logging.getLogger(__name__)

FIGURES_EVERY_S = 10.0
STEPS_PER_MESSAGE = 16
"""Latest values, or Things without one, that cost an account's budget as much as a message."""


class MqttBinding:
    """One engine's clients (`bindings.mqtt.engines.seam.Gate`, `runtime.ports.ProtocolBinding`)."""

    name = BINDING

    def __init__(
        self,
        engine: Engine,
        *,
        schemes: Sequence[str] = (),
        places: Places | None = None,
        positions: Positions | None = None,
        group_positions: Positions | None = None,
        depth: Depth = DEFAULT_DEPTH,
    ) -> None:
        """`schemes` says `mqtt` or `mqtts` for each of the engine's listeners, in their order (`mqtt` where it says
        nothing); `places` are told where it listens; `positions` outlive a restart if they have a file; `depth` is how
        much a kept session may miss."""
        self._engine = engine
        self._schemes = schemes
        self.places = places or Places()
        self._sink: Sink
        self._groups: Groups
        self._encoder = PublicationEncoder()
        self._own_rows = OwnRows()
        self._clients: dict[Link, ClientSession] = {}
        self._away: dict[Link, AwaySession] = {}
        self._positions = positions or Positions()
        self._group_positions = group_positions or Positions()
        self._dropped: Counter[Flow] = Counter()
        """Deliveries given up, by kind."""
        self._publishes: Publishes
        self._depth = depth
        self._missed: MissedRows
        self.addresses: Sequence[tuple[str, int]] = ()
        """(host, port) of each listener; set when serving."""

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; reports started when every listener is up."""
        self._sink = sink
        self._publishes = Publishes(sink)
        self._missed = MissedRows(sink, self._depth)
        try:
            await self._served(task_status)
        finally:
            # The engine has closed its links by now, each with its last mark.
            with anyio.CancelScope(shield=True):
                await self._positions.save()
                await self._group_positions.save()

    async def _served(self, task_status: TaskStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            sink = self._sink
            self._groups = Groups(sink.sessions, sink.new_id, self._group_positions, self._missed, tasks.start_soon)

            async def serve_engine(*, task_status: TaskStatus[Listening]) -> None:
                await self._engine.serve(self, task_status=task_status)
                tasks.cancel_scope.cancel()

            listening: Listening = await tasks.start(serve_engine)
            self.addresses = tuple(listening.addresses)
            self.places.listens(
                *(
                    PlaceListener(scheme or "mqtt", host, port)
                    for (host, port), scheme in zip_longest(self.addresses, self._schemes[: len(self.addresses)])
                )
            )
            log.info("listening", extra={"binding": self.name, "urls": self.urls})
            task_status.started()
            while True:
                await anyio.sleep(FIGURES_EVERY_S)
                for link, session in tuple(self._clients.items()):
                    session.tell_figures(tuple(self._figures()))
                    self._mark(link, session)
                self._groups.tick()
                await self._positions.save()
                await self._group_positions.save()
                REFUSALS.tell()

    @property
    def urls(self) -> Sequence[str]:
        """Where clients connect, one for each kind of listener, once it serves."""
        urls = self.places.urls()
        return [url for url in (urls.mqtt, urls.mqtts) if url is not None]

    def forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """Forms for a twin TD, for each address at which clients connect."""
        return forms_of(td, twin, [url for url in (urls.mqtt, urls.mqtts) if url is not None])

    # ------------------------------------------------------------ the gate: who

    async def admit(self, hello: Hello) -> Principal | Outcome | None:
        try:
            principal = await authenticated(hello, self._sink.authenticator)
        except SkepError as error:
            REFUSALS.note(log, "connect refused", who=hello.source, code=error.code, account=hello.user_name)
            # Whether the secret is right was not looked at: it may be tried again.
            return Outcome(reason_code=SERVER_BUSY, reason=error.detail) if isinstance(error, RateLimited) else None
        if hello.will is None:
            return principal
        try:
            check_will(hello.will, principal)
        except SkepError as error:
            topic = hello.will.topic
            REFUSALS.note(log, "will refused", who=principal.account, code=error.code, topic=topic)
            return Outcome(reason_code=reason_code(error), reason=f"the will is refused: {error.detail}")
        return principal

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        session = self._clients.get(link)
        try:
            principal = by_token(data, self._sink.authenticator)
        except SkepError as error:
            REFUSALS.note(log, "authentication refused", who=link.principal.account, code=error.code)
            return None
        if session is None or principal.account != link.principal.account:
            return None
        session.principal = principal
        self._sink.sessions.renewed(session, principal)
        self._groups.renewed(principal)
        return principal

    # ------------------------------------------------------------ the gate: links

    def opened(self, link: Link, *, resumed: bool) -> None:
        session = self._session(link)
        if session is not None and resumed and session.takes_reports:
            self._sink.sessions.take_reports(session, self._positions.get((link.principal.account, link.client_id)))

    def closed(self, link: Link, reason: Closed) -> None:
        if (away := self._away.pop(link, None)) is not None:
            self._sink.sessions.closed(away)
            self._groups.back(away.groups)
            return
        session = self._clients.pop(link, None)
        if session is None:
            return
        self._mark(link, session)
        self._groups.leave_all(session)
        self._sink.sessions.closed(session)
        log.debug("client gone", extra={"account": session.principal.account, "reason": reason})

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        principal = self._sink.authenticator.standing(link.principal)
        was = link.principal
        if principal is None or (principal.type, principal.role) != (was.type, was.role):
            # Whoever has other rights now begins anew.
            return False
        # It ends with its account or login, and by the engine's clock: not with the token it last came with.
        session = AwaySession(link, replace(principal, expires=None) if principal.expires else principal)
        try:
            self._sink.sessions.opened(session)
        except SkepError as error:
            log.info("a session waits unwatched", extra={"account": principal.account, "code": error.code})
            return True
        self._sink.sessions.away(session)
        session.groups = self._groups.away(principal.account, filters)
        self._away[link] = session
        return True

    def _mark(self, link: Link, session: ClientSession) -> None:
        if session.confirmed is not None:
            self._positions.put((session.principal.account, link.client_id), session.confirmed)

    def _session(self, link: Link) -> ClientSession | None:
        """The link's session; made at the first word about it, which for a resumed one is a filter. None if the account
        has too many, and then the link is closed."""
        session = self._clients.get(link)
        if session is None:
            session = self._made(link)
            try:
                self._sink.sessions.opened(session)
            except SkepError as error:
                # The engine tells `opened` and `closed` of it all the same.
                REFUSALS.note(log, "session refused", who=link.principal.account, code=error.code)
                link.close(Closed.REFUSED)
                return None
            self._clients[link] = session
        return session

    def _made(self, link: Link) -> ClientSession:
        sink = self._sink
        return ClientSession(sink.new_id(), link, sink.sessions, self._encoder, self.places, self._own_rows)

    # ------------------------------------------------------------ the gate: filters

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        session = self._session(link)
        self._sink.charge(link.principal, 1)
        try:
            if session is None:
                raise Forbidden
            parsed = parse_filter(topic_filter, session.principal.account)
            match parsed:
                case ThingsFilter():
                    grant = session.subscribe_things(topic_filter, parsed, options)
                    return replace(grant, latest=self._charged(session, grant.latest)) if grant.latest else grant
                case InboxFilter():
                    return session.subscribe_inbox(topic_filter, parsed, options)
                case SharedFilter():
                    return self._groups.join(session, topic_filter, parsed, options)
                case SystemFilter():
                    granted = session.subscribe_system(topic_filter, parsed, options)
                    return Grant(qos=granted.qos, latest=tuple(session.figures(self._figures(), topic_filter)))
                case _:
                    assert_never(parsed)
        except SkepError as error:
            REFUSALS.note(log, "filter refused", who=link.principal.account, code=error.code, filter=topic_filter)
            return filter_reason(error)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        session = self._clients.get(link)
        self._sink.charge(link.principal, 1)
        if session is None:
            return False
        return session.unsubscribe(topic_filter) or self._groups.leave(session, topic_filter)

    def _charged(self, session: ClientSession, values: Iterable[Publish | None]) -> Iterator[Publish | None]:
        for count, value in enumerate(values, start=1):
            if count % STEPS_PER_MESSAGE == 0:
                self._sink.charge(session.principal, 1)
            yield value

    # ------------------------------------------------------------ the gate: publishes

    def owed_s(self, link: Link) -> float:
        return self._sink.owed_s(link.principal)

    def received(self, link: Link, message: Publish) -> Awaitable[object]:
        return self._publishes.received(self._clients.get(link), link, message)

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        return self._publishes.refusal(self._clients.get(link), link, message, error)

    def will(self, link: Link, message: Publish) -> Awaitable[object]:
        session = self._clients.get(link)
        if session is None:
            # Its client is long gone: nothing is to be sent to it, so the register need not know of it.
            session = self._made(link)
        principal = self._sink.authenticator.standing(session.principal)
        if principal is None:
            log.info(
                "a will was dropped: its account or credential is no more", extra={"account": link.principal.account}
            )
            return self._publishes.dropped_will()
        session.principal = principal
        return self._publishes.received(session, link, message)

    # ------------------------------------------------------------ the gate: what waited

    @property
    def rights(self) -> int | None:
        return self._sink.sessions.rights

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        session = self._clients.get(link)
        if session is None:
            return None
        series = published_series(message.topic)
        if series is None:
            # Of the own inbox or $SYS/: a session ends with its account and its role.
            return message
        twin, kind, name = series
        sessions = self._sink.sessions
        if not sessions.may_see(session.principal, str(twin), kind, name):
            return None
        if kind is not Kind.TD or not message.payload:
            return message
        # What a description shows hangs on rights too.
        pattern = Pattern(agent=twin.account, thing=twin.thing, kind=Kind.TD)
        found = sessions.latest(session.principal, pattern, session.place)
        shown = next((one for one in found if one is not None), None)
        return None if shown is None else replace(message, payload=shown.payload)

    @property
    def published_row(self) -> int:
        return self._sink.sessions.published_row

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        session = self._clients.get(link)
        found = session and await missed_by(session, filters, after, self._missed, is_first=is_first)
        return found or Missed(deliveries=(), last_row=self.published_row, has_more=False)

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        self._dropped[message.flow] += 1
        session = self._clients.get(link)
        if session is not None:
            self._sink.sessions.dropped(session, message.flow, reason)

    # ------------------------------------------------------------ figures

    def _figures(self) -> Iterator[tuple[str, bytes]]:
        yield "$SYS/mqtt/clients", encode(len(self._clients))
        yield "$SYS/mqtt/received", encode(self._publishes.count)
        yield "$SYS/mqtt/refused", encode(self._publishes.refused)
        yield "$SYS/mqtt/gaps", encode(self._missed.gaps)
        yield "$SYS/mqtt/dropped", encode(self._encoder.dropped + self._dropped.total())
        for flow in Flow:
            yield f"$SYS/mqtt/dropped/{flow}", encode(self._dropped[flow])
