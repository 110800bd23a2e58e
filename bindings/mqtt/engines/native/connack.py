"""CONNACK in either direction of an answer: a client is let in on terms, or refused as far as its version can say."""

from bindings.mqtt.engines.codec.encoding import encode_connack
from bindings.mqtt.engines.codec.packets import Connect
from bindings.mqtt.engines.codec.properties import Properties, Property
from bindings.mqtt.engines.codec.reasons import RETURN_CODES_3, Reason
from bindings.mqtt.engines.native.negotiated import Terms, announced
from bindings.mqtt.engines.seam import Limits

MAX_REASON_CHARS = 1_024


def accepting(
    connect: Connect,
    terms: Terms,
    limits: Limits,
    *,
    client_id: str,
    expiry_s: int,
    response_information: str,
    resumed: bool,
) -> bytes:
    """The CONNACK that lets a client in; empty if what it must be told is larger than it takes."""
    if connect.level != 5:
        return encode_connack(4, 0, session_present=resumed)
    properties = announced(connect, terms, limits, expiry_s)
    if not connect.client_id:
        properties[Property.ASSIGNED_CLIENT_ID] = client_id
    if (method := connect.properties.get(Property.AUTH_METHOD)) is not None:
        properties[Property.AUTH_METHOD] = method
    wanted: Properties = {}
    if connect.properties.get(Property.REQUEST_RESPONSE):
        wanted[Property.RESPONSE_INFORMATION] = response_information
    packet = encode_connack(5, 0, session_present=resumed, properties=properties | wanted)
    largest = terms.max_packet
    if not largest or len(packet) <= largest:
        return packet
    # [MQTT-3.1.2-24]; without these a client asks elsewhere, or uses no aliases.
    properties.pop(Property.TOPIC_ALIAS_MAXIMUM)
    packet = encode_connack(5, 0, session_present=resumed, properties=properties)
    return packet if len(packet) <= largest else b""


def refusing(reason: Reason, level: int, terms: Terms, detail: str = "") -> bytes:
    """The CONNACK of a refusal; empty for a level of 0, a reason that 3.1.1 cannot say, and what is too large."""
    if level == 4 and reason in RETURN_CODES_3:
        return encode_connack(4, RETURN_CODES_3[reason])
    if level != 5:
        return b""
    properties: Properties = {}
    if detail and terms.wants_reasons:
        properties[Property.REASON_STRING] = detail[:MAX_REASON_CHARS]
    for packet in (encode_connack(5, reason, properties=properties), encode_connack(5, reason)):
        if not terms.max_packet or len(packet) <= terms.max_packet:
            return packet
    return b""
