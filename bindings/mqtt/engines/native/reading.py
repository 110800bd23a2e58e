"""The reading side of a connection: what a client sent and asked for, done in slices, and when it is not read.

Packets are handled in the order they came, each in one synchronous step (SUBSCRIBE: a step for each filter), a slice of
them in one turn of the loop; then others have theirs (`turns`). Reading is held while the client is being admitted,
while the runtime is behind with what it published, while it owes for what it sent beyond its account's budget, and
while it does not read what it is answered.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Final, Protocol

from bindings.mqtt.engines.codec.framing import Framer
from bindings.mqtt.engines.codec.reasons import BadPacket, protocol_error
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.turns import SLICE_S, SLICE_STEPS
from bindings.mqtt.engines.native.writing import Output

READ_AHEAD_BYTES = 65_536
"""Read and not handled yet, beyond which the socket is not read."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""For which a client over its account's budget is not read, before the budget is looked at again."""

ADMITTING: Final = 1
REAUTHENTICATING: Final = 2
BEHIND: Final = 4
"""The runtime has not answered enough of what the client published."""
UNREAD: Final = 8
"""The client does not read its answers."""
STOPPING: Final = 16
CLOSED: Final = 32
TURN: Final = 64
"""Others have their turn."""
PACED: Final = 128
"""The account owes for what it sent."""

_CONNECT = 0x10
_DONE = object()


class Handler(Protocol):
    """What is done with what was read."""

    is_open: bool
    """CONNECT was accepted, and the connection has not ended."""

    def handle(self, first: int, data: bytes, start: int, end: int) -> Iterator[None] | None:
        """Handle a packet whose first byte is `first` and whose body is `data[start:end]`; what is left of it to be
        done in steps, if anything is. Raises BadPacket."""

    def send_more(self, steps: int, until: float) -> tuple[int, bool]:
        """Send what was missed and latest values: so many steps, until that time (`perf_counter`). How many were taken,
        and whether there are more to take."""

    def owed_s(self) -> float:
        """Seconds for which nothing more is to be read."""

    def paid(self) -> None:
        """Reading goes on after a debt."""

    def rejected(self, bad: BadPacket) -> None:
        """A packet is not allowed; close."""

    def failed(self) -> None:
        """Handling a packet raised something else; log it, and close."""

    def finished(self) -> None:
        """The client has ended, and everything it sent is handled."""


class Reading:
    """What one client has sent that is not handled yet (`turns.Worker`)."""

    __slots__ = (
        "_framer",
        "_handler",
        "_is_paused",
        "_is_waiting_for_turn",
        "_output",
        "_rest",
        "_shared",
        "has_ended",
        "heard",
        "held",
    )

    def __init__(self, shared: Shared, output: Output, handler: Handler) -> None:
        self._shared = shared
        self._output = output
        self._handler = handler
        self._framer = Framer(shared.limits.max_connect_bytes)
        self.heard = shared.now()
        """When the last whole packet came (engine clock)."""
        self.held = 0
        """Why nothing is handled now: a sum of the reasons above."""
        self.has_ended = False
        """The client sends nothing more; what it sent is still handled."""
        self._is_paused = False
        """The socket is not read."""
        self._is_waiting_for_turn = False
        self._rest: Iterator[None] | None = None
        """What is left of a packet that is handled in steps."""

    def feed(self, data: bytes) -> None:
        """Handle the whole packets there are now, as far as this turn of the loop has time."""
        framer = self._framer
        framer.feed(data)
        if not self.held:
            self._proceed()
        elif len(framer) > READ_AHEAD_BYTES or (not self._handler.is_open and len(framer) > framer.limit):
            self._pause()

    def begin(self, steps: Iterator[None]) -> None:
        """Do these steps before anything that comes is handled."""
        self._rest = steps

    def allow(self, max_packet_bytes: int) -> None:
        """Packets may be so large from now on."""
        self._framer.limit = max_packet_bytes

    @property
    def has_packets(self) -> bool:
        """Bytes are left that have not been handled."""
        return len(self._framer) > 0

    def end(self) -> None:
        """The client sends nothing more."""
        self.has_ended = True
        if not self.held:
            self._handler.finished()

    def close(self) -> None:
        """Forget what was not handled; nothing more is."""
        self.held |= CLOSED
        self._framer.clear()
        self._rest = None

    def hold(self, why: int) -> None:
        """Read no further until it is released."""
        self.held |= why
        self._pause()

    def release(self, why: int) -> None:
        """Read on, if nothing else is in the way."""
        self.held &= ~why
        if self.held:
            return
        if why == TURN:
            self._read()
        else:
            self._proceed()
        if not self.held and self._is_paused and not self.has_ended:
            self._is_paused = False
            self._output.transport.resume_reading()

    def wants_turn(self, *, is_new: bool = False) -> None:
        """Do a slice of work in one of the next turns of the loop."""
        if not self._is_waiting_for_turn:
            self._is_waiting_for_turn = True
            self._shared.turns.add(self, is_new=is_new)

    def work(self) -> None:
        """Do a slice of what is left to do: packets first, then what was missed and latest values."""
        self._is_waiting_for_turn = False
        if self.held & TURN:
            self.release(TURN)
        if self._handler.is_open and not self.held & (PACED | STOPPING):
            began = perf_counter()
            steps, has_more = self._handler.send_more(SLICE_STEPS, began + SLICE_S)
            if steps:
                self._shared.turns.spend(steps, perf_counter() - began)
                if has_more and not self._pace():
                    self.wants_turn()

    def _proceed(self) -> None:
        """Read on, now or in one of the next turns of the loop."""
        if self._shared.turns.has_time:
            self._read()
        else:
            self.held |= TURN
            self.wants_turn(is_new=True)

    def _pause(self) -> None:
        if not self._is_paused and not self.has_ended:
            self._is_paused = True
            self._output.transport.pause_reading()

    def _read(self) -> None:
        if self._output.is_unread:
            self.hold(UNREAD)
            return
        take, handle = self._framer.take, self._handler.handle
        left = SLICE_STEPS
        began = perf_counter()
        until = began + SLICE_S
        try:
            while not self.held:
                if self._rest is not None:
                    if next(self._rest, _DONE) is _DONE:
                        self._rest = None
                elif (frame := take()) is None:
                    break
                else:
                    first, data, start, end = frame
                    self._rest = handle(first, data, start, end)
                left -= 1
                if (not left or perf_counter() > until) and (self._rest is not None or len(self._framer)):
                    self.held |= TURN
                    self.wants_turn()
            if not (self._handler.is_open or self.held) and self._framer.first not in (None, _CONNECT):
                # HTTP, TLS and whatever else knocks here: their length would be waited for until the deadline.
                raise protocol_error("a packet before CONNECT")
        except BadPacket as bad:
            self._handler.rejected(bad)
        except Exception:
            self._handler.failed()
        if left < SLICE_STEPS:
            self.heard = self._shared.now()
            self._shared.turns.spend(SLICE_STEPS - left, perf_counter() - began)
            if self._handler.is_open:
                self._pace()
        if self.has_ended and not self.held:
            self._handler.finished()

    def _pace(self) -> bool:
        """Read no further while the account owes for what it sent or asked for; True if it does."""
        if self.held & (CLOSED | PACED):
            return not self.held & CLOSED
        owed_s = self._handler.owed_s()
        if owed_s <= 0:
            return False
        self.hold(PACED)
        self._shared.later(min(max(owed_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S), self._look_again)
        return True

    def _look_again(self) -> None:
        self.held &= ~PACED
        if self._pace() or self.held & CLOSED:
            return
        self.release(PACED)
        self._handler.paid()
