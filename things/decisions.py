"""What a decision is made of and what comes out of it; every enforcement point speaks these two types."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from things.messages import JSONValue

LOG, CONFIRM = "log", "confirm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an operation is allowed, and the name of the rule that said so.

    `obligations` are duties that go with the answer (`log`, `confirm`); who enforces the decision carries them out. An
    allowed decision with an obligation that the enforcement point does not know is to be treated as denied.
    """

    allowed: bool
    rule: str
    obligations: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether it is allowed with nothing to confirm first: what counts where no one can be asked."""
        return self.allowed and CONFIRM not in self.obligations


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What conditional rules look at beyond who, what and where; passed in, so that a decision reads no clock itself.

    `now` is µs UTC. `source` is the caller's host, None on local sockets. `thing_types` are the TD's `@type` terms.
    `counters` hold messages per minute by name: `account` (of the sender), `thing` (to the addressed Thing).
    """

    now: int
    payload: JSONValue = None
    binding: str = ""
    source: str | None = None
    thing_types: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
