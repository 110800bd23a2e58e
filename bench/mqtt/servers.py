"""The servers that are compared, each in a process of its own on a free port of loopback.

`runtime` is the whole of `skep run`: authentication, router, checks, twin, and durable acknowledgement of QoS 1;
`runtime-undurable` is the same with `history.durable = false`.
`native` and `amqtt` are the wire engines alone, behind a gate that accepts everything; `amqtt-stock` is amqtt's own
broker. `mosquitto` is there if its program is installed. Run as a program, this module is one of the Python servers.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

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

    def owed_s(self, link: Link) -> float:
        return 0.0

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        for receiver, _qos in self._links.get(message.topic, ()):
            receiver.push(message)
        return self._accepted

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        raise error

    def will(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        return self.received(link, message)

    @property
    def rights(self) -> int | None:
        return 0

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        return message

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        self._links.setdefault(topic_filter, []).append((link, options.qos))
        return Grant(qos=options.qos)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        return False

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        return True

    @property
    def published_row(self) -> int:
        return 0

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        return Missed(deliveries=(), last_row=after, has_more=False)

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        pass

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
    options: Mapping[str, str] = field(default_factory=dict)
    """What the generator must say to this server: user, password, topics."""
    unrelated: str = "unrelated/"
    """Beginning of subscriptions that nothing published matches."""

    @property
    def rss(self) -> int:
        """Resident memory of the process in bytes."""
        return int(self.process.memory_info().rss)

    @property
    def processor_s(self) -> float:
        """Processor time the process has taken."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


def available() -> Sequence[str]:
    """The servers this machine can run."""
    return ["runtime", "runtime-undurable", "native", "amqtt", "amqtt-stock", *(["mosquitto"] if _mosquitto() else [])]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Run a server until the context ends."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        is_runtime = name.startswith("runtime")
        if is_runtime:
            durable = "true" if name == "runtime" else "false"
            (home / "skep.toml").write_text(f"{_RUNTIME_CONFIG}[history]\ndurable = {durable}\n")
            address = f"127.0.0.1:{port}"
            listeners = ["--mqtt", address, "--http", "off", "--https", "off", "--mqtts", "off"]
            command = [sys.executable, "-m", "skep", "run", "--home", folder, *listeners]
        elif name == "mosquitto":
            config = home / "mosquitto.conf"
            config.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 100\nlog_type none\n"
            )
            command = [_mosquitto() or "mosquitto", "-c", str(config)]
        else:
            command = [sys.executable, "-m", "bench.mqtt.servers", name, str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            options = _prepared(home, port) if is_runtime else {}
            unrelated = "things/load/other/event/e" if is_runtime else "unrelated/"
            yield Server(
                name=name, port=port, process=psutil.Process(process.pid), options=options, unrelated=unrelated
            )
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_RUNTIME_CONFIG = """version = 1
[limits]
messages_per_second = 1000000000.0
message_burst = 1000000000.0
max_sessions_per_account = 10000
[log]
level = "error"
"""
_TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "load",
    "security": "none",
    "securityDefinitions": {"none": {"scheme": "nosec"}},
    "events": {f"e{number}": {"data": {"type": "object"}} for number in range(100)},
}


def _prepared(home: Path, port: int) -> Mapping[str, str]:
    """Make an agent with one Thing that has an event for every publisher."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    command = [sys.executable, "-m", "skep", "client", "add", "load", "--type", "agent", "--home", str(home), "--json"]
    token = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["token"]
    client = Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("load", token)
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.publish("agents/load/td/t", json.dumps(_TD), qos=1).wait_for_publish(START_TIMEOUT_S)
    client.disconnect()
    client.loop_stop()
    return {
        "user": "load",
        "password": token,
        "prefix": "agents/load/event/t/e",
        "subscription": "things/load/t/event/e",
    }


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
    from bindings.mqtt.engines.native import NativeEngine

    engine = NativeEngine([Listener(host="127.0.0.1", port=port)], Limits(max_links_per_account=10_000))
    await engine.serve(OpenGate(), task_status=_Ignored())


async def _amqtt(port: int) -> None:
    from bindings.mqtt.engines.amqtt.engine import AmqttEngine

    engine = AmqttEngine([Listener(host="127.0.0.1", port=port)], Limits(max_links_per_account=10_000))
    await engine.serve(OpenGate(), task_status=_Ignored())


async def _amqtt_stock(port: int) -> None:
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
    uvloop.run({"native": _native, "amqtt": _amqtt, "amqtt-stock": _amqtt_stock}[name](port))


if __name__ == "__main__":
    main()
