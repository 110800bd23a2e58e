"""An MQTT 3.1.1 client of a few lines that sends exactly the bytes it is told to, whole or broken."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP = 2, 3, 4, 5, 6, 7, 9, 11, 13
DEADLINE_S = 30.0
PINGREQ_BYTES, DISCONNECT_BYTES = b"\xc0\x00", b"\xe0\x00"


class Packet(NamedTuple):
    kind: int
    flags: int
    body: bytes

    @property
    def packet_id(self) -> int:
        return int.from_bytes(self.body[:2], "big")

    @property
    def topic(self) -> str:
        return self.body[2 : 2 + self.packet_id].decode()

    @property
    def payload(self) -> bytes:
        return self.body[2 + self.packet_id + (2 if self.flags & 6 else 0) :]

    @property
    def delivery_id(self) -> int:
        at = 2 + self.packet_id
        return int.from_bytes(self.body[at : at + 2], "big")

    @property
    def is_retained(self) -> bool:
        return bool(self.flags & 1)


def packet(first: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([first]) + bytes(encoded) + body


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return len(raw).to_bytes(2, "big") + raw


def connect(
    client_id: str,
    user: str | None = None,
    password: str | None = None,
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: tuple[str, bytes, int] | None = None,
    protocol: str = "MQTT",
    level: int = 4,
) -> bytes:
    flags = (2 if clean else 0) | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    body = text(client_id)
    if will is not None:
        topic, payload, qos = will
        flags |= 4 | qos << 3
        body += text(topic) + text(payload)
    if user is not None:
        body += text(user)
    if password is not None:
        body += text(password)
    properties = b"\x00" if level == 5 else b""
    return packet(0x10, text(protocol) + bytes([level, flags]) + keep_alive.to_bytes(2, "big") + properties + body)


def publish(topic: str, payload: bytes = b"", *, qos: int = 0, packet_id: int = 1, dup: bool = False) -> bytes:
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | (8 if dup else 0), text(topic) + identifier + payload)


def subscribe(packet_id: int, *filters: tuple[str, int]) -> bytes:
    return packet(0x82, packet_id.to_bytes(2, "big") + b"".join(text(name) + bytes([qos]) for name, qos in filters))


def unsubscribe(packet_id: int, *filters: str) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(text(name) for name in filters))


def puback(packet_id: int) -> bytes:
    return packet(0x40, packet_id.to_bytes(2, "big"))


def pubrel(packet_id: int) -> bytes:
    return packet(0x62, packet_id.to_bytes(2, "big"))


class RawClient:
    """One connection; every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    async def receive(self, within_s: float | None = DEADLINE_S) -> Packet:
        async with asyncio.timeout(within_s):
            first = (await self.reader.readexactly(1))[0]
            length = shift = 0
            while True:
                byte = (await self.reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
            return Packet(first >> 4, first & 15, await self.reader.readexactly(length))

    async def receive_many(self, count: int) -> Sequence[Packet]:
        return [await self.receive() for _ in range(count)]

    async def expect(self, kind: int) -> Packet:
        received = await self.receive()
        assert received.kind == kind, received
        return received

    async def is_cut_off(self) -> bool:
        """Read to the end; True once the server has closed."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while await self.reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        return True

    async def ping(self) -> None:
        self.send(PINGREQ_BYTES)
        await self.expect(PINGRESP)


@asynccontextmanager
async def raw(address: tuple[str, int], tls: ssl.SSLContext | None = None) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname="localhost" if tls else None)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def connected(
    address: tuple[str, int],
    user: str,
    client_id: str = "c1",
    *,
    keep_alive: int = 60,
    will: tuple[str, bytes, int] | None = None,
    clean: bool = True,
) -> AsyncIterator[RawClient]:
    """A client that CONNECT has let in, with the password the recording gate knows."""
    async with raw(address) as client:
        client.send(connect(client_id, user, f"{user}-secret", keep_alive=keep_alive, will=will, clean=clean))
        answer = await client.expect(CONNACK)
        assert answer.body[1] == 0, answer
        yield client
