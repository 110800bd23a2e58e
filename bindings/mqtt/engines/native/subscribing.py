"""Filters of one link: asked for, taken back, and standing again when a session is resumed.

Packets with many filters are handled in steps, one for each filter, since each costs about as much as a publish.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from bindings.mqtt.engines.codec.encoding import encode_suback, encode_unsuback
from bindings.mqtt.engines.codec.packets import Subscribe, Unsubscribe
from bindings.mqtt.engines.codec.reasons import Reason
from bindings.mqtt.engines.native.deliveries import Deliveries
from bindings.mqtt.engines.native.sessions import Session
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.store import SessionStore
from bindings.mqtt.engines.native.writing import Writer
from bindings.mqtt.engines.seam import Gate, Grant, Limits, Link


class Subscriber(Link, Protocol):
    """The link that asks for filters."""

    @property
    def session(self) -> Session: ...

    @property
    def is_ending(self) -> bool:
        """The gate has closed it while it was being opened."""
        ...

    def fail(self) -> None:
        """End it because of something on our side."""


def subscribe(
    link: Subscriber, packet: Subscribe, shared: Shared, writer: Writer, deliveries: Deliveries
) -> Iterator[None]:
    """Answer a SUBSCRIBE: the gate decides each filter; SUBACK goes out before the latest values."""
    session, codes, grants = link.session, list[int](), dict[str, Grant]()
    gate, limits = shared.gate, shared.limits
    for topic_filter, options in packet.filters:
        if not _is_short_enough(topic_filter, limits):
            codes.append(Reason.TOPIC_FILTER_INVALID)
        elif topic_filter not in session.filters and len(session.filters) >= limits.max_subscriptions:
            codes.append(Reason.QUOTA_EXCEEDED)
        elif isinstance(grant := gate.subscribe(link, topic_filter, options), int):
            codes.append(grant)
        else:
            standing = session.filters.get(topic_filter)
            # [MQTT-3.8.4-3] what it has missed so far is still owed to a filter that is asked for again.
            since_row = standing.since_row if standing is not None and standing.qos else gate.published_row
            session.filters[topic_filter] = replace(options, since_row=since_row)
            session.dirty = True
            codes.append(grant.qos)
            grants[topic_filter] = grant
        if len(codes) < len(packet.filters):
            yield

    def answer() -> None:
        writer.write(encode_suback(packet.packet_id, link.protocol_level, codes))
        for topic_filter, grant in grants.items():
            deliveries.add_latest(topic_filter, grant.latest)
        deliveries.drain()

    if shared.store is not None and session.is_kept and grants:
        shared.start(_answered_when_kept(link, shared.store, tuple(grants), gate, answer))
    else:
        answer()


async def _answered_when_kept(
    link: Subscriber, store: SessionStore, filters: Sequence[str], gate: Gate, answer: Callable[[], None]
) -> None:
    """What a filter matches after its SUBACK is owed to its session, also after a kill."""
    session = link.session
    try:
        await store.keep(session, filters, gate.published_row)
    except sqlite3.Error:
        # Not acknowledged: the client asks again on its next connection.
        if session.link is link:
            link.fail()
        return
    if session.link is link:
        answer()


def resubscribe(link: Subscriber, gate: Gate, deliveries: Deliveries) -> Iterator[None]:
    """Let the filters of a resumed session stand again, one in each step; the gate may close the link meanwhile."""
    filters = link.session.filters
    for topic_filter, options in list(filters.items()):
        grant = gate.subscribe(link, topic_filter, options)
        if link.is_ending:
            return
        if isinstance(grant, int):
            del filters[topic_filter]
        elif options.retain_handling == 0:
            deliveries.add_latest(topic_filter, grant.latest)
        yield


def unsubscribe(
    link: Subscriber, packet: Unsubscribe, shared: Shared, writer: Writer, deliveries: Deliveries
) -> Iterator[None]:
    """Answer an UNSUBSCRIBE."""
    codes = list[int]()
    for topic_filter in packet.filters:
        known = shared.gate.unsubscribe(link, topic_filter)
        link.session.filters.pop(topic_filter, None)
        deliveries.drop_latest(topic_filter)
        codes.append(Reason.SUCCESS if known else Reason.NO_SUBSCRIPTION_EXISTED)
        if len(codes) < len(packet.filters):
            yield
    link.session.dirty = True
    writer.write(encode_unsuback(packet.packet_id, link.protocol_level, codes))


def _is_short_enough(topic_filter: str, limits: Limits) -> bool:
    # Two levels more than a topic: `$share/{group}/` stands before one.
    return len(topic_filter) <= limits.max_topic_bytes and topic_filter.count("/") < limits.max_topic_levels + 2
