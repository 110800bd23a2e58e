"""Upgraded connections: uvicorn's, with what a client causes told as a sampled line and not as a fault of ours.

A connection that is read more slowly is alive while it takes what is written to it: its pongs lie behind what was not
read yet.
"""

import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from things.refusals import REFUSALS

log = logging.getLogger(__name__)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection that was upgraded; it stays counted until it ends."""

    release: Callable[[], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _Told(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.release is not None:
            self.release()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        if self.read_paused and self.writable.is_set() and not self.transport.is_closing():
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()


class _Told(logging.Logger):
    """What uvicorn says of one connection. Its lines about each upgrade hold the query, and are left out."""

    def __init__(self, connection: WebSocketConnection) -> None:
        source = logging.getLogger("uvicorn.error")
        super().__init__(source.name, logging.WARNING)
        self.parent = source
        self._connection = connection

    def error(self, msg: object, *args: Any, **options: Any) -> None:
        refused = self._connection.initial_response
        if refused is None:
            super().error(msg, *args, **options)
        else:
            # An upgrade that was answered by a response of its own, which uvicorn takes for none.
            self._note("upgrade refused", str(refused[0]))

    def exception(self, msg: object, *args: Any, **options: Any) -> None:
        if str(msg).startswith("Invalid UTF-8"):
            self._note("frame refused", "not-utf-8")
        else:
            super().exception(msg, *args, **options)

    def _note(self, what: str, code: str) -> None:
        client = self._connection.client
        REFUSALS.note(log, what, who=client[0] if client else None, code=code, level=logging.DEBUG)
