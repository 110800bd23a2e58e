"""Real runtimes for tests of the SDK and the commands: in this process, or in one of their own."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app import Running, started
from gateway.config import Config
from skep import Agent, Consumer
from things.identity import AccountType

ANY_PORT = {
    "http": {"http": "127.0.0.1:0", "https": "127.0.0.1:0"},
    "mqtt": {"mqtt": "127.0.0.1:0", "mqtts": "127.0.0.1:0"},
}
PASSWORD = "correct horse battery"


@dataclass(frozen=True, slots=True)
class Site:
    """A runtime in this process, with agent `pumps`, operators `ann` and `bob`, viewer `vic`."""

    running: Running
    token: str

    @property
    def ca(self) -> Path:
        return self.running.certificates.ca_file

    def agent(self) -> Agent:
        assert self.running.mqtt is not None
        return Agent(self.running.mqtt, "pumps", self.token)

    def consumer(self, name: str = "ann") -> Consumer:
        assert self.running.https is not None
        return Consumer(self.running.https, login=(name, PASSWORD), ca=self.ca)


@asynccontextmanager
async def site(home: Path) -> AsyncIterator[Site]:
    """Serve a home for the length of the block."""
    async with started(home, Config.of(ANY_PORT)) as running:
        add = running.stores.authenticator.administration.add
        _, token = await add("pumps", AccountType.AGENT, by="test")
        assert token is not None
        for name, role in (("ann", "operator"), ("bob", "operator"), ("vic", "viewer")):
            await add(name, AccountType.CONSUMER, role, password=PASSWORD, with_token=False, by="test")
        yield Site(running, token)


@contextmanager
def process(home: Path) -> Iterator[dict[str, Any]]:
    """`skep run` in a process of its own; its ready document."""
    ready = home.parent / f"{home.name}.ready.json"
    listeners = [f"--{name}=127.0.0.1:0" for name in ("http", "https", "mqtt", "mqtts")]
    home.parent.mkdir(exist_ok=True)
    # Into a file: a pipe that nobody empties would stop the runtime at its 64 KiB.
    with (
        (home.parent / f"{home.name}.log").open("w") as said,
        subprocess.Popen(
            [sys.executable, "-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *listeners],
            stdout=said,
            stderr=said,
        ) as running,
    ):
        try:
            until = time.monotonic() + 30
            while not ready.exists():
                assert running.poll() is None, f"the runtime ended; see {said.name}"
                assert time.monotonic() < until, "not ready in time"
                threading.Event().wait(0.02)
            yield json.loads(ready.read_text("utf-8"))
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(15)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
