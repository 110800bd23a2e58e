"""What connections cost in memory: one that is idle, and one that asked for everything and reads nothing."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench.mqtt import generator
from bench.mqtt.servers import Server, running

IDLE_CONNECTIONS = 2_000
"""Held open, each with one subscription."""
MANY_IDLE_CONNECTIONS = 5_600
"""Just more than tables of 8,192 places hold, so that most of theirs have doubled for the last few."""
SLOW_CONSUMERS = 4
PAYLOAD_BYTES = 1_000
_RECEIVE_BYTES = 4_096


@contextmanager
def held(one: Server, connections: int, options: Mapping[str, str]) -> Iterator[None]:
    """Hold connections open, each with one subscription, until the context ends."""
    if not connections:
        yield
        return
    holder = generator.held(one.port, n=connections, seconds=120, **options)
    try:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise RuntimeError("the connections did not come up")
        yield
    finally:
        holder.terminate()
        holder.wait()


def idle_kib(server: str, connections: int) -> float:
    """What one of so many idle connections costs in resident memory."""
    with running(server) as one:
        generator.run(one.port, "storm", n=50, **one.options)
        before = one.rss
        with held(one, connections, one.options):
            return (one.rss - before) / 1024 / connections


def slow_consumer(server: str, seconds: int) -> tuple[float, float]:
    """What one subscriber that reads nothing costs in MiB, and the p99 in ms of the ten that read beside them."""
    with running(server) as one, ExitStack() as deaf:
        load: dict[str, int | str] = {"n": 10, "qos": 1, "window": 10, "size": PAYLOAD_BYTES, **one.options}
        generator.run(one.port, "fan", seconds=1, **load)
        before = one.rss
        for number in range(SLOW_CONSUMERS):
            deaf.enter_context(_subscribed(one, number))
        figures = generator.run(one.port, "fan", seconds=seconds, **load)
        return (one.rss - before) / 1024 / 1024 / SLOW_CONSUMERS, figures["p99_ms"]


def _subscribed(one: Server, number: int) -> socket.socket:
    """A client of the fan's topic that reads its SUBACK and then nothing; its kernel buffer is small."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    found.connect(("127.0.0.1", one.port))
    user, password = one.options.get("user", "load"), one.options.get("password", "load")
    topic = one.options.get("subscription", generator.TOPIC) + "0"
    hour_s = (3_600).to_bytes(2, "big")
    hello = _text("MQTT") + b"\x04\xc2" + hour_s + _text(f"slow-{number}") + _text(user) + _text(password)
    found.sendall(_packet(0x10, hello) + _packet(0x82, b"\x00\x01" + _text(topic) + b"\x01"))
    answers = b""
    while len(answers) < 9:
        answers += found.recv(9 - len(answers))
    return found


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def _packet(first: int, body: bytes) -> bytes:
    high, low = divmod(len(body), 128)
    return bytes([first, low | 0x80, high] if high else [first, low]) + body
