"""One MQTT client as the runtime sees it: a session with its filters, its inbox, and the answers it asked for.

Publications, requests and statuses come from the runtime's register and go to the client's link, each with the overflow
policy of its kind. What the register does not know is kept here: which filter asked at which QoS, where an answer is to
go, and which status the client has confirmed last.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bindings.mqtt.engines.seam import Closed, Flow, Grant, Link, Publish, SubscribeOptions
from bindings.mqtt.inbox import MAX_HELD, Answer, Inbox
from bindings.mqtt.order import PublishOrder
from bindings.mqtt.own_rows import OwnRows
from bindings.mqtt.topics import (
    InboxFilter,
    SystemFilter,
    ThingsFilter,
    matches,
    publication_topic,
    request_topic,
    status_topic,
)
from runtime.ports import Pattern, Publication, Request, Session, Sessions
from things.addresses import Kind
from things.bounded import Bounded
from things.callbacks import ignore
from things.delivery import DeliveryStatus
from things.documents import status_document
from things.errors import Forbidden, SkepError
from things.identity import AccountType, Principal, Role
from things.jsontext import encode
from things.messages import Origin
from things.names import shown
from things.places import Place, Places
from things.times import rfc3339

log = logging.getLogger(__name__)

BINDING = "mqtt"
MQTT_5 = 5
MAX_TOPICS = 65_536
"""Series whose topic is remembered."""
MAX_TOPIC_BYTES = 65_535
"""What the length of a topic can say in a PUBLISH."""

_SPARED = {Closed.SHUTDOWN, Closed.EXPIRED}
"""Reasons of the runtime to end a session that leave what is kept for the client."""
_FLOWS = {Kind.EVENT: Flow.EVENT, Kind.PROPERTY: Flow.PROPERTY, Kind.TD: Flow.PROPERTY, Kind.ACTION: Flow.EVENT}


@dataclass(slots=True, eq=False)
class Subscription:
    """One filter below `things/` as one client asked for it; the tag by which the register names it."""

    patterns: Sequence[Pattern]
    options: SubscribeOptions


class PublicationEncoder:
    """Turns publications into deliveries; those of one publication that look alike are one object."""

    __slots__ = ("_cache", "_of", "_topics", "dropped")

    def __init__(self) -> None:
        self._of: Publication | None = None
        self._cache: dict[tuple[int, bool, bool, Sequence[int], bool], Publish] = {}
        self._topics: Bounded[tuple[str, Kind, str], str | None] = Bounded(MAX_TOPICS)
        self.dropped = 0
        """Deliveries of publications that no topic can name."""

    def encode(
        self,
        publication: Publication,
        qos: int,
        *,
        is_5: bool,
        retain: bool = False,
        ids: Sequence[int] = (),
        is_owed: bool = False,
    ) -> Publish | None:
        """The delivery of a publication; None, and counted, if no topic can name it. No name is taken any more of which
        that is true, but an earlier version may have stored one. `is_owed`: asked for at QoS 1 or 2, so that a kept
        session is given it again if it has missed it."""
        if self._of is not publication:
            self._of = publication
            self._cache.clear()
        key = (qos, is_5, retain, ids, is_owed)
        delivery = self._cache.get(key)
        if delivery is None:
            topic = self._topic(publication)
            if topic is None:
                self.dropped += 1
                return None
            properties: tuple[tuple[str, str], ...] = ()
            if is_5:
                properties = (*publication.user_properties, ("created", rfc3339(publication.created)))
            delivery = self._cache[key] = Publish(
                topic=topic,
                payload=publication.payload,
                qos=qos,
                retain=retain,
                flow=_FLOWS[publication.kind],
                user_properties=properties,
                subscription_ids=ids,
                row_id=publication.row_id if is_owed else 0,
            )
        return delivery

    def _topic(self, publication: Publication) -> str | None:
        """Spelled once for each series: encoding a name costs as much as encoding the rest of the packet."""
        series = (publication.thing_id, publication.kind, publication.name)
        topic = self._topics.get(series)
        if topic is None and series not in self._topics:
            topic = self._topics[series] = self._spelled(publication)
        return topic

    def _spelled(self, publication: Publication) -> str | None:
        # Nothing but ASCII is in a topic, where everything else is percent-encoded: characters are bytes.
        if len(topic := publication_topic(publication.twin, publication.kind, publication.name)) <= MAX_TOPIC_BYTES:
            return topic
        extra = {"thing": publication.thing_id, "kind": publication.kind, "affordance": shown(publication.name)}
        log.warning("not sent over MQTT: no topic can name it", extra=extra)
        return None


class ClientSession:
    """One client's session (`runtime.ports.Session`)."""

    __slots__ = (
        "_encoder",
        "_inbox",
        "_is_5",
        "_order",
        "_origin",
        "_own_rows",
        "_places",
        "_sessions",
        "_system",
        "_things",
        "confirmed",
        "link",
        "principal",
        "session_id",
        "source",
    )
    binding = BINDING

    def __init__(
        self,
        session_id: str,
        link: Link,
        sessions: Sessions,
        encoder: PublicationEncoder,
        places: Places,
        own_rows: OwnRows,
    ) -> None:
        self.session_id = session_id
        self.principal: Principal = link.principal
        self.source = link.source
        self.link = link
        self.confirmed: int | None = None
        """Sequence number of the last status the client has confirmed."""
        self._sessions = sessions
        self._encoder = encoder
        self._places = places
        self._own_rows = own_rows
        self._is_5 = link.protocol_level >= MQTT_5
        self._things: dict[str, Subscription] = {}
        # Made for who publishes or asks: thousands of clients only watch.
        self._origin: Origin | None = None
        self._order: PublishOrder | None = None
        self._inbox: Inbox | None = None
        self._system: dict[str, tuple[SystemFilter, int]] | None = None

    @property
    def place(self) -> Place | None:
        """Where the client sees this runtime, as far as its connection tells."""
        return self._places.place_at(self.link.local)

    @property
    def origin(self) -> Origin:
        """What its messages say of where they entered."""
        if self._origin is None:
            self._origin = Origin(binding=BINDING, session_id=self.session_id, source=self.source, place=self.place)
        return self._origin

    @property
    def order(self) -> PublishOrder:
        """The order of its publishes."""
        if self._order is None:
            self._order = PublishOrder()
        return self._order

    # ------------------------------------------------------------ filters

    def subscribe_things(self, text: str, parsed: ThingsFilter, options: SubscribeOptions) -> Grant:
        """Add or change one filter below `things/`. Raises Forbidden if nothing it matches can be permitted."""
        subscription = self._things.get(text)
        is_new = subscription is None
        if subscription is None:
            subscription = Subscription(parsed.patterns, options)
            subscribe_patterns(self._sessions, self, parsed.patterns, subscription)
            self._things[text] = subscription
        subscription.options = options
        if options.retain_handling == 2 or (options.retain_handling == 1 and not is_new):
            return Grant(qos=options.qos)
        return Grant(qos=options.qos, latest=self._latest(parsed.patterns, options))

    def patterns(self, text: str) -> Sequence[Pattern]:
        """What a filter below `things/` stands for; none for any other."""
        subscription = self._things.get(text)
        return () if subscription is None else subscription.patterns

    def _latest(self, patterns: Sequence[Pattern], options: SubscribeOptions) -> Iterator[Publish | None]:
        """Latest values that a filter asks for, each as it is and may be seen when it is made."""
        qos, ids = min(options.qos, 1), _ids(options)
        for pattern in patterns:
            if pattern.kind in (None, Kind.PROPERTY, Kind.TD):
                for publication in self._sessions.latest(self.principal, pattern, self.place):
                    if publication is None:
                        yield None
                    else:
                        yield self._encoder.encode(publication, qos, is_5=self._is_5, retain=True, ids=ids)

    def subscribe_inbox(self, text: str, parsed: InboxFilter, options: SubscribeOptions) -> Grant:
        """Add or change one filter of the own inbox; requests and statuses flow from now on."""
        inbox = self._own_inbox()
        inbox.filters[text] = (parsed, options.qos)
        if parsed.reports and sum(each.reports for each, _ in inbox.filters.values()) == 1:
            self._sessions.take_reports(self)
        # Only who speaks for Things is asked for anything; a consumer's `inbox/me/#` makes no agent of it.
        if parsed.requests and self.principal.type is not AccountType.CONSUMER:
            self._sessions.take_requests(self)
            self._offer_held(inbox)
        return Grant(qos=options.qos)

    def subscribe_system(self, text: str, parsed: SystemFilter, options: SubscribeOptions) -> Grant:
        """Add or change one filter of the runtime's own figures. Raises Forbidden for all but admins."""
        if self.principal.role != Role.ADMIN:
            raise Forbidden("only admins may read $SYS/")
        if self._system is None:
            self._system = {}
        self._system[text] = (parsed, options.qos)
        return Grant(qos=options.qos)

    def unsubscribe(self, text: str) -> bool:
        """Forget one filter; False if it was unknown."""
        if (subscription := self._things.pop(text, None)) is not None:
            for pattern in subscription.patterns:
                self._sessions.unsubscribe(self, pattern, subscription)
            return True
        inbox = self._inbox
        if inbox is not None and (removed := inbox.filters.pop(text, None)) is not None:
            if removed[0].requests and not inbox.takes_requests:
                inbox.held.clear()
                self._sessions.stop_requests(self)
            if removed[0].reports and not inbox.takes_reports:
                self._sessions.stop_reports(self)
            return True
        return self._system is not None and self._system.pop(text, None) is not None

    @property
    def takes_reports(self) -> bool:
        """Whether any filter takes statuses."""
        return self._inbox is not None and self._inbox.takes_reports

    # ------------------------------------------------------------ what the register sends

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        is_own = publication.sender_session == self.session_id
        if len(tags) == 1 and isinstance(sole := tags[0], Subscription):
            # Nearly always; the same as below without the collections.
            each = sole.options
            if is_own and each.no_local:
                self._withheld(publication)
            else:
                qos = (1 if each.qos else 0) if publication.durable else 0
                retain = each.retain_as_published and publication.kind in (Kind.PROPERTY, Kind.TD)
                ids = () if each.subscription_id is None else (each.subscription_id,)
                delivery = self._encoder.encode(
                    publication, qos, is_5=self._is_5, retain=retain, ids=ids, is_owed=each.qos > 0
                )
                if delivery is not None:
                    self.link.push(delivery, self._went)
                else:
                    self._sessions.dropped(self, publication.kind, "no-topic")
            return
        options = [tag.options for tag in tags if isinstance(tag, Subscription)]
        if is_own and any(each.no_local for each in options):
            self._withheld(publication)
            options = [each for each in options if not each.no_local]
        if options:
            self.deliver(publication, options)

    def _withheld(self, publication: Publication) -> None:
        if publication.row_id:
            self._own_rows.add((self.principal.account, self.link.client_id), publication.row_id)

    def is_own(self, row_id: int) -> bool:
        """Whether the client published this row, as far back as that is known; asked for filters without local."""
        return self._own_rows.has((self.principal.account, self.link.client_id), row_id)

    def deliver(
        self,
        publication: Publication,
        options: Sequence[SubscribeOptions],
        *,
        is_owed: bool = True,
        delivered: Callable[[], object] | None = None,
    ) -> bool:
        """Deliver once for all the subscriptions given, at the highest QoS; False if the link did not take it, though
        another one might. Not `is_owed`: who has missed it is not given it again. With `delivered`, called when the
        client has it, another is given it if this one leaves before."""
        delivery = self.delivery(publication, options, is_owed=is_owed)
        if delivery is None:
            return True
        if delivered is None:
            return self.link.push(delivery, self._went)

        def went() -> None:
            delivered()
            self._went()

        return self.link.push(replace(delivery, is_handed_on=True), went)

    def delivery(
        self, publication: Publication, options: Sequence[SubscribeOptions], *, is_owed: bool = True
    ) -> Publish | None:
        """The one delivery of a publication for all the subscriptions given."""
        most = max(each.qos for each in options)
        retain = publication.kind in (Kind.PROPERTY, Kind.TD) and any(each.retain_as_published for each in options)
        ids = tuple(each.subscription_id for each in options if each.subscription_id is not None)
        qos = min(most, 1 if publication.durable else 0)
        return self._encoder.encode(
            publication, qos, is_5=self._is_5, retain=retain, ids=ids, is_owed=is_owed and most > 0
        )

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        inbox = self._own_inbox()
        topic = request_topic(self.principal.account, request)
        qos = inbox.qos(topic)
        if qos is None:
            if len(inbox.held) >= MAX_HELD:
                return False
            inbox.held[request.request_id] = (request, delivered)
            return True
        message = Publish(topic=topic, payload=request.payload, qos=min(qos, 1), flow=Flow.LEDGER)
        return self._push_owed(inbox, message, delivered)

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        inbox = self._own_inbox()
        reference = status.caller_ref or status.request_id
        answer = inbox.expected(reference)
        topic = answer.topic if answer is not None and answer.topic else status_topic(self.principal.account, reference)
        qos = inbox.qos(topic)
        if qos is not None:
            message = Publish(
                topic=topic,
                payload=encode(status_document(status)),
                qos=min(qos, 1),
                flow=Flow.LEDGER,
                correlation=answer.correlation if answer is not None else None,
            )

            def confirmed() -> None:
                if status.seq:
                    self.confirmed = max(self.confirmed or 0, status.seq)
                delivered()

            if not self._push_owed(inbox, message, confirmed):
                return False
        inbox.reported(status)
        if status.is_final:
            inbox.forget(reference)
        return True

    def close(self, reason: str) -> None:
        self.link.close(Closed(reason) if reason in _SPARED else Closed.REFUSED)

    # ------------------------------------------------------------ what the binding sends

    def expect_answer(self, caller_ref: str, answer: Answer) -> None:
        """Remember where the statuses of a request are to go."""
        self._own_inbox().expect(caller_ref, answer)

    def forget_answer(self, caller_ref: str) -> None:
        """The request was refused: there will be none."""
        self._own_inbox().forget(caller_ref)

    def answer(self, status: DeliveryStatus) -> None:
        """Tell the caller the first status of its request, if the register has not done so already."""
        if not self._own_inbox().was_reported(status):
            self.report(status, ignore)

    def tell(self, topic: str, payload: bytes, correlation: bytes | None = None) -> None:
        """Send something that no ledger has to this client's inbox, if it takes it."""
        qos = self._inbox.qos(topic) if self._inbox is not None else None
        if qos is not None:
            message = Publish(topic=topic, payload=payload, qos=min(qos, 1), flow=Flow.EVENT, correlation=correlation)
            self.link.push(message, self._went)

    def tell_figures(self, figures: Iterable[tuple[str, bytes]]) -> None:
        """Send the runtime's figures that this client asked for."""
        for text in self._system or ():
            for message in self.figures(figures, text):
                self.link.push(message, self._went)

    def figures(self, figures: Iterable[tuple[str, bytes]], text: str) -> Iterator[Publish]:
        """Those of the runtime's figures that one filter of this client's asks for."""
        if self._system is None:
            return
        parsed, qos = self._system[text]
        for topic, payload in figures:
            if matches(parsed.levels, topic):
                yield Publish(topic=topic, payload=payload, qos=min(qos, 1), flow=Flow.PROPERTY)

    # ------------------------------------------------------------ private

    def _own_inbox(self) -> Inbox:
        if self._inbox is None:
            self._inbox = Inbox()
        return self._inbox

    def _offer_held(self, inbox: Inbox) -> None:
        for request_id, (request, delivered) in list(inbox.held.items()):
            if inbox.qos(request_topic(self.principal.account, request)) is not None:
                del inbox.held[request_id]
                if not self.request(request, delivered):
                    inbox.held[request_id] = (request, delivered)
                    return

    def _push_owed(self, inbox: Inbox, message: Publish, delivered: Callable[[], None]) -> bool:
        def done() -> None:
            inbox.owed -= 1
            delivered()
            self._went()

        if self.link.push(message, done):
            # Counted afterwards, though `done` may have run already: QoS 0 is delivered when it is written.
            inbox.owed += 1
            return True
        inbox.refused_at = inbox.owed
        return False

    def _went(self) -> None:
        """The client took something: after a refusal, say so once half of what it owed is confirmed."""
        inbox = self._inbox
        if inbox is not None and inbox.is_ready_again():
            self._offer_held(inbox)
            self._sessions.drained(self)


def subscribe_patterns(sessions: Sessions, session: Session, patterns: Sequence[Pattern], tag: object) -> None:
    """Subscribe to every pattern that may be; one filter can stand for kinds of which only some are permitted. Raises
    Forbidden if none is, QueueFull over the bound; then nothing is subscribed."""
    standing: list[Pattern] = []
    refused: Forbidden | None = None
    try:
        for pattern in patterns:
            try:
                sessions.subscribe(session, pattern, tag)
                standing.append(pattern)
            except Forbidden as error:
                refused = error
    except SkepError:
        for pattern in standing:
            sessions.unsubscribe(session, pattern, tag)
        raise
    if refused is not None and not standing:
        raise refused


def _ids(options: SubscribeOptions) -> tuple[int, ...]:
    return () if options.subscription_id is None else (options.subscription_id,)
