"""Deliveries as packets: a fan-out pushes the same message to many links, and it is encoded once."""

from bindings.mqtt.engines.codec.encoding import Encoded, encode_publish
from bindings.mqtt.engines.seam import Publish


class Encodings:
    """The last delivery of each level and QoS, encoded."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[Publish, Encoded]] = {}

    def encode(self, message: Publish, level: int) -> Encoded:
        """`message` encoded for a protocol level."""
        key = level << 2 | message.qos
        last = self._last.get(key)
        if last is not None and (
            last[0] is message
            or (last[0].payload is message.payload and last[0].topic == message.topic and last[0] == message)
        ):
            return last[1]
        encoded = encode_publish(message, level, qos=message.qos, expiry_s=message.expiry_s)
        self._last[key] = (message, encoded)
        return encoded
