"""What client and server keep to on one connection: the wishes of a CONNECT within the limits of the engine.

Clients of one kind wish the same, so that thousands of connections share a few of these.
"""

from dataclasses import dataclass
from functools import lru_cache

from bindings.mqtt.engines.codec.packets import Connect
from bindings.mqtt.engines.codec.properties import Properties, Property
from bindings.mqtt.engines.native.sessions import MAX_PACKET_ID
from bindings.mqtt.engines.seam import Limits

TOPIC_ALIASES = 32
"""Topic aliases kept per connection, in each direction."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one connection, in numbers; 3.1.1 leaves the last four as they are."""

    keep_alive_s: int
    """The client is heard of within 1.5 times this."""
    window: int
    """QoS 1 and 2 deliveries on their way to the client."""
    max_packet: int = 0
    """Bytes of the largest packet the client takes; 0: any."""
    aliases: int = 0
    """Topic aliases the client takes."""
    wants_reasons: bool = True
    """The client wants reason strings."""
    may_outlive: bool = False
    """CONNECT asked for a session that outlives the connection, so DISCONNECT may too ([MQTT-3.14.2-2])."""


UNKNOWN_TERMS = Terms(0, 0)
"""Before CONNECT."""

_shared = lru_cache(maxsize=1_024)(Terms)


def agreed(connect: Connect, limits: Limits) -> Terms:
    """The terms of an accepted CONNECT."""
    given = connect.properties
    keep_alive_s = connect.keep_alive_s or limits.default_keep_alive_s
    if connect.level == 4:
        return _shared(keep_alive_s, limits.max_inflight)
    return _shared(
        keep_alive_s,
        min(limits.max_inflight, given.get(Property.RECEIVE_MAXIMUM, MAX_PACKET_ID)),
        given.get(Property.MAXIMUM_PACKET_SIZE, 0),
        min(TOPIC_ALIASES, given.get(Property.TOPIC_ALIAS_MAXIMUM, 0)),
        given.get(Property.REQUEST_PROBLEM, 1) == 1,
        given.get(Property.SESSION_EXPIRY, 0) > 0,
    )


def announced(connect: Connect, terms: Terms, limits: Limits, expiry_s: int) -> Properties:
    """What CONNACK of MQTT 5 says of the terms: the server's own bounds, and where it differs from the wishes."""
    properties: Properties = {
        Property.RECEIVE_MAXIMUM: min(limits.max_unacknowledged, MAX_PACKET_ID),
        Property.MAXIMUM_PACKET_SIZE: limits.max_packet_bytes,
        Property.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIASES,
    }
    if expiry_s != connect.properties.get(Property.SESSION_EXPIRY, 0):
        properties[Property.SESSION_EXPIRY] = expiry_s
    if terms.keep_alive_s != connect.keep_alive_s:
        properties[Property.SERVER_KEEP_ALIVE] = terms.keep_alive_s
    return properties
