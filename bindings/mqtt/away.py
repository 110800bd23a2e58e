"""A client that is away, as the runtime sees it: somebody whose session ends with its account, and nothing else.

Thousands of these may stand for weeks, so they hold no more than that takes; what such a client misses is read from
history when it is back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bindings.mqtt.clients import BINDING
from bindings.mqtt.engines.seam import Closed, Link
from bindings.mqtt.groups import Key
from runtime.ports import Publication, Request
from things.delivery import DeliveryStatus
from things.identity import Principal


@dataclass(slots=True, eq=False)
class AwaySession:
    """Stands in the register for a kept session without its client (`runtime.ports.Session`)."""

    link: Link
    principal: Principal
    groups: Sequence[Key] = ()
    """Shared groups that wait for it."""

    binding = BINDING
    place = None

    @property
    def session_id(self) -> str:
        return f"away-{id(self):x}"

    @property
    def source(self) -> str | None:
        return self.link.source

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        """It has subscribed to nothing."""

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        return False

    def close(self, reason: str) -> None:
        self.link.close(Closed.SHUTDOWN if reason == Closed.SHUTDOWN else Closed.REFUSED)
