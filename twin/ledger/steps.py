"""One step in a request's life, and what it does to the clocks."""

import math
from collections.abc import Mapping
from typing import Any

from things.delivery import FINAL, Reason, State


class Step:
    """What one transition says."""

    __slots__ = ("error", "now", "output", "progress", "reason", "state")

    def __init__(
        self,
        state: State,
        now: int,
        reason: Reason | None = None,
        error: str | None = None,
        output: str | None = None,
        progress: float | None = None,
    ) -> None:
        self.state = state
        self.now = now
        self.reason = reason
        self.error = error
        self.output = output
        self.progress = progress


def has_run_out(fields: Mapping[str, Any], step: Step) -> bool:
    """Whether a step that a clock takes is still due: between the look at the clock and this step the agent may have
    been handed the request, or have said another word on it. Other steps always are."""
    if step.reason is Reason.EXPIRED:
        return bool(fields["attempts"] == 0)
    if step.reason is Reason.TIMEOUT:
        return bool(fields["due"] is not None and fields["due"] <= step.now)
    return True


def changes(fields: Mapping[str, Any], step: Step, seq: int) -> dict[str, Any]:
    """The columns of a request that its step number `seq` changes."""
    attempts, deadline, due = fields["attempts"], fields["deadline"], fields["due"]
    if step.state is State.DELIVERED:
        attempts = max(attempts, 1)  # counted when it was handed over; by its agent's word, if it was not
        if deadline is None:  # a redelivery does not restart it: it runs on
            deadline = _deadline(step.now, fields["deadline_s"])
    elif step.state in FINAL:
        deadline = None
    elif step.state is not State.PENDING:
        deadline = _deadline(step.now, fields["deadline_s"])
    if step.state is not State.PENDING:  # the clock of what comes back runs on
        due = deadline
    return {
        "state": step.state.value,
        "deadline": deadline,
        "due": due,
        "updated": step.now,
        "attempts": attempts,
        "progress": fields["progress"] if step.progress is None else step.progress,
        "seq": seq,
    }


def _deadline(now: int, deadline_s: float) -> int | None:
    return now + round(deadline_s * 1_000_000) if math.isfinite(deadline_s) else None
