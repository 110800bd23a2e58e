"""What the parts of one server have in common; each is given this, and none of them the engine."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bindings.mqtt.engines.codec.encoding import Encoded
from bindings.mqtt.engines.native.store import SessionStore
from bindings.mqtt.engines.native.turns import Turns
from bindings.mqtt.engines.native.writing import Flushes
from bindings.mqtt.engines.seam import Gate, Limits, Publish

T = TypeVar("T")


class Start(Protocol):
    """Runs a task that ends before the engine does; whoever takes its answer reads its exception."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> "asyncio.Task[T]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Bounds, the gate, and what the engine does for its parts."""

    limits: Limits
    gate: Gate
    store: SessionStore | None
    counts: Counter[str]
    """What was refused, dropped or broken, by kind."""
    now: Callable[[], float]
    """The engine's clock: monotonic seconds."""
    start: Start
    later: Callable[[float, Callable[[], None]], object]
    """Calls something when so many seconds have passed."""
    encode: Callable[[Publish, int], Encoded]
    """A delivery encoded for a protocol level, once for all that get the same."""
    turns: Turns
    flushes: Flushes
