"""Peers for the native engine's tests: a gate that records, and a client that speaks raw bytes."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from bindings.mqtt.engines.native import NativeEngine, SessionStore
from bindings.mqtt.engines.seam import (
    ACCEPTED,
    Closed,
    Grant,
    Hello,
    Limits,
    Link,
    Listener,
    Listening,
    Missed,
    Outcome,
    Publish,
    SubscribeOptions,
)
from things.identity import AccountType, Principal

TIMEOUT_S = 30.0
PASSWORD = b"secret"


def principal(account: str) -> Principal:
    return Principal(account=account, type=AccountType.CONSUMER, role="viewer")


class RecordingGate:
    """Lets in whoever has the password, echoes publishes to exact and `#` filters, and records everything."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.hellos: list[Hello] = []
        self.messages: list[Publish] = []
        self.drops: Counter[tuple[str, str]] = Counter()
        self.senders: list[str] = []
        self.links: list[Link] = []
        self.filters: dict[Link, dict[str, SubscribeOptions]] = {}
        self.away_links: list[Link] = []
        """Stand in for clients that are away; how they come and go is no event."""
        self.keeps = True
        """What `away` answers."""
        self.latest: list[Publish] = []
        self.history: list[Publish] = []
        """What was told, by rising row."""
        self.published_row = 0
        self.asked: list[int] = []
        """Rows after which what was missed was asked for."""
        self.reading = asyncio.Event()
        """Clear: what was missed is being read."""
        self.reading.set()
        self.rights = 0
        self.hidden: set[bytes] = set()
        """Payloads that may not be delivered any more; whoever changes it changes `rights`."""
        self.refused_topics: dict[str, Outcome] = {}
        self.refused_filters: dict[str, int] = {}
        self.answer: Callable[[Publish], Awaitable[Outcome]] | None = None
        self.echo = True
        self.admission = asyncio.Event()
        self.admission.set()
        self.changed = asyncio.Event()

    def note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something recorded makes the condition true."""
        with anyio.fail_after(TIMEOUT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def admit(self, hello: Hello) -> Principal | None:
        self.hellos.append(hello)
        self.changed.set()
        await self.admission.wait()
        if hello.auth_method is not None:
            return principal("token") if hello.auth_data == b"good" else None
        if hello.password != PASSWORD or hello.user_name is None:
            return None
        if hello.will is not None and hello.will.topic.startswith("forbidden/"):
            return None
        return principal(hello.user_name)

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        return principal(data.decode()) if data else None

    def opened(self, link: Link, *, resumed: bool) -> None:
        self.links.append(link)
        self.filters.setdefault(link, {})
        self.note(f"opened {link.principal.account}/{link.client_id}{' resumed' if resumed else ''}")

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        self.messages.append(message)
        self.senders.append(link.principal.account)
        self.note(f"received {message.topic}")
        if message.topic in self.refused_topics:
            return done(self.refused_topics[message.topic])
        if self.answer is not None:
            return self.answer(message)
        if self.echo:
            self.publish(Publish(topic=message.topic, payload=message.payload, qos=message.qos))
        return done(ACCEPTED)

    def tell(self, *payloads: bytes, topic: str = "t") -> None:
        """Store and push to every link with a matching filter."""
        for payload in payloads:
            message = Publish(topic=topic, payload=payload, qos=1, row_id=self.published_row + 1)
            self.history.append(message)
            self.publish(message)
            self.published_row += 1

    def publish(self, message: Publish) -> int:
        """Push to every link with a matching filter; how many took it."""
        taken = 0
        for link, filters in list(self.filters.items()):
            if any(text == message.topic or text == "#" for text in filters):
                taken += link.push(message)
        return taken

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        raise error

    def will(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        return self.received(link, message)

    def owed_s(self, link: Link) -> float:
        return 0.0

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        return None if message.payload in self.hidden else message

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        self.note(f"subscribe {topic_filter}")
        if topic_filter in self.refused_filters:
            return self.refused_filters[topic_filter]
        self.filters.setdefault(link, {})[topic_filter] = options
        return Grant(qos=options.qos, latest=[each for each in self.latest if topic_filter in (each.topic, "#")])

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        self.note(f"unsubscribe {topic_filter}")
        return self.filters[link].pop(topic_filter, None) is not None

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        if self.keeps:
            self.away_links.append(link)
        self.changed.set()
        return self.keeps

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        self.asked.append(after)
        await self.reading.wait()
        rows, limit = [each for each in self.history if after < each.row_id <= self.published_row], 16
        found = [each for each in rows[:limit] if each.topic in filters and filters[each.topic].qos]
        has_more = len(rows) > limit
        return Missed(
            deliveries=found, last_row=rows[limit - 1].row_id if has_more else self.published_row, has_more=has_more
        )

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        self.drops[message.flow, reason] += 1

    def closed(self, link: Link, reason: Closed) -> None:
        if link in self.away_links:
            self.away_links.remove(link)
            self.changed.set()
            return
        self.filters.pop(link, None)
        self.note(f"closed {link.principal.account}/{link.client_id} {reason}")


def done(outcome: Outcome) -> "asyncio.Future[Outcome]":
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    future.set_result(outcome)
    return future


class Served:
    """A running engine."""

    def __init__(self, engine: NativeEngine, gate: RecordingGate, addresses: Sequence[tuple[str, int]]) -> None:
        self.engine = engine
        self.gate = gate
        self.addresses = addresses

    @property
    def port(self) -> int:
        return self.addresses[0][1]

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        """A raw connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()

    async def all_gone(self) -> None:
        """Wait until the engine holds no connection."""
        with anyio.fail_after(TIMEOUT_S):
            while len(self.engine.connections):  # noqa: ASYNC110, nothing announces the end of a socket
                await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    limits: Limits | None = None,
    *,
    gate: RecordingGate | None = None,
    store: SessionStore | None = None,
    listeners: Sequence[Listener] = (Listener(host="127.0.0.1", port=0),),
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Served]:
    """Run the engine with a recording gate on a free port."""
    engine = NativeEngine(listeners, limits or Limits(), store, clock=clock)
    gate = gate or RecordingGate()
    async with anyio.create_task_group() as tasks:
        listening: Listening = await tasks.start(lambda *, task_status: engine.serve(gate, task_status=task_status))
        yield Served(engine, gate, listening.addresses)
        tasks.cancel_scope.cancel()


# -- raw packets, written apart from the codec under test --------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("!H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    length, out = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        out += bytes([digit | (0x80 if length else 0)])
        if not length:
            return bytes([first]) + out + body


def props(*parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 128
    return bytes([len(body)]) + body


def connect(
    client_id: str = "c",
    *,
    level: int = 4,
    user: str | None = "alice",
    password: bytes | None = PASSWORD,
    clean: bool = True,
    keep_alive: int = 0,
    will: tuple[str, bytes, int] | None = None,
    properties: bytes = b"\0",
    will_properties: bytes = b"\0",
) -> bytes:
    flags = 2 if clean else 0
    body = b""
    if will is not None:
        topic, payload, qos = will
        flags |= 4 | qos << 3
        body += (will_properties if level == 5 else b"") + text(topic) + text(payload)
    if user is not None:
        flags |= 0x80
        body += text(user)
    if password is not None:
        flags |= 0x40
        body += text(password)
    head = text("MQTT") + bytes([level, flags]) + struct.pack("!H", keep_alive)
    return packet(0x10, head + (properties if level == 5 else b"") + text(client_id) + body)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    *,
    level: int = 4,
    flags: int = 0,
    properties: bytes = b"\0",
) -> bytes:
    body = text(topic) + (struct.pack("!H", packet_id) if qos else b"")
    return packet(0x30 | qos << 1 | flags, body + (properties if level == 5 else b"") + payload)


def subscribe(
    *filters: str, qos: int = 0, packet_id: int = 1, level: int = 4, options: int = 0, properties: bytes = b"\0"
) -> bytes:
    body = struct.pack("!H", packet_id) + (properties if level == 5 else b"")
    return packet(0x82, body + b"".join(text(each) + bytes([qos | options]) for each in filters))


def unsubscribe(*filters: str, packet_id: int = 1, level: int = 4) -> bytes:
    body = struct.pack("!H", packet_id) + (b"\0" if level == 5 else b"")
    return packet(0xA2, body + b"".join(text(each) for each in filters))


def ack(first: int, packet_id: int, *rest: int) -> bytes:
    return packet(first, struct.pack("!H", packet_id) + bytes(rest))


class Client:
    """A raw client: bytes out, whole packets in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    async def read(self) -> tuple[int, bytes]:
        """The next packet: first byte and body."""
        with anyio.fail_after(TIMEOUT_S):
            first = (await self.reader.readexactly(1))[0]
            length = shift = 0
            while True:
                byte = (await self.reader.readexactly(1))[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return first, await self.reader.readexactly(length)

    async def expect(self, first: int, body: bytes | None = None) -> bytes:
        got, rest = await self.read()
        assert got == first, f"{got:#x} {rest!r}"
        assert body is None or rest == body, rest
        return rest

    async def connect(self, client_id: str = "c", **options: Any) -> bytes:
        """CONNECT and an accepting CONNACK; its body."""
        self.send(connect(client_id, **options))
        body = await self.expect(0x20)
        assert body[1] == 0, f"refused: {body!r}"
        return body

    async def publish_of(self, level: int = 4) -> tuple[str, bytes, int, int]:
        """The next packet, which is a PUBLISH: topic, payload, packet id, first byte."""
        first, body = await self.read()
        assert first >> 4 == 3, f"{first:#x} {body!r}"
        size = struct.unpack("!H", body[:2])[0]
        rest = body[2 + size :]
        packet_id = 0
        if first & 6:
            packet_id, rest = struct.unpack("!H", rest[:2])[0], rest[2:]
        if level == 5:
            rest = rest[1 + rest[0] :]
        return body[2 : 2 + size].decode(), rest, packet_id, first

    async def closed(self) -> bytes:
        """Everything up to the end of the stream."""
        found = b""
        with anyio.fail_after(TIMEOUT_S), suppress(ConnectionResetError):
            while part := await self.reader.read(65_536):
                found += part
        return found

    async def ping(self) -> None:
        """Everything sent so far has been handled when this returns."""
        self.send(b"\xc0\0")
        await self.expect(0xD0, b"")

    def no_delay(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
