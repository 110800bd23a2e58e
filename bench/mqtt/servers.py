"""The servers that are compared, each in a process of its own on a free port of loopback.

`native` and `amqtt-stock` are wire engines alone: a trivial gate or none behind them. `mosquitto` is there if its
program is installed. Run as a program, this module is one of the Python servers.
"""

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bindings.mqtt.seam import (
    ACCEPTED,
    Closed,
    Grant,
    Hello,
    Limits,
    Link,
    Listener,
    Listening,
    Outcome,
    Publish,
    SubscribeOptions,
)
from things.identity import AccountType, Principal

START_TIMEOUT_S = 20.0


class OpenGate:
    """Lets everybody in and gives every publish to whoever subscribed to exactly its topic."""

    def __init__(self) -> None:
        self._links: dict[str, list[tuple[Link, int]]] = {}
        self._accepted: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._accepted.set_result(ACCEPTED)

    async def admit(self, hello: Hello) -> Principal | None:
        return Principal(account=hello.user_name or "load", type=AccountType.CONSUMER, role="viewer")

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        return None

    def opened(self, link: Link, *, resumed: bool) -> None:
        pass

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        for receiver, _qos in self._links.get(message.topic, ()):
            receiver.push(message)
        return self._accepted

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        self._links.setdefault(topic_filter, []).append((link, options.qos))
        return Grant(qos=options.qos)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        return False

    def closed(self, link: Link, reason: Closed) -> None:
        for topic, links in list(self._links.items()):
            if kept := [each for each in links if each[0] is not link]:
                self._links[topic] = kept
            else:
                del self._links[topic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    name: str
    port: int
    process: psutil.Process

    @property
    def rss(self) -> int:
        """Resident memory of the process in bytes."""
        return int(self.process.memory_info().rss)


def available() -> Sequence[str]:
    """The servers this machine can run."""
    return ["native", "amqtt-stock", *(["mosquitto"] if _mosquitto() else [])]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Run a server until the context ends."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        if name == "mosquitto":
            config = Path(folder) / "mosquitto.conf"
            config.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 100\nlog_type none\n"
            )
            command = [_mosquitto() or "mosquitto", "-c", str(config)]
        else:
            command = [sys.executable, "-m", "bench.mqtt.servers", name, str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield Server(name=name, port=port, process=psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _mosquitto() -> str | None:
    return shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server did not start")


# -- the Python servers -----------------------------------------------------------------------------------------------


async def _native(port: int) -> None:
    from bindings.mqtt.server import NativeEngine

    engine = NativeEngine([Listener(host="127.0.0.1", port=port)], Limits(max_links_per_account=10_000))
    await engine.serve(OpenGate(), task_status=_Ignored())


async def _amqtt(port: int) -> None:
    from amqtt.broker import Broker
    from amqtt.contexts import BrokerConfig, ListenerConfig

    config = BrokerConfig(
        listeners={"default": ListenerConfig(bind=f"127.0.0.1:{port}")},
        plugins={"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    )
    broker = Broker(config)
    await broker.start()
    await asyncio.Event().wait()


class _Ignored:
    def started(self, value: Listening | None = None) -> None:
        """Nobody waits for it: the parent tries the port."""


def main() -> None:
    """Run one server: NAME PORT."""
    import uvloop

    name, port = sys.argv[1], int(sys.argv[2])
    uvloop.run({"native": _native, "amqtt-stock": _amqtt}[name](port))


if __name__ == "__main__":
    main()
