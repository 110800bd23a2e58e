"""What came of a credential and lives by it: an open or kept session, a registration, a ticket.

Whoever keeps such things lists them and ends them one by one; they end with what they came of without being asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from things.identity import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One of them; times are µs UTC, None where nobody knows. `label` says what it is for."""

    holding_id: str
    kind: str
    principal: Principal
    label: str = ""
    source: str | None = None
    created: int | None = None
    expires: int | None = None


class Holdings(Protocol):
    """Those of one kind."""

    def held_by(self, account: str | None) -> Iterable[Holding]:
        """What an account has now; None for all accounts."""
        ...

    async def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        """End one, if it is there and, with `of`, that account's; None if not."""
        ...
