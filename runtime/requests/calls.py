"""RPC under way: calls that an agent has been handed and has not answered.

They live in memory only: a call is never queued and never outlives its deadline, its agent's session or the runtime.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from runtime.ports import Session
from things.bounded import Recent
from things.delivery import DeliveryStatus, Reason, State


@dataclass(slots=True, eq=False)
class Call:
    """One call: who asked (and through which session), which agent session has it."""

    request_id: str
    caller: str
    caller_ref: str | None
    caller_session: str
    agent: str
    session: Session
    timer: asyncio.TimerHandle | None = None


class Calls:
    """Open calls by request id, and the finals of those that ended within the last moments.

    `ended` is called once for each call with its final status.
    """

    _KEPT = 1_000

    def __init__(self, ended: Callable[[Call, DeliveryStatus], None], clock: Callable[[], int]) -> None:
        self._ended = ended
        self._clock = clock
        self._open: dict[str, Call] = {}
        self._finals = Recent[str, DeliveryStatus](self._KEPT)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, call: Call, deadline_s: float) -> None:
        """Remember a call that is about to be handed over."""
        self._open[call.request_id] = call
        call.timer = asyncio.get_running_loop().call_later(deadline_s, self._late, call)

    def withdraw(self, call: Call) -> None:
        """Forget a call that could not be handed over; no one is notified."""
        self._open.pop(call.request_id, None)
        if call.timer:
            call.timer.cancel()

    def get(self, request_id: str) -> Call | None:
        """The open call of that id."""
        return self._open.get(request_id)

    def final(self, request_id: str) -> DeliveryStatus | None:
        """How a recent call ended."""
        return self._finals.get(request_id)

    def end(self, call: Call, status: DeliveryStatus) -> None:
        """Take the final status; a second one is ignored."""
        if self._open.pop(call.request_id, None) is None:
            return
        if call.timer:
            call.timer.cancel()
        self._finals[call.request_id] = status
        self._ended(call, status)

    def lost(self, session: Session) -> None:
        """The agent's session is gone: its calls fail, since RPC is never delivered twice."""
        for call in [call for call in self._open.values() if call.session is session]:
            self.end(call, self._failed(call, Reason.NOT_CONNECTED, "the agent left before it answered"))

    def _late(self, call: Call) -> None:
        self.end(call, self._failed(call, Reason.TIMEOUT, "the agent did not answer in time"))

    def _failed(self, call: Call, reason: Reason, error: str) -> DeliveryStatus:
        return DeliveryStatus(
            request_id=call.request_id,
            caller_ref=call.caller_ref,
            state=State.FAILED,
            reason=reason,
            error=error,
            updated=self._clock(),
        )
