"""A runtime in a process of its own that can be killed at any moment and started again where it was.

Same home, same ports, so that clients find it again. Whatever this starts, it ends: by SIGKILL if need be. When it
was away is remembered, since nothing can be on time while there is no process.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
import anyio
import httpx2

from runtime.clocks import wall_clock
from tests.support import Account, Skep, skep
from things.td import ThingDescription

START_S = 60.0
"""A busy machine takes a while to load everything."""
STOP_S = 15.0
AT_ONCE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
"""Socket options of MQTT clients: the library's sockets wait 40 ms for more to send after each acknowledgement."""
DOWN = (aiomqtt.MqttError, httpx2.HTTPError, OSError, TimeoutError)
"""What a client sees of a runtime that was killed."""


@dataclass(slots=True)
class RuntimeProcess:
    """`python -m skep run` of one home; made by `runtime_process`."""

    home: Path
    wrapped: Sequence[str] = ()
    """A command that runs the runtime, such as a tracer; empty for none."""
    tls: bool = False
    """Listen with TLS too."""
    https: str = ""
    mqtts_address: tuple[str, int] = ("127.0.0.1", 0)
    http: str = ""
    """The HTTP address, the same after every restart."""
    mqtt_address: tuple[str, int] = ("127.0.0.1", 0)
    kills: int = 0
    away: list[tuple[int, int]] = field(default_factory=list)
    """When there was no runtime, µs UTC: from a kill until it listened again."""
    _process: "subprocess.Popen[bytes] | None" = None
    _since: int = 0
    _runtime_pid: int = 0

    @property
    def pid(self) -> int:
        """Of the runtime that was started last; a command around it has another."""
        return self._runtime_pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _ready(self) -> Path:
        return self.home.parent / f"{self.home.name}.ready.json"

    @property
    def log(self) -> Path:
        """Everything it said, over all starts."""
        return self.home.parent / f"{self.home.name}.log"

    async def start(self) -> None:
        """Start, and return when it listens."""
        assert not self.is_running
        self._ready.unlink(missing_ok=True)
        http = urlsplit(self.http).netloc or "127.0.0.1:0"
        host, port = self.mqtt_address
        command = [sys.executable, "-m", "skep", "run", "--home", str(self.home), "--ready-file", str(self._ready)]
        command += [f"--http={http}", f"--mqtt={host}:{port}"]
        command += [
            f"--https={'127.0.0.1:0' if self.tls else 'off'}",
            f"--mqtts={'127.0.0.1:0' if self.tls else 'off'}",
        ]
        # Into a file: a pipe that nobody empties would stop the runtime at its 64 KiB.
        with self.log.open("ab") as said:
            self._process = subprocess.Popen([*self.wrapped, *command], stdout=said, stderr=said)  # noqa: ASYNC220
        with anyio.fail_after(START_S):
            while not self._ready.exists():
                assert self.is_running, f"the runtime did not start: {self.said()}"
                await anyio.sleep(0.01)
        document: dict[str, Any] = json.loads(self._ready.read_bytes())
        self._runtime_pid = document["pid"]
        self.http = document["http"]
        if self.tls:
            self.https = document["https"]
            mqtts = urlsplit(document["mqtts"])
            self.mqtts_address = (mqtts.hostname or "", mqtts.port or 0)
        address = urlsplit(document["mqtt"])
        self.mqtt_address = (address.hostname or "", address.port or 0)
        if self._since:
            self.away.append((self._since, wall_clock()))

    async def kill(self) -> None:
        """End it as a power switch would, except for the machine's own memory."""
        self._since = wall_clock()
        self.kills += 1
        await self._ended_by(signal.SIGKILL)

    async def crashed(self) -> None:
        """Wait for it to end on its own."""
        with anyio.fail_after(START_S):
            while self.is_running:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.01)
        self._since = wall_clock()
        self.kills += 1

    async def terminate(self) -> tuple[int, float]:
        """Ask it to end: its exit code, and how many seconds it took."""
        self._since = wall_clock()
        began = time.monotonic()
        code = await self._ended_by(signal.SIGTERM)
        return code, time.monotonic() - began

    async def restart(self) -> None:
        """Kill it and start it again."""
        await self.kill()
        await self.start()

    def was_away(self, start: int, end: int) -> bool:
        """Whether there was no runtime at some time in between."""
        return any(since < end and until > start for since, until in self.away)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text("utf-8", "replace")[-4_000:]

    async def _ended_by(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        os.kill(self._runtime_pid, number)
        with anyio.fail_after(STOP_S):
            while process.poll() is None:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.005)
        return process.returncode

    def mqtt(self, account: Account) -> AbstractAsyncContextManager[aiomqtt.Client]:
        """A connected MQTT client."""
        return mqtt_client(self.mqtt_address, account)

    @asynccontextmanager
    async def client(self, account: Account, *, timeout_s: float = 10.0) -> AsyncIterator[httpx2.AsyncClient]:
        """A client of its HTTP binding."""
        headers = {"authorization": f"Bearer {account.token}", "content-type": "application/json"}
        async with httpx2.AsyncClient(
            base_url=self.http, headers=headers, trust_env=False, timeout=timeout_s
        ) as client:
            yield client

    def end(self) -> None:
        """Whatever happened, no process stays."""
        if self._process is not None and self._process.poll() is None:
            # The runtime first: a tracer that is killed lets go of it.
            with suppress(ProcessLookupError):
                os.kill(self._runtime_pid or self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process.kill()
            self._process.wait(STOP_S)


@asynccontextmanager
async def mqtt_client(address: tuple[str, int], account: Account, **options: Any) -> AsyncIterator[aiomqtt.Client]:
    """A connected MQTT client of version 3.1.1."""
    client = aiomqtt.Client(
        *address,
        username=account.name,
        password=account.token,
        protocol=aiomqtt.ProtocolVersion.V311,
        timeout=10,
        socket_options=AT_ONCE,
        **options,
    )
    try:
        async with client:
            yield client
    finally:
        # Nobody asks a lost client why; unasked, its future would complain when it is collected.
        if client._disconnected.done() and not client._disconnected.cancelled():
            client._disconnected.exception()


@asynccontextmanager
async def runtime_process(
    home: Path, *, wrapped: Sequence[str] = (), tls: bool = False
) -> AsyncIterator[RuntimeProcess]:
    """A started runtime process."""
    process = RuntimeProcess(home, wrapped, tls)
    try:
        await process.start()
        yield process
    finally:
        process.end()


async def furnished(
    home: Path,
    accounts: Mapping[str, str],
    things: Mapping[str, Mapping[str, Any]] | None = None,
    settings: str = "",
) -> dict[str, Account]:
    """Prepare a home before its process starts: accounts (name to role, `agent` being both type and role), Thing
    Descriptions by twin id, and skep.toml."""
    made: dict[str, Account] = {}
    async with skep(home) as runtime:
        for name, role in accounts.items():
            made[name] = await add(runtime, name, role)
        for thing_id, td in (things or {}).items():
            described = ThingDescription.of(dict(td), agent=True)
            await runtime.running.stores.twin.directory.put(thing_id, described, agent=thing_id.split(":")[1])
    if settings:
        (home / "skep.toml").write_text(settings, "utf-8")
    return made


async def add(runtime: Skep, name: str, role: str) -> Account:
    """An account whose type follows from its role."""
    return await runtime.add(name, role if role in ("agent", "service") else "consumer", role)
