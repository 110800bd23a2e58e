"""What one client's own inbox takes, and what of it is on its way.

Most clients only watch Things and have none, so that everything about requests and statuses costs an idle watcher
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bindings.mqtt.topics import InboxFilter
from runtime.ports import Request
from things.delivery import DeliveryStatus

V = TypeVar("V")

MAX_REPLIES = 1_000
"""Requests of one client whose answers go to a topic of its own choice, oldest forgotten first."""
MAX_HELD = 1_000
"""Requests that no filter of the agent's matches yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Where the statuses of a request are to go besides the rules: MQTT 5 response topic and correlation data."""

    topic: str | None
    correlation: bytes | None


class Inbox:
    """The filters of one inbox with their QoS, the answers that were asked for, and what the client owes."""

    __slots__ = ("_answers", "_reported", "filters", "held", "owed", "refused_at")

    def __init__(self) -> None:
        self.filters: dict[str, tuple[InboxFilter, int]] = {}
        self.held: dict[str, tuple[Request, Callable[[], None]]] = {}
        """Requests that wait for a filter."""
        self.owed = 0
        """Requests and statuses on the link that the client has not confirmed."""
        self.refused_at: int | None = None
        """How many were owed when the link took no more; None while it takes them."""
        self._answers: dict[str, Answer] = {}
        self._reported: dict[str, int] = {}

    @property
    def takes_requests(self) -> bool:
        """Whether any filter takes requests."""
        return any(parsed.requests for parsed, _ in self.filters.values())

    @property
    def takes_reports(self) -> bool:
        """Whether any filter takes statuses."""
        return any(parsed.reports for parsed, _ in self.filters.values())

    def qos(self, topic: str) -> int | None:
        """The highest QoS at which a topic was asked for, None if it was not."""
        return max((qos for parsed, qos in self.filters.values() if parsed.matches(topic)), default=None)

    def expect(self, caller_ref: str, answer: Answer) -> None:
        """Remember where the statuses of a request are to go."""
        _put(self._answers, caller_ref, answer)

    def expected(self, reference: str) -> Answer | None:
        """Where the statuses of a request are to go besides the rules."""
        return self._answers.get(reference)

    def forget(self, reference: str) -> None:
        """There will be no more statuses of a request."""
        self._answers.pop(reference, None)

    def reported(self, status: DeliveryStatus) -> None:
        """The client was told a status."""
        _put(self._reported, status.request_id, status.seq)

    def was_reported(self, status: DeliveryStatus) -> bool:
        """Whether the last status of the request that the client was told is this one."""
        return bool(status.seq) and self._reported.get(status.request_id) == status.seq

    def is_ready_again(self) -> bool:
        """Whether, after a refusal, half of what was owed is confirmed by now; told once."""
        if self.refused_at is None or self.owed > self.refused_at // 2:
            return False
        self.refused_at = None
        return True


def _put(entries: dict[str, V], key: str, value: V) -> None:
    entries[key] = value
    if len(entries) > MAX_REPLIES:
        del entries[next(iter(entries))]
