"""Where clients come in: TLS with client certificates, WebSocket, and behind a proxy."""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, NegotiationError
from websockets.typing import Subprotocol

from bindings.mqtt.engines.seam import Listener, Publish
from tests.bindings.mqtt.engines.native.peer import Client, Served, connect, publish, serving, subscribe
from things.errors import AddressInUse

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


LOOPBACK = "127.0.0.1"


def certificate(
    name: str, folder: Path, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for `name` in `folder/name.pem` and its key in `folder/name.key`; self-signed without an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made, key


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context that verifies clients, and the context of a client called `agent-7`."""
    authority = certificate("authority", tmp_path)
    certificate("server", tmp_path, authority)
    certificate("agent-7", tmp_path, authority)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.load_verify_locations(tmp_path / "authority.pem")
    server.verify_mode = ssl.CERT_OPTIONAL
    client = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    client.load_cert_chain(tmp_path / "agent-7.pem", tmp_path / "agent-7.key")
    return server, client


async def test_the_name_on_a_client_certificate_reaches_the_gate(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client_context = contexts
    async with serving(listeners=[Listener(host=LOOPBACK, port=0, tls=server)]) as served:
        reader, writer = await asyncio.open_connection(
            LOOPBACK, served.port, ssl=client_context, server_hostname="localhost"
        )
        client = Client(reader, writer)
        await client.connect()
        client.send(publish("t", bytes(100_000), 1))
        await client.expect(0x40)

        assert served.gate.hellos[0].certificate_name == "agent-7"
        assert served.gate.hellos[0].source == LOOPBACK
        writer.close()
        await served.gate.until(lambda: "closed alice/c lost" in served.gate.events)


async def test_plain_bytes_on_a_tls_listener_disturb_nobody(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with serving(listeners=[Listener(host=LOOPBACK, port=0, tls=contexts[0])]) as served:
        async with served.client() as client:
            client.send(connect())
            await client.closed()

        await served.all_gone()

        assert served.gate.hellos == []


async def test_an_engine_listens_on_several_addresses() -> None:
    async with serving(listeners=[Listener(host=LOOPBACK, port=0), Listener(host=LOOPBACK, port=0)]) as served:
        for host, port in served.addresses:
            reader, writer = await asyncio.open_connection(host, port)
            await Client(reader, writer).connect(str(port))
            writer.close()

        assert len({port for _, port in served.addresses}) == 2


async def test_a_port_somebody_else_has_is_said_so() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.RaisesGroup(AddressInUse, allow_unwrapped=True, flatten_subgroups=True):
            async with serving(listeners=[Listener(host=LOOPBACK, port=port)]):
                pass


# -- PROXY protocol ---------------------------------------------------------------------------------------------------

V2 = b"\r\n\r\n\0\r\nQUIT\n"


def version_2(command: int, family: int, body: bytes) -> bytes:
    return V2 + bytes([0x20 | command, family]) + struct.pack("!H", len(body)) + body


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 1883\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 1883\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", LOOPBACK),
        (version_2(1, 0x11, bytes([192, 0, 2, 7, 192, 0, 2, 1, 0, 1, 0, 2])), "192.0.2.7"),
        (version_2(1, 0x21, bytes(15) + b"\1" + bytes(20)), "::1"),
        (version_2(1, 0x11, bytes([192, 0, 2, 7, 192, 0, 2, 1, 0, 1, 0, 2]) + b"\x04\0\1x"), "192.0.2.7"),
        (version_2(0, 0, b""), LOOPBACK),
    ],
)
async def test_the_address_a_proxy_names_is_the_source(header: bytes, source: str) -> None:
    async with serving(listeners=[Listener(host=LOOPBACK, port=0, proxy_protocol=True)]) as served:
        async with served.client() as client:
            client.send(header + connect())
            await client.expect(0x20, b"\0\0")

        assert served.gate.hellos[0].source == source


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 not-an-address 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY " + b"x" * 200,
        V2 + b"\x31\x11\0\0",
        V2 + b"\x21\x11\xff\xff",
    ],
)
async def test_a_bad_proxy_header_ends_the_connection(header: bytes) -> None:
    async with serving(listeners=[Listener(host=LOOPBACK, port=0, proxy_protocol=True)]) as served:
        async with served.client() as client:
            client.send(header + connect())
            assert await client.closed() == b""
        async with served.client() as client:
            client.send(b"PROXY UNKNOWN\r\n" + connect())
            await client.expect(0x20, b"\0\0")

        assert len(served.gate.hellos) == 1


async def test_tls_behind_a_proxy_begins_after_its_header(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client_context = contexts
    listener = Listener(host=LOOPBACK, port=0, tls=server, proxy_protocol=True)
    async with serving(listeners=[listener]) as served:
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(served.addresses[0])
        sock.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 8883\r\n")
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, ssl=client_context, server_hostname="localhost")

        await Client(reader, writer).connect()

        assert served.gate.hellos[0].source == "192.0.2.7"
        assert served.gate.hellos[0].certificate_name == "agent-7"
        assert loop.is_running()
        writer.close()


# -- WebSocket --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_websocket(served: Served) -> AsyncIterator[str]:
    """The engine's ASGI application in a real HTTP server; yields its address."""
    config = uvicorn.Config(
        served.engine.asgi,
        host=LOOPBACK,
        port=0,
        log_level="error",
        lifespan="off",
        ws="websockets-sansio",
        interface="asgi3",
    )
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(30):
            while not server.started:  # noqa: ASYNC110, uvicorn does not announce its start
                await asyncio.sleep(0.01)
        yield f"ws://{LOOPBACK}:{server.servers[0].sockets[0].getsockname()[1]}/mqtt"
        server.should_exit = True


MQTT = [Subprotocol("mqtt")]


async def test_mqtt_is_spoken_over_websocket_whatever_the_messages_cut() -> None:
    async with serving() as served, over_websocket(served) as url:
        async with websocket(url, subprotocols=MQTT) as peer:
            assert peer.subprotocol == "mqtt"
            data = connect("web") + subscribe("t", qos=1) + publish("t", b"x" * 300, 1)
            for start in range(0, len(data), 7):
                await peer.send(data[start : start + 7])
            received = b""
            with anyio.fail_after(30):
                while not received.endswith(b"\x40\2\0\1"):
                    received += bytes(await peer.recv())  # type: ignore[arg-type]

            assert received.startswith(b"\x20\2\0\0\x90\3\0\1\1")
            assert served.gate.hellos[0].source == LOOPBACK
        await served.gate.until(lambda: "closed alice/web lost" in served.gate.events)
        await served.all_gone()


async def test_a_websocket_without_the_subprotocol_or_with_text_is_closed() -> None:
    async with serving() as served, over_websocket(served) as url:
        with pytest.raises((InvalidStatus, NegotiationError)):
            await websocket(url)
        async with websocket(url, subprotocols=MQTT) as peer:
            await peer.send("text")
            with pytest.raises(ConnectionClosed), anyio.fail_after(30):
                await peer.recv()

        await served.all_gone()
        assert served.gate.hellos == []


async def test_the_engine_ends_a_websocket_it_closes() -> None:
    async with serving() as served, over_websocket(served) as url, websocket(url, subprotocols=MQTT) as peer:
        await peer.send(b"\xe0\0")

        with pytest.raises(ConnectionClosed), anyio.fail_after(30):
            await peer.recv()

        await served.all_gone()


async def test_a_websocket_that_is_not_read_is_bounded() -> None:
    async with serving() as served, over_websocket(served) as url:
        async with websocket(url, subprotocols=MQTT, max_queue=1) as peer:
            await peer.send(connect() + subscribe("t"))
            assert await peer.recv()
            await served.gate.until(lambda: "subscribe t" in served.gate.events)
            link, payload = served.gate.links[0], os.urandom(5_000)  # bytes that do not compress
            with anyio.fail_after(30):
                while not served.gate.drops:
                    for _ in range(200):
                        link.push(Publish(topic="t", payload=payload))
                    await asyncio.sleep(0)

            assert set(served.gate.drops) == {("event", "queue-full")}
            peer.transport.abort()
        await served.all_gone()
