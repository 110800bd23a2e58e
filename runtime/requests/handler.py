"""Actions and property writes: recorded, handed to the agent or kept for it, cancelled, and answered by statuses."""

from asyncio import Future, get_running_loop
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.after_commit import followed
from runtime.ports import Audit, Authorizer, Directory, Ledger, LedgerRow
from runtime.requests.calls import Calls
from runtime.requests.deliveries import Deliveries
from things.addresses import Address, Kind, TwinID
from things.delivery import REPORTABLE, DeliveryStatus, Reason, State
from things.errors import Conflict, Invalid, NotConnected, QueueFull, UnknownRequest, UnknownThing
from things.identity import Authority, Principal
from things.messages import JSONValue, Message, Operation
from things.service_ids import REQUESTS

"""The built-in service that lists the ledger; rights over others' requests are rights on it."""

MAX_EXPIRES_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Defaults and bounds of queueing, from configuration."""

    expires_s: float = 3_600.0
    deadline_s: float = 60.0
    max_waiting_per_agent: int = 100_000
    max_waiting_per_caller: int = 100_000


@dataclass(slots=True)
class Waiting:
    """How many requests are not final, by agent and by caller; the bounds are kept on these counts."""

    by_agent: dict[str, int] = field(default_factory=dict)
    by_caller: dict[str, int] = field(default_factory=dict)

    def changed(self, row: LedgerRow, by: int) -> None:
        """Count one row in (1) or out (-1)."""
        for counts, key in ((self.by_agent, row.agent), (self.by_caller, row.caller)):
            count = counts.get(key, 0) + by
            if count > 0:
                counts[key] = count
            else:
                counts.pop(key, None)


@dataclass(slots=True)
class Requests:
    """Handler of invoke_action, write_property, cancel and report_status."""

    ledger: Ledger
    deliveries: Deliveries
    calls: Calls
    directory: Directory
    authorizer: Authorizer
    clock: Callable[[], int]
    new_id: Callable[[], str]
    due_changed: Callable[[int | None], None]
    limits: RequestLimits
    audit: Audit
    waiting: Waiting = field(default_factory=Waiting)

    def request(self, message: Message) -> "Future[DeliveryStatus]":
        """Record and hand over. Raises NotConnected where the TD says never to queue, QueueFull; Conflict in the
        future."""
        row = self._row(message)
        self._check_room(row)
        # Counted before the commit, so that many at once cannot pass the bound together.
        self.waiting.changed(row, 1)
        uncount = partial(self.waiting.changed, row, -1)
        return followed(self.ledger.open(row), partial(self._opened, message, uncount), uncount)

    def _opened(
        self, message: Message, uncount: Callable[[], None], opened: tuple[LedgerRow, bool]
    ) -> "DeliveryStatus | Future[DeliveryStatus]":
        stored, is_new = opened
        if not is_new:
            uncount()
            return stored.status()
        self.due_changed(stored.expires)
        # First of all: the device is what is waited for, and the next request for this Thing must not overtake it.
        offered = self.deliveries.offer_new(stored)
        self.deliveries.recorded(stored)
        self.audit.requested(stored, message)
        if message.operation is Operation.WRITE_PROPERTY and not offered:
            replaced = self.ledger.supersede(
                stored.thing_id,
                stored.name,
                before=stored.request_id,
                sparing=self.deliveries.on_offer(stored.agent),
                now=self.clock(),
            )
            return followed(replaced, partial(self._replaced, stored))
        return stored.status()

    def _replaced(self, stored: LedgerRow, replaced: Sequence[LedgerRow]) -> DeliveryStatus:
        for row in replaced:
            self.deliveries.withdrawn(row)
        return stored.status()

    def settled(self, row: LedgerRow) -> None:
        """Called after each committed step of a request."""
        if row.state.is_final:
            self.waiting.changed(row, -1)

    def _row(self, message: Message) -> LedgerRow:
        entry = self.directory.get(message.thing_id)
        if entry is None or entry.agent is None:
            raise UnknownThing(message.thing_id)
        kind = Kind.ACTION if message.operation is Operation.INVOKE_ACTION else Kind.PROPERTY
        own = entry.td.skep_expires_s(message.name, kind)
        expires_s = self.limits.expires_s if own is None else own
        if message.expires_in_s is not None:
            if not 0 <= message.expires_in_s <= MAX_EXPIRES_S:
                raise Invalid(f"a request expires in 0 to {MAX_EXPIRES_S:.0f} s")
            expires_s = min(expires_s, message.expires_in_s)
        if expires_s <= 0 and self.deliveries.session_of(entry.agent, message.thing_id) is None:
            raise NotConnected(entry.agent)
        deadline_s = entry.td.skep_deadline_s(message.name, kind)
        request_id, now = self.new_id(), self.clock()
        return LedgerRow(
            request_id=request_id,
            caller_ref=message.correlation or request_id,
            operation=message.operation,
            caller=message.sender_id,
            thing_id=message.thing_id,
            agent=TwinID.parse(message.thing_id).account,
            name=message.name,
            input=message.data,
            has_input=message.has_data,
            state=State.PENDING,
            # Never queued still leaves the hand-over itself a moment.
            expires=now + int(max(expires_s, 5.0 if expires_s <= 0 else 0.0) * 1_000_000),
            deadline_s=self.limits.deadline_s if deadline_s is None else deadline_s,
            created=now,
            updated=now,
            attempts=1 if self.deliveries.goes_at_once(message.thing_id) else 0,
            authority=Authority(
                principal=message.principal, binding=message.origin.binding, source=message.origin.source
            ),
        )

    def _check_room(self, row: LedgerRow) -> None:
        if self.waiting.by_agent.get(row.agent, 0) >= self.limits.max_waiting_per_agent:
            raise QueueFull(f"agent {row.agent!r}", self.limits.max_waiting_per_agent)
        if self.waiting.by_caller.get(row.caller, 0) >= self.limits.max_waiting_per_caller:
            raise QueueFull(f"account {row.caller!r}", self.limits.max_waiting_per_caller)

    # ------------------------------------------------------------ cancel

    async def cancel(self, message: Message) -> DeliveryStatus:
        """Take a request back: at once while the agent does not have it, by asking the agent otherwise.

        Raises UnknownRequest (also for somebody else's, unless the caller manages requests), Conflict if it is final.
        """
        row = (
            await self.ledger.get(message.name)
            if message.name
            else await self.ledger.by_reference(message.sender_id, message.correlation or "")
        )
        if row is None or not self._may_cancel(message, row):
            raise UnknownRequest(message.name or message.correlation or "")
        if row.state.is_final:
            raise Conflict(f"request {row.request_id!r} is already {row.state}")
        if row.state is State.PENDING:
            self.deliveries.pass_cancel(row)  # it may be on its way to the agent
            error = (
                "it had been handed over; the device may have acted" if self.deliveries.has_been_handed(row) else None
            )
            return (await self.deliveries.advance(row.request_id, State.CANCELLED, error=error)).status()
        self.deliveries.pass_cancel(row)
        return row.status()

    def _may_cancel(self, message: Message, row: LedgerRow) -> bool:
        if row.is_asked_by(message.principal):
            return True
        return may_manage(self.authorizer, message.principal, row.thing_id)

    # ------------------------------------------------------------ statuses

    def report(self, message: Message) -> "Future[DeliveryStatus]":
        """An agent's word on a request it was asked. Raises Invalid; UnknownRequest, IllegalStatus in the future."""
        report = _report(message.data)
        call = self.calls.get(message.name)
        if call is not None:
            if call.agent != message.sender_id:
                raise UnknownRequest(message.name)
            status = DeliveryStatus(
                request_id=call.request_id,
                caller_ref=call.caller_ref,
                state=report.state,
                reason=report.reason,
                error=report.error,
                output=report.output,
                progress=report.progress,
                updated=self.clock(),
            )
            if status.is_final:
                self.calls.end(call, status)
            answer: Future[DeliveryStatus] = get_running_loop().create_future()
            answer.set_result(status)
            return answer
        advanced = self.deliveries.advance(
            message.name,
            report.state,
            agent=message.sender_id,
            reason=report.reason,
            error=report.error,
            output=report.output,
            progress=report.progress,
        )
        return followed(advanced, LedgerRow.status)


def may_manage(authorizer: Authorizer, principal: Principal, thing_id: str) -> bool:
    """Whether somebody may see and cancel what others asked of a Thing: who manages requests, unless it is hidden."""
    return (
        authorizer.decide(principal, Operation.MANAGE, Address(REQUESTS)).is_free
        and authorizer.decide(principal, Operation.READ, Address(thing_id)).is_free
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    state: State
    reason: Reason | None
    error: str | None
    output: JSONValue
    progress: float | None


def _text(error: JSONValue) -> str | None:
    """What an agent says went wrong: text, or problem details (RFC 9457), as Things of the Web of Things have them."""
    if isinstance(error, dict):
        error = error.get("detail") or error.get("title")
        if error is None:
            raise Invalid("`error` is text, or a problem object with `detail` or `title`")
    if error is not None and not isinstance(error, str):
        raise Invalid("`error` is text, or a problem object whose `detail` or `title` is text")
    return error


def _report(data: JSONValue) -> _Report:
    if not isinstance(data, dict):
        raise Invalid('a status is an object such as {"state": "completed"}')
    try:
        state = State(str(data.get("state")))
    except ValueError:
        state = State.PENDING
    if state not in REPORTABLE:
        known = ", ".join(sorted(REPORTABLE))
        raise Invalid(f"state {data.get('state')!r} cannot be reported; use one of {known}")
    error, progress, reason = _text(data.get("error")), data.get("progress"), data.get("reason")
    if progress is not None and (isinstance(progress, bool) or not isinstance(progress, int | float)):
        raise Invalid("`progress` is a number from 0 to 100")
    if progress is not None and not 0 <= progress <= 100:
        raise Invalid("`progress` is a number from 0 to 100")
    parsed: Reason | None = None
    if state is State.FAILED:
        parsed = Reason.REJECTED if reason == Reason.REJECTED else Reason.AGENT_ERROR
    return _Report(
        state=state,
        reason=parsed,
        error=error,
        output=data.get("output"),
        progress=float(progress) if progress is not None else None,
    )
