"""Peers of the runtime under test: sessions that record what they are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.ports import LedgerRow, Publication, Request, Sessions
from things.delivery import DeliveryStatus
from things.identity import AccountType, Principal, Role
from things.messages import Message
from things.places import Place


def principal(account: str, role: str = Role.MANAGER, type_: AccountType = AccountType.CONSUMER) -> Principal:
    """An authenticated account."""
    return Principal(account=account, type=type_, role=role)


def agent_principal(account: str) -> Principal:
    """An authenticated agent."""
    return principal(account, Role.AGENT, AccountType.AGENT)


@dataclass(eq=False)
class RecordingSession:
    """A session with an outbox of `room` deliveries (None = any) that remembers everything."""

    session_id: str
    principal: Principal = field(default_factory=lambda: principal("somebody"))
    binding: str = "test"
    source: str | None = None
    place: Place | None = None
    room: int | None = None
    refused: int = 0
    """Deliveries it had no room for."""
    sessions: Sessions | None = None
    publications: list[tuple[Publication, Sequence[object]]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    acknowledge: dict[str, Callable[[], None]] = field(default_factory=dict)
    reports: list[DeliveryStatus] = field(default_factory=list)
    closed_with: str | None = None
    on_request: Callable[[Request], None] | None = None
    on_report: Callable[[DeliveryStatus], None] | None = None

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        self.publications.append((publication, tags))

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        if not self._has_room():
            return False
        self.requests.append(request)
        self.acknowledge[request.request_id] = delivered
        if self.on_request:
            self.on_request(request)
        return True

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        if not self._has_room():
            return False
        self.reports.append(status)
        delivered()
        if self.on_report:
            self.on_report(status)
        return True

    def close(self, reason: str) -> None:
        self.closed_with = reason
        if self.sessions:
            self.sessions.closed(self)

    def _has_room(self) -> bool:
        if self.room is None:
            return True
        if self.room == 0:
            self.refused += 1
            return False
        self.room -= 1
        return True


class Recorded:
    """An audit that remembers what it was told."""

    def __init__(self) -> None:
        self.requests: list[LedgerRow] = []
        self.calls: list[Message] = []
        self.confirmations: list[tuple[Message, str]] = []

    def requested(self, row: LedgerRow, message: Message) -> None:
        self.requests.append(row)

    def called(self, message: Message) -> None:
        self.calls.append(message)

    def confirmed(self, message: Message, rule: str) -> None:
        self.confirmations.append((message, rule))
