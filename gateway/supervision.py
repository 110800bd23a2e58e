"""What a service manager is told of this process, by the protocol of sd_notify(3).

Nothing is told where none asks: without `NOTIFY_SOCKET` this costs nothing. With `WATCHDOG_USEC` the loop says that it
is alive, so that a runtime that hangs is started anew. The protocol is one datagram of `NAME=value` lines, which is
less than a binding to systemd's library would ask of an installation.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
RELOADING = "RELOADING=1"
ALIVE = "WATCHDOG=1"


class ServiceManager:
    """Who started this process and wants to hear of it; nobody, on a terminal."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            # A name in the abstract namespace (unix(7)).
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog_s(environment) if self._address else None
        """How long it waits for a sign of life; None if it does not."""

    def tell(self, *lines: str) -> None:
        """Send some lines; what cannot be sent is logged and given up."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(self._address)
                sender.sendall("\n".join(lines).encode())
        except OSError as error:
            log.warning("the service manager could not be told", extra={"lines": " ".join(lines), "error": str(error)})

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """While the block runs, configuration is read again (`Type=notify-reload` waits for its end)."""
        self.tell(RELOADING, f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
        try:
            yield
        finally:
            self.tell(READY)

    async def stay_alive(self) -> None:
        """Give signs of life, twice as often as they are waited for, until cancelled. From the loop and not from a
        thread of its own: it is the loop that must not hang."""
        while self.watchdog_s is not None:
            self.tell(ALIVE)
            await asyncio.sleep(self.watchdog_s / 2)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Seconds, if the watchdog is meant for this process (sd_watchdog_enabled(3))."""
    microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or not int(microseconds) or (process and process != str(os.getpid())):
        return None
    return int(microseconds) / 1e6
