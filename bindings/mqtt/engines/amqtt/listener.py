"""What comes before and after MQTT proper, for engines over asyncio streams: listen, admit, take over, stop in order.

An engine is called with a `Client` whose link exists; it decodes the packets that `Client.packet` hands out and tells
the link. Everything here is bounded by `Limits` and ends with the client, however it ends.
"""

import asyncio
import itertools
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.engines.amqtt.client_link import ClientLink
from bindings.mqtt.engines.amqtt.framing import check, read_connect, refusal, whole
from bindings.mqtt.engines.amqtt.streams import MAX_UNREAD_BYTES, CoalescingWriter, PacketReader
from bindings.mqtt.engines.amqtt.tasks import Tasks
from bindings.mqtt.engines.codec.encoding import encode_connack
from bindings.mqtt.engines.codec.framing import Frame
from bindings.mqtt.engines.codec.reasons import RETURN_CODES_3, BadPacket, Reason
from bindings.mqtt.engines.open_connections import OpenConnections
from bindings.mqtt.engines.seam import Closed, Gate, Limits, Listener, Listening
from things.errors import AddressInUse, ConfigInvalid
from things.identity import Principal, shown_certificate

log = logging.getLogger(__name__)

_PACKETS_PER_TURN = 32
_SETTLE_S, _CLOSE_S = 5.0, 3.0


class Client:
    """One connection: checked packets in, coalesced bytes out, and from admission on its link."""

    link: ClientLink

    def __init__(self, reader: PacketReader, out: CoalescingWriter, stream: asyncio.StreamWriter) -> None:
        self.out = out
        self.packets = reader
        self.session_id = ""
        self.peer: tuple[str, int] = (stream.get_extra_info("peername") or ("", 0))[:2]
        self.tls: ssl.SSLObject | None = stream.get_extra_info("ssl_object")
        self._stream = stream
        self._opened = asyncio.Event()
        self._count = 0

    @property
    def source(self) -> str | None:
        """Address of the peer."""
        return self.peer[0] or None

    def abort(self) -> None:
        """Cut the connection off."""
        self._stream.transport.abort()

    def open(self) -> None:
        """CONNACK is on its way: open the link, then let packets be read."""
        self.link.open()
        self._opened.set()

    async def packet(self) -> bytes:
        """The next packet behind CONNECT, once the link is open and has credit; b"" when the link is closed."""
        await self._opened.wait()
        self._count += 1
        if self._count % _PACKETS_PER_TURN == 0:
            await asyncio.sleep(0)  # the engine's packet tasks run here, so that the credit below counts them
        ended: Closed = Closed.LOST
        packet: Frame | None = None
        try:
            if self.out.unread_bytes > MAX_UNREAD_BYTES:
                # A client that writes and never reads is as good as silent.
                async with asyncio.timeout(self.packets.idle_s):
                    await self.out.drain()
            packet = await self.packets.packet()
            if packet is not None:
                check(packet)
                await self.link.credit()
                self.packets.excuse()
        except BadPacket as bad:
            log.info("bad packet", extra={"account": self.link.principal.account, "detail": bad.detail})
            ended, packet = Closed.PROTOCOL, None
        except TimeoutError:
            ended = Closed.KEEP_ALIVE
        if packet is not None and not self.link.is_closed:
            return whole(packet)
        await asyncio.sleep(0)  # packets handed out before are taken before the end is told
        self.link.close(ended)
        return b""


class Front:
    """The listeners of one engine and the links of all their clients; `serve` once."""

    connections: OpenConnections[Client]
    _gate: Gate
    _tasks: Tasks

    def __init__(self, listeners: Sequence[Listener], limits: Limits, *, max_qos: int) -> None:
        """Raises ConfigInvalid for a listener behind a proxy: streams are read from their first byte as MQTT or TLS."""
        if any(listener.proxy_protocol for listener in listeners):
            raise ConfigInvalid("this engine reads no PROXY header: use engine native or switch proxy_protocol off")
        self._listeners = listeners
        self._limits = limits
        self._max_qos = max_qos
        self.counts: Counter[str] = Counter()
        """What was refused, by kind."""
        self._links: dict[tuple[str, str], ClientLink] = {}
        self._accounts: Counter[str] = Counter()
        self._serial = itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._served_clients: set[asyncio.Future[None]] = set()

    async def serve(
        self, gate: Gate, serve: Callable[[Client], Awaitable[None]], *, task_status: TaskStatus[Listening]
    ) -> None:
        """Listen until cancelled; then let commits in flight end and be acknowledged before the links close. `serve`
        gets each client before its CONNECT and calls `admit`. Raises AddressInUse."""
        self._gate = gate
        self.connections = OpenConnections[Client](self._limits, self.counts, asyncio.get_running_loop().time)
        async with asyncio.TaskGroup() as group:
            self._tasks = Tasks(group)
            try:
                addresses = [await self._listen(each, serve) for each in self._listeners]
                task_status.started(Listening(addresses=addresses))
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._stop()

    async def _listen(self, listener: Listener, serve: Callable[[Client], Awaitable[None]]) -> tuple[str, int]:

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            out = CoalescingWriter(writer, self._tasks.start)
            client = Client(PacketReader(reader, self._limits), out, writer)
            if not self.connections.take(client):
                out.close()
                return
            served = self._tasks.start(self._served(client, serve))
            self._served_clients.add(served)
            served.add_done_callback(self._served_clients.discard)

        handshake_s = self._limits.connect_timeout_s if listener.tls else None
        try:
            server = await asyncio.start_server(
                connected, listener.host, listener.port, ssl=listener.tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            where = f"{listener.host}:{listener.port}"
            raise AddressInUse(f"cannot listen on {where}: {error.strerror or error}") from error
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def admit(self, client: Client) -> bool:
        """Read CONNECT, ask the gate, make the link; False if the client was refused and answered."""
        try:
            packet = await client.packets.packet()
            if packet is None:
                return False
            shown = shown_certificate(client.tls.getpeercert() if client.tls is not None else None)
            hello, keep_alive_s = read_connect(packet, source=client.peer[0], certificate=shown)
        except BadPacket as bad:
            client.out.write(refusal(bad))
            return False
        except TimeoutError:
            return False
        serial = next(self._serial)
        if not hello.client_id:
            hello = replace(hello, client_id=f"auto-{serial}")
        principal = await self._gate.admit(hello)
        if not isinstance(principal, Principal):
            is_busy = principal is not None and principal.reason_code == Reason.SERVER_BUSY
            reason = Reason.SERVER_BUSY if is_busy else Reason.NOT_AUTHORIZED
            client.out.write(encode_connack(4, RETURN_CODES_3[reason]))
            return False
        key = (principal.account, hello.client_id)
        older = self._links.get(key)
        if older is not None:
            older.close(Closed.TAKEN_OVER)
        elif self._accounts[principal.account] >= self._limits.max_links_per_account:
            client.out.write(encode_connack(4, RETURN_CODES_3[Reason.QUOTA_EXCEEDED]))
            return False
        client.session_id = f"{principal.account}/{hello.client_id}#{serial}"
        client.packets.allow(self._limits.max_packet_bytes)
        client.packets.idle_s = 1.5 * (keep_alive_s or self._limits.default_keep_alive_s)
        client.link = ClientLink(
            gate=self._gate,
            hello=hello,
            principal=principal,
            limits=self._limits,
            wire=client.out,
            start=self._tasks.start,
            max_qos=self._max_qos,
        )
        self._links[key] = client.link
        self.connections.logged_in(client)
        self._accounts[principal.account] += 1
        return True

    async def _stop(self) -> None:
        """Stop listening and reading, let what is being committed be acknowledged, close every link."""
        self.connections.is_stopping = True
        for server in self._servers:
            server.close()
        links = tuple(self._links.values())
        stopping = [self._tasks.start(link.stop()) for link in links]
        if stopping:
            await asyncio.wait(stopping, timeout=_SETTLE_S)
        for link in tuple(self._links.values()):
            link.close(Closed.SHUTDOWN)
        if self._served_clients:
            await asyncio.wait(self._served_clients, timeout=_CLOSE_S)
        for task in self._served_clients | set(stopping):
            task.cancel()

    async def _served(self, client: Client, serve: Callable[[Client], Awaitable[None]]) -> None:
        try:
            await serve(client)
        except Exception:
            log.exception("connection failed", extra={"source": client.peer[0]})
        finally:
            self.connections.forget(client)
            if client.session_id:
                link = client.link
                link.close(Closed.LOST)
                key = (link.principal.account, link.client_id)
                if self._links.get(key) is link:
                    del self._links[key]
                self._accounts[link.principal.account] -= 1
                if not self._accounts[link.principal.account]:
                    del self._accounts[link.principal.account]
            client.out.close()
