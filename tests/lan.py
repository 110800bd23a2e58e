"""A gateway and a laptop on a network of their own: two network namespaces joined by a cable.

The gateway runs as its own process in the one, programs of the laptop in the other; nothing of this machine's network
is touched. Needs Linux, iproute2 and the right to make namespaces; tests skip where these are missing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

ROOT = Path(__file__).parent.parent
GATEWAY, LAPTOP = "10.9.9.1", "10.9.9.2"
GATEWAY_6, LAPTOP_6 = "fd42:9::1", "fd42:9::2"


@dataclass(slots=True)
class Lan:
    """The two namespaces; `gateway` and `laptop` are their names."""

    gateway: str
    laptop: str
    _started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def run(self, namespace: str, program: str, *arguments: str, timeout_s: float = 60) -> Any:
        """Run a Python program there; what it prints last, as JSON."""
        done = subprocess.run(
            [*_in(namespace), sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(),
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        return json.loads(done.stdout.splitlines()[-1])

    async def skep(self, namespace: str, home: Path, *options: str) -> dict[str, Any]:
        """Start a gateway there; its ready document."""
        ready = home.parent / f"{home.name}.ready.json"
        with (home.parent / f"{home.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *options]
            process = subprocess.Popen(  # noqa: ASYNC220
                [*_in(namespace), *command], stdout=log, stderr=log, env=_environment()
            )
        self._started.append(process)
        with anyio.fail_after(60):
            while not ready.exists():
                assert process.poll() is None, (home.parent / f"{home.name}.log").read_text()
                await anyio.sleep(0.02)
        found: dict[str, Any] = json.loads(ready.read_bytes())
        return found

    @contextmanager
    def said(self, namespace: str, *command: str) -> Iterator[str]:
        """The first line of a `skep` command that runs on while the block does."""
        process = subprocess.Popen(
            [*_in(namespace), sys.executable, "-m", "skep", *command], stdout=subprocess.PIPE, env=_environment()
        )
        self._started.append(process)
        assert process.stdout is not None
        with process.stdout as output:
            yield output.readline().decode()

    def ip(self, namespace: str, *words: str) -> None:
        """`ip` in a namespace, to change addresses while programs run."""
        _ip("-n", namespace, *words)

    def end(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def lan() -> Iterator[Lan]:
    """Two namespaces for as long as the block runs; skips the test where they cannot be made."""
    names = [f"skep{os.getpid()}{end}" for end in ("g", "l")]
    made: list[str] = []
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
                made.append(name)
            _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
            for name, four, six in zip(names, (GATEWAY, LAPTOP), (GATEWAY_6, LAPTOP_6), strict=True):
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"{four}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "addr", "add", f"{six}/64", "dev", "eth0", "nodad")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        found = Lan(names[0], names[1])
        try:
            yield found
        finally:
            found.end()
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _in(namespace: str) -> Sequence[str]:
    return ["ip", "netns", "exec", namespace]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "SSL_CERT_FILE": os.devnull}
