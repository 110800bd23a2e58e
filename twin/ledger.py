"""Requests and their transitions: every action and property write with its whole life.

A row is committed before any method returns it; all that wait share one commit. `advance` is the only way to change a
state, by the table of `things.delivery`, decided in the writer thread, where nothing else runs. Sequence numbers rise
over all requests and are never used twice, also not after a purge. No operation reads more rows than it returns: each
has a (partial) index of its own.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, bindparam, func, null, select, text
from sqlalchemy.dialects import postgresql, sqlite

from things.delivery import FINAL, REPORTABLE, DeliveryStatus, Reason, State, is_legal
from things.errors import BadCursor, Conflict, IllegalStatus, UnknownRequest
from things.messages import JSONValue, Operation
from things.records import LedgerQuery, LedgerRow, Transition
from twin.database import Database, Prepared
from twin.tables import MarkRow, RequestRow, TransitionRow, table

_MARK = "ledger"

_REQUESTS = table(RequestRow)
_TRANSITIONS = table(TransitionRow)
_MARKS = table(MarkRow)
_COLUMNS = (
    *_REQUESTS.c,
    _TRANSITIONS.c.reason.label("reason"),
    _TRANSITIONS.c.error.label("error"),
    _TRANSITIONS.c.output.label("output"),
)
_FIELDS = tuple(column.name for column in _COLUMNS)
# The first step, to pending, is the row itself: `opened` is its number and `created` its time.
_WITH_LAST_STEP = _REQUESTS.outerjoin(_TRANSITIONS, _TRANSITIONS.c.seq == _REQUESTS.c.seq)


class LedgerStore:
    """The ledger in the twin's database; made by `LedgerStore.load`."""

    def __init__(self, database: Database, seq: int) -> None:
        self._database = database
        self._seq = seq
        self._sql = _Statements(database)

    @classmethod
    async def load(cls, database: Database) -> "LedgerStore":
        """Take up the ledger of a database."""

        def last_seq(connection: Connection) -> int:
            row = connection.execute(
                text(
                    "SELECT (SELECT max(seq) FROM transitions), (SELECT max(opened) FROM requests),"
                    " (SELECT value FROM marks WHERE name = :name)"
                ),
                {"name": _MARK},
            ).one()
            return max(number or 0 for number in row)

        return cls(database, await database.read(last_seq))

    @property
    def last_seq(self) -> int:
        """The highest sequence number given so far."""
        return self._seq

    # ------------------------------------------------------------ changes

    async def open(self, row: LedgerRow) -> tuple[LedgerRow, bool]:
        """Store a new request as pending. The same caller and reference with the same content: the standing row and
        False; with other content: raises Conflict."""
        given = _encoded(row.input) if row.has_input else None
        return await self._database.submit(lambda connection: self._stored(connection, row, given), refuses_first=True)

    async def advance(
        self,
        request_id: str,
        state: State,
        *,
        now: int,
        agent: str | None = None,
        reason: Reason | None = None,
        error: str | None = None,
        output: JSONValue = None,
        progress: float | None = None,
    ) -> Sequence[LedgerRow]:
        """Take one step: the row as it stands afterwards. Where an agent's first word is a later state, `delivered` is
        recorded first: then two rows, one for each step. With `agent` given, only that agent's requests exist. Rows
        come without their transitions. Raises UnknownRequest, IllegalStatus."""
        step = _Step(state, now, reason, error, None if output is None else _encoded(output), progress)
        return await self._database.submit(
            lambda connection: self._advanced(connection, request_id, agent, step),
            frees=state in FINAL,
            refuses_first=True,
            # The agent has it, and its answer often follows at once: both in one commit.
            soon=state is not State.DELIVERED,
        )

    async def supersede(
        self, thing_id: str, name: str, *, before: str, sparing: Collection[str] = (), now: int
    ) -> Sequence[LedgerRow]:
        """Cancel (reason superseded) the property writes of this name that were opened before the request `before` and
        were never delivered, but those on their way to the agent (`sparing`); the rows that ended."""
        step = _Step(State.CANCELLED, now, Reason.SUPERSEDED)

        def superseded(connection: Connection) -> list[LedgerRow]:
            older = self._sql.queued_writes.rows(
                connection, thing_id=thing_id, name=name, opened=self._place(connection, before)
            )
            queued = [fields for fields in map(_fields, older) if fields["request_id"] not in sparing]
            return [_row(self._take(connection, fields, step)) for fields in queued]

        return await self._database.submit(superseded, frees=True)

    async def purge(self, before: int, *, limit: int) -> int:
        """Forget up to `limit` rows that ended before this time, with their transitions; how many went."""

        def purged(connection: Connection) -> int:
            # The highest number must survive the rows that had it.
            self._sql.mark.run(connection, name=_MARK, value=self._seq)
            ended = [{"opened": row[0]} for row in self._sql.ended.rows(connection, before=before, limit=limit)]
            self._sql.forget_transitions.many(connection, ended)
            self._sql.forget_request.many(connection, ended)
            return len(ended)

        return await self._database.submit(purged, frees=True)

    # ------------------------------------------------------------ reads

    async def get(self, request_id: str) -> LedgerRow | None:
        """The request with its transitions."""
        return await self._one(self._sql.by_id, {"request_id": request_id})

    async def by_reference(self, caller: str, caller_ref: str) -> LedgerRow | None:
        """A caller's request by the caller's own reference, with its transitions."""
        return await self._one(self._sql.by_reference, {"caller": caller, "caller_ref": caller_ref})

    async def waiting(
        self, agent: str, *, limit: int, after: str = "", thing_id: str | None = None
    ) -> Sequence[LedgerRow]:
        """Pending rows of an agent's Things (or of one of them), oldest first; `after` is the request id of the last
        one seen."""
        if thing_id is not None:
            return await self._queue(self._sql.waiting_for_thing, after, limit=limit, agent=agent, thing_id=thing_id)
        return await self._queue(self._sql.waiting, after, limit=limit, agent=agent)

    async def unanswered(self, agent: str | None = None, *, limit: int, after: str = "") -> Sequence[LedgerRow]:
        """Rows an agent (any agent, if None) has but has not ended (delivered, waiting, running, applied), oldest
        first."""
        if agent is None:
            return await self._queue(self._sql.unanswered_by_any, after, limit=limit)
        return await self._queue(self._sql.unanswered, after, limit=limit, agent=agent)

    async def agents_waiting(self) -> Sequence[str]:
        """Agents with pending rows."""
        # A skip through the index, agent by agent; DISTINCT would read every pending row.
        return await self._database.read(
            lambda connection: [
                str(row[0])
                for row in connection.execute(
                    text(
                        "WITH RECURSIVE agents(agent) AS (SELECT min(agent) FROM requests WHERE state = 'pending'"
                        " UNION ALL SELECT (SELECT min(r.agent) FROM requests r WHERE r.state = 'pending'"
                        " AND r.agent > agents.agent) FROM agents WHERE agents.agent IS NOT NULL)"
                        " SELECT agent FROM agents WHERE agent IS NOT NULL"
                    )
                )
            ]
        )

    async def waiting_counts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many rows are pending, by agent and by caller; for the bounds, at start."""

        def counted(connection: Connection) -> tuple[dict[str, int], dict[str, int]]:
            by_agent: dict[str, int] = {}
            by_caller: dict[str, int] = {}
            counts = text("SELECT agent, caller, count(*) FROM requests WHERE state = 'pending' GROUP BY agent, caller")
            for agent, caller, count in connection.execute(counts):
                by_agent[agent] = by_agent.get(agent, 0) + count
                by_caller[caller] = by_caller.get(caller, 0) + count
            return by_agent, by_caller

        return await self._database.read(counted)

    async def due(self, now: int, *, limit: int) -> Sequence[LedgerRow]:
        """Rows whose clock has run out, earliest first: `expires` while never delivered, `deadline` afterwards (also
        of rows that went back to pending). They are not changed."""
        return await self._database.read(lambda connection: _rows(self._sql.due.rows(connection, now=now, limit=limit)))

    async def next_due(self) -> int | None:
        """When the next such clock runs out; None while none runs."""

        def first(connection: Connection) -> int | None:
            found = self._sql.next_due.row(connection)
            return None if found is None else found[0]

        return await self._database.read(first)

    async def inbox(self, caller: str, *, after: int, limit: int) -> Sequence[DeliveryStatus]:
        """Statuses of a caller's requests with seq above `after`, in order of seq."""

        def found(connection: Connection) -> list[DeliveryStatus]:
            given = {"caller": caller, "after": after, "limit": limit}
            opened = self._sql.opened_after.rows(connection, **given)
            return [
                _status(row)
                for row in islice(merge(opened, self._sql.inbox.rows(connection, **given), key=_seq), limit)
            ]

        return await self._database.read(found)

    async def query(self, query: LedgerQuery) -> Sequence[LedgerRow]:
        """Rows with their transitions, newest first. Raises BadCursor where `before` names no request."""

        def found(connection: Connection) -> list[LedgerRow]:
            wanted = select(*_COLUMNS).select_from(_WITH_LAST_STEP)
            columns = _REQUESTS.c
            if query.caller is not None:
                wanted = wanted.where(columns.caller == query.caller)
            if query.thing_id is not None:
                wanted = wanted.where(columns.thing_id == query.thing_id)
            if query.name is not None:
                wanted = wanted.where(columns.name == query.name)
            if query.operation is not None:
                wanted = wanted.where(columns.operation == query.operation.value)
            if query.states:
                wanted = wanted.where(columns.state.in_([state.value for state in query.states]))
            if query.start is not None:
                wanted = wanted.where(columns.created >= query.start)
            if query.end is not None:
                wanted = wanted.where(columns.created < query.end)
            if query.before is not None:
                place = self._sql.place.row(connection, request_id=query.before)
                if place is None:
                    raise BadCursor(query.before)
                wanted = wanted.where(columns.opened < place[0])
            rows = connection.execute(wanted.order_by(columns.opened.desc()).limit(query.limit)).all()
            return self._with_transitions(connection, rows)

        return await self._database.read(found)

    # ------------------------------------------------------------ in a worker thread

    async def _one(self, statement: Prepared, parameters: Mapping[str, object]) -> LedgerRow | None:
        def found(connection: Connection) -> LedgerRow | None:
            rows = self._with_transitions(connection, statement.rows(connection, **parameters))
            return rows[0] if rows else None

        return await self._database.read(found)

    async def _queue(self, statement: Prepared, after: str, **parameters: object) -> Sequence[LedgerRow]:
        def found(connection: Connection) -> list[LedgerRow]:
            opened = self._place(connection, after) if after else 0
            return _rows(statement.rows(connection, opened=opened, **parameters))

        return await self._database.read(found)

    def _place(self, connection: Connection, request_id: str) -> int:
        found = self._sql.place.row(connection, request_id=request_id)
        if found is None:
            raise UnknownRequest(request_id)
        return int(found[0])

    def _with_transitions(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> list[LedgerRow]:
        complete: list[LedgerRow] = []
        for row in rows:
            fields = _fields(row)
            steps = self._sql.steps.rows(connection, opened=fields["opened"])
            transitions = (
                _opening(fields),
                *(
                    Transition(seq=seq, state=State(state), at=at, reason=None if reason is None else Reason(reason))
                    for seq, state, at, reason in steps
                ),
            )
            complete.append(_row(fields, transitions))
        return complete

    # ------------------------------------------------------------ in the writer thread

    def _stored(self, connection: Connection, row: LedgerRow, given: str | None) -> tuple[LedgerRow, bool]:
        seq = self._seq + 1
        fields: dict[str, Any] = {
            "opened": seq,
            "request_id": row.request_id,
            "caller": row.caller,
            "caller_ref": row.caller_ref,
            "operation": row.operation.value,
            "thing_id": row.thing_id,
            "agent": row.agent,
            "name": row.name,
            "input": given,
            "state": State.PENDING.value,
            "expires": row.expires,
            "deadline_s": row.deadline_s,
            "deadline": None,
            "due": row.expires,
            "created": row.created,
            "updated": row.created,
            "attempts": 0,
            "progress": None,
            "seq": seq,
        }
        if self._sql.open.run(connection, **fields).rowcount == 0:
            return self._standing(connection, row, given), False
        self._seq = seq
        return replace(row, seq=seq, transitions=(_opening(fields),)), True

    def _standing(self, connection: Connection, row: LedgerRow, given: str | None) -> LedgerRow:
        found = self._sql.by_reference.row(connection, caller=row.caller, caller_ref=row.caller_ref)
        if found is None:
            raise Conflict(f"request id {row.request_id!r} is in use")
        fields = _fields(found)
        same = (
            fields["operation"] == row.operation.value
            and fields["thing_id"] == row.thing_id
            and fields["name"] == row.name
            and _canonical(fields["input"]) == _canonical(given)
        )
        if not same:
            raise Conflict(f"reference {row.caller_ref!r} was used for another request")
        return self._with_transitions(connection, [found])[0]

    def _advanced(self, connection: Connection, request_id: str, agent: str | None, step: "_Step") -> list[LedgerRow]:
        found = self._sql.by_id.row(connection, request_id=request_id)
        fields = None if found is None else _fields(found)
        if fields is None or (agent is not None and fields["agent"] != agent):
            raise UnknownRequest(request_id)
        current = State(fields["state"])
        # The agent's word is proof that it has the request, even if its receipt was lost.
        is_first_word = (
            current is State.PENDING
            and step.state in REPORTABLE
            and (agent is not None or not is_legal(current, step.state))
        )
        if not is_first_word and (not is_legal(current, step.state) or not _has_run_out(fields, step)):
            raise IllegalStatus(request_id, current.value, step.state.value)
        steps = (_Step(State.DELIVERED, step.now), step) if is_first_word else (step,)
        rows = []
        for each in steps:
            fields = self._take(connection, fields, each)
            rows.append(_row(fields))
        return rows

    def _take(self, connection: Connection, fields: dict[str, Any], step: "_Step") -> dict[str, Any]:
        self._seq += 1
        attempts, deadline = fields["attempts"], fields["deadline"]
        if step.state is State.DELIVERED:
            attempts += 1
            if deadline is None:  # a redelivery does not restart it: it runs on
                deadline = _deadline(step.now, fields["deadline_s"])
        elif step.state in FINAL:
            deadline = None
        elif step.state is not State.PENDING:
            deadline = _deadline(step.now, fields["deadline_s"])
        running = fields["expires"] if attempts == 0 else deadline
        changed = {
            "state": step.state.value,
            "deadline": deadline,
            "due": None if step.state in FINAL else running,
            "updated": step.now,
            "attempts": attempts,
            "progress": fields["progress"] if step.progress is None else step.progress,
            "seq": self._seq,
        }
        after = {**fields, **changed}
        self._sql.change.run(connection, wanted=fields["opened"], **{f"new_{name}": v for name, v in changed.items()})
        self._record(connection, after, step)
        after |= {"reason": None if step.reason is None else step.reason.value}
        after |= {"error": step.error, "output": step.output}
        return after

    def _record(self, connection: Connection, fields: Mapping[str, Any], step: "_Step") -> None:
        self._sql.record.run(
            connection,
            seq=self._seq,
            opened=fields["opened"],
            caller=fields["caller"],
            state=step.state.value,
            at=step.now,
            reason=None if step.reason is None else step.reason.value,
            error=step.error,
            output=step.output,
            progress=fields["progress"],
        )


class _Step:
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


class _Statements:
    """The ledger's statements, compiled once for the database's dialect."""

    def __init__(self, database: Database) -> None:
        r, t = _REQUESTS.c, _TRANSITIONS.c
        whole = select(*_COLUMNS).select_from(_WITH_LAST_STEP)
        limit: Any = bindparam("limit")
        pending = r.state == text("'pending'")

        def prepared(statement: Any) -> Prepared:
            return Prepared(statement, database.engine)

        insert = postgresql.insert if database.engine.dialect.name == "postgresql" else sqlite.insert
        self.open = prepared(insert(_REQUESTS).on_conflict_do_nothing())
        self.record = prepared(insert(_TRANSITIONS))
        changing = ("state", "deadline", "due", "updated", "attempts", "progress", "seq")
        self.change = prepared(
            _REQUESTS.update()
            .where(r.opened == bindparam("wanted"))
            .values({name: bindparam(f"new_{name}") for name in changing})
        )
        self.by_id = prepared(whole.where(r.request_id == bindparam("request_id")))
        self.by_reference = prepared(
            whole.where(r.caller == bindparam("caller"), r.caller_ref == bindparam("caller_ref"))
        )
        self.place = prepared(select(r.opened).where(r.request_id == bindparam("request_id")))
        queue = whole.where(r.agent == bindparam("agent"), r.opened > bindparam("opened")).order_by(r.opened)
        # Literal states: a partial index is only used where the condition can be seen to imply its own.
        self.waiting = prepared(queue.where(pending).limit(limit))
        under_way = text("requests.state IN ('delivered', 'waiting', 'running', 'applied')")
        self.unanswered = prepared(queue.where(under_way).limit(limit))
        self.waiting_for_thing = prepared(queue.where(pending, r.thing_id == bindparam("thing_id")).limit(limit))
        opened_after = whole.where(r.opened > bindparam("opened")).order_by(r.opened)
        self.unanswered_by_any = prepared(opened_after.where(under_way).limit(limit))
        self.queued_writes = prepared(
            whole.where(
                r.thing_id == bindparam("thing_id"),
                r.name == bindparam("name"),
                r.opened < bindparam("opened"),
                pending,
                r.operation == text("'write_property'"),
                r.attempts == text("0"),
            ).order_by(r.opened)
        )
        self.due = prepared(whole.where(r.due.is_not(None), r.due <= bindparam("now")).order_by(r.due).limit(limit))
        self.next_due = prepared(select(func.min(r.due)).where(r.due.is_not(None)))
        self.inbox = prepared(
            select(r.request_id, r.caller_ref, t.seq, t.state, t.at, t.reason, t.error, t.output, t.progress)
            .where(t.opened == r.opened, t.caller == bindparam("caller"), t.seq > bindparam("after"))
            .order_by(t.seq)
            .limit(limit)
        )
        self.opened_after = prepared(
            select(r.request_id, r.caller_ref, r.opened, text("'pending'"), r.created)
            .add_columns(null(), null(), null(), null())
            .where(r.caller == bindparam("caller"), r.opened > bindparam("after"))
            .order_by(r.opened)
            .limit(limit)
        )
        self.steps = prepared(
            select(t.seq, t.state, t.at, t.reason).where(t.opened == bindparam("opened")).order_by(t.seq)
        )
        ended = text("requests.state IN ('completed', 'failed', 'cancelled')")
        self.ended = prepared(
            select(r.opened).where(ended, r.updated < bindparam("before")).order_by(r.updated).limit(limit)
        )
        self.forget_transitions = prepared(_TRANSITIONS.delete().where(t.opened == bindparam("opened")))
        self.forget_request = prepared(_REQUESTS.delete().where(r.opened == bindparam("opened")))
        mark = insert(_MARKS)
        self.mark = prepared(mark.on_conflict_do_update(index_elements=["name"], set_={"value": mark.excluded.value}))


def _has_run_out(fields: Mapping[str, Any], step: "_Step") -> bool:
    """Whether a step that a clock takes is still due: between the look at the clock and this step the agent may have
    been handed the request, or have said another word on it. Other steps always are."""
    if step.reason is Reason.EXPIRED:
        return bool(fields["attempts"] == 0)
    if step.reason is Reason.TIMEOUT:
        return bool(fields["deadline"] is not None and fields["deadline"] <= step.now)
    return True


def _deadline(now: int, deadline_s: float) -> int | None:
    return now + round(deadline_s * 1_000_000) if math.isfinite(deadline_s) else None


def _opening(fields: Mapping[str, Any]) -> Transition:
    return Transition(seq=fields["opened"], state=State.PENDING, at=fields["created"])


def _seq(row: Sequence[Any]) -> int:
    return int(row[2])


def _encoded(value: JSONValue) -> str:
    return to_json(value).decode()


def _canonical(text_: str | None) -> str | None:
    """One spelling for equal JSON; keeps 1, 1.0 and true apart, as Python's own comparison does not."""
    return None if text_ is None else json.dumps(from_json(text_), sort_keys=True)


def _fields(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_FIELDS, row, strict=True))


def _rows(rows: Iterable[Sequence[Any]]) -> list[LedgerRow]:
    return [_row(_fields(row)) for row in rows]


def _row(fields: Mapping[str, Any], transitions: Sequence[Transition] = ()) -> LedgerRow:
    given, output, reason = fields["input"], fields["output"], fields["reason"]
    return LedgerRow(
        request_id=fields["request_id"],
        caller_ref=fields["caller_ref"],
        operation=Operation(fields["operation"]),
        caller=fields["caller"],
        thing_id=fields["thing_id"],
        agent=fields["agent"],
        name=fields["name"],
        input=None if given is None else from_json(given),
        has_input=given is not None,
        state=State(fields["state"]),
        expires=fields["expires"],
        deadline_s=fields["deadline_s"],
        created=fields["created"],
        updated=fields["updated"],
        seq=fields["seq"],
        deadline=fields["deadline"],
        attempts=fields["attempts"],
        reason=None if reason is None else Reason(reason),
        error=fields["error"],
        output=None if output is None else from_json(output),
        progress=fields["progress"],
        transitions=transitions,
    )


def _status(row: Sequence[Any]) -> DeliveryStatus:
    request_id, caller_ref, seq, state, at, reason, error, output, progress = row
    return DeliveryStatus(
        request_id=request_id,
        state=State(state),
        caller_ref=caller_ref,
        reason=None if reason is None else Reason(reason),
        error=error,
        output=None if output is None else from_json(output),
        progress=progress,
        seq=seq,
        updated=at,
    )
