"""What is counted and logged of every message."""

import logging
from dataclasses import dataclass

from runtime.metrics import Metrics
from things.errors import SkepError
from things.messages import Message
from things.refusals import REFUSALS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trace:
    """Counts messages by operation and outcome; logs refusals at info."""

    metrics: Metrics

    def handled(self, message: Message) -> None:
        """Count a message that was handled, or let through where its handler is called apart."""
        self.metrics.handled[message.operation, message.origin.binding] += 1

    def refused(self, message: Message, error: SkepError) -> None:
        """Count and log a message that was refused."""
        self.metrics.refused[message.operation, message.origin.binding, error.code] += 1
        REFUSALS.note(
            log,
            "refused",
            who=message.sender_id,
            code=error.code,
            operation=message.operation,
            thing=message.thing_id,
            affordance=message.name,
            binding=message.origin.binding,
        )
