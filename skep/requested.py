"""A request as its caller sees it: what is known of it, its statuses as they come, and how to take it back."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import JsonValue

from things.delivery import Reason, State
from things.errors import AgentFailed, SkepError, TimedOut, error_named
from things.times import parse_time, to_datetime

if TYPE_CHECKING:
    from skep.consumer import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One status of a request, as the runtime's inbox spells it."""

    request_id: str
    state: State
    reference: str | None = None
    reason: Reason | None = None
    error: str | None = None
    output: JsonValue = None
    progress: float | None = None
    seq: int = 0
    updated: datetime | None = None

    @property
    def is_final(self) -> bool:
        return self.state.is_final

    @property
    def is_success(self) -> bool:
        return self.state is State.COMPLETED and self.error is None

    @staticmethod
    def of(document: Mapping[str, JsonValue]) -> "Status":
        """From a status or request document. Raises ValueError for a state of a later version, Invalid for a time that
        is none."""
        reason, progress, seq = document.get("reason"), document.get("progress"), document.get("seq")
        return Status(
            request_id=str(document.get("requestID", "")),
            state=State(str(document.get("state", State.PENDING))),
            reference=_text(document.get("callerRef")),
            reason=Reason(reason) if isinstance(reason, str) and reason in set(Reason) else None,
            error=_text(document.get("error")),
            output=document.get("output"),
            progress=float(progress) if isinstance(progress, int | float) else None,
            seq=int(seq) if isinstance(seq, int) else 0,
            updated=_time(document.get("updated")),
        )

    def failure(self) -> SkepError | None:
        """What an unsuccessful final status is as an error; None for success and while it goes on."""
        if not self.is_final or self.is_success:
            return None
        if self.state is State.COMPLETED:
            return AgentFailed(self.error or "refused by the device")
        reason = self.reason.value if self.reason is not None else "conflict"
        return error_named(reason, self.error or f"the request was {self.state.value}: {reason}")


class Requested:
    """One action or property write that was asked for. `status` is what is known so far.

    Not awaitable: call `result` to wait, `statuses` to follow, `cancel` to take back.
    """

    def __init__(self, consumer: "Consumer", status: Status) -> None:
        self._consumer = consumer
        self.status = status

    @property
    def id(self) -> str:
        """The runtime's request id, by which any later program resumes: `consumer.request(id)`."""
        return self.status.request_id

    @property
    def state(self) -> State:
        return self.status.state

    @property
    def output(self) -> JsonValue:
        return self.status.output

    async def refresh(self) -> Status:
        """Ask the runtime how it stands."""
        self.status = Status.of(await self._consumer.request_document(self.id))
        return self.status

    async def statuses(self) -> AsyncGenerator[Status, None]:
        """Every status from the first on, those of the past included, until the final one; survives reconnects."""
        document = await self._consumer.request_document(self.id)
        self.status, seen = Status.of(document), 0
        transitions = document.get("transitions")
        past = [item for item in transitions if isinstance(item, dict)] if isinstance(transitions, list) else []
        for item in past:
            step = Status.of({**item, "requestID": self.id, "callerRef": document.get("callerRef")})
            seen = max(seen, step.seq)
            # The last step is where the request stands, with its output, error and progress.
            yield step if item is not past[-1] else self.status
        if self.status.is_final:
            return
        async with aclosing(self._consumer.inbox(after=seen)) as inbox:
            async for status in inbox:
                if status.request_id == self.id and status.seq > seen:
                    self.status, seen = status, status.seq
                    yield status
                    if status.is_final:
                        return

    async def result(self, timeout_s: float = 60.0) -> JsonValue:
        """The output once it is final; raises what it ended with, TimedOut when patience ends (it goes on then)."""
        await self.final(timeout_s)
        failure = self.status.failure()
        if failure is not None:
            raise failure
        return self.status.output

    async def final(self, timeout_s: float = 60.0) -> Status:
        """The final status, successful or not; raises TimedOut."""
        if self.status.is_final:
            return self.status
        found = await self._consumer.final(self.id, timeout_s)
        if found is None:
            raise TimedOut(f"request {self.id} is still {self.status.state.value} after {timeout_s:g} s")
        self.status = found
        return found

    async def cancel(self) -> None:
        """Take it back: removed if no agent has it yet, else passed on to the agent. Raises Conflict if it is over."""
        await self._consumer.cancel(self.id)

    def __repr__(self) -> str:
        return f"<Requested {self.id} {self.status.state.value}>"


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: JsonValue) -> datetime | None:
    return to_datetime(parse_time(value)) if isinstance(value, str) else None
