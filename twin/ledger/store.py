"""Requests and their transitions: every action and property write with its whole life.

A row is committed before any method returns it; all that wait share one commit. `advance` is the only way to change a
state, by the table of `things.delivery`, decided in the writer thread, where nothing else runs. Sequence numbers rise
over all requests and are never used twice, also not after a purge. No operation reads more rows than it returns: each
has a (partial) index of its own.
"""

from asyncio import Future
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from sqlalchemy import Connection, select, text

from things.delivery import FINAL, DeliveryStatus, Reason, State
from things.errors import BadCursor, Conflict, UnknownRequest
from things.messages import JSONValue
from things.records import LedgerQuery, LedgerRow, Transition
from twin.database import Database, Prepared
from twin.ledger.changes import Advance, Changes, HandOver, Opening
from twin.ledger.recent_rows import Standing
from twin.ledger.rows import canonical, encoded, fields_of, opening, row_of, rows_of, seq_of, status_of
from twin.ledger.statements import COLUMNS, REQUESTS, WITH_LAST_STEP, Statements
from twin.ledger.steps import Step

_MARK = "ledger"
LAST_SEQ = f"""SELECT (SELECT max(seq) FROM transitions), (SELECT max(opened) FROM requests),
(SELECT value FROM marks WHERE name = '{_MARK}')"""
"""The greatest of these, without those that are NULL, is the last sequence number that was given."""
SET_LAST_SEQ = f"""INSERT INTO marks (name, value) VALUES ('{_MARK}', :seq)
ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
"""For a database that no runtime has open."""


class LedgerStore:
    """The ledger in the twin's database; made by `LedgerStore.load`."""

    def __init__(self, database: Database, seq: int) -> None:
        self._database = database
        self._seq = seq
        self._sql = Statements(database)
        self._known = Standing()
        self._together = self._carried_out  # the same object each time: parts of one kind are told by it
        database.when_undone(self._known.clear)

    @classmethod
    async def load(cls, database: Database) -> "LedgerStore":
        """Take up the ledger of a database."""

        def last_seq(connection: Connection) -> int:
            row = connection.execute(text(LAST_SEQ)).one()
            return max(number or 0 for number in row)

        return cls(database, await database.read(last_seq))

    @property
    def last_seq(self) -> int:
        """The highest sequence number given so far."""
        return self._seq

    def skip(self, count: int) -> None:
        """Leave out numbers that may have been given by a store that was shortened. Before anything is written."""
        self._seq += count

    # ------------------------------------------------------------ changes

    def open(self, row: LedgerRow) -> "Future[tuple[LedgerRow, bool]]":
        """Store a new request as pending. The same caller and reference with the same content: the standing row and
        False; with other content: raises (in the future) Conflict."""
        opening = Opening(row, encoded(row.input) if row.has_input else None)
        return self._database.submit_part(self._together, opening)

    def advance(
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
    ) -> "Future[Sequence[LedgerRow]]":
        """Take one step: the row as it stands afterwards. Where an agent's first word is a later state, `delivered` is
        recorded first: then two rows, one for each step. With `agent` given, only that agent's requests exist. Rows
        come without their transitions. Raises (in the future) UnknownRequest, IllegalStatus."""
        step = Step(state, now, reason, error, None if output is None else encoded(output), progress)
        return self._database.submit_part(
            self._together,
            Advance(request_id, agent, step),
            frees=state in FINAL,
            # The agent has it, and its answer often follows at once: both in one commit.
            soon=state is not State.DELIVERED,
        )

    def count_hand_over(self, request_ids: Sequence[str], *, by: int = 1) -> "Future[Collection[str]]":
        """Count a hand-over of each of these requests that still waits, before it takes place, so that it is known
        whatever happens then; or (-1) take back one that did not. The requests that were counted."""
        # Whoever takes back waits for nothing.
        return self._database.submit_part(self._together, HandOver(tuple(request_ids), by), frees=True, soon=by > 0)

    def supersede(
        self, thing_id: str, name: str, *, before: str, sparing: Collection[str] = (), now: int
    ) -> "Future[Sequence[LedgerRow]]":
        """Cancel (reason superseded) the property writes of this name that were opened before the request `before` and
        were never delivered, but those on their way to the agent (`sparing`); the rows that ended."""
        step = Step(State.CANCELLED, now, Reason.SUPERSEDED)

        def superseded(connection: Connection) -> Sequence[LedgerRow]:
            older = self._sql.queued_writes.rows(
                connection, thing_id=thing_id, name=name, opened=self._place(connection, before)
            )
            queued = [fields for fields in map(fields_of, older) if fields["request_id"] not in sparing]
            changes = Changes(connection, self._sql, self._known, self._seq)
            ended = [row_of(changes.take(fields, step)) for fields in queued]
            changes.write()
            self._seq = changes.seq
            return ended

        return self._database.submit(superseded, frees=True)

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

    async def oldest_waiting(self) -> int | None:
        """When the oldest row that is pending was made (µs UTC); None where none is."""
        oldest = text(
            "SELECT created FROM requests WHERE opened = (SELECT min(opened) FROM requests WHERE state = 'pending')"
        )
        found = await self._database.read(lambda connection: connection.execute(oldest).scalar())
        return None if found is None else int(found)

    async def due(self, now: int, *, limit: int) -> Sequence[LedgerRow]:
        """Rows whose clock has run out, earliest first: `expires` while never delivered, `deadline` afterwards (also
        of rows that went back to pending). They are not changed."""
        return await self._database.read(
            lambda connection: rows_of(self._sql.due.rows(connection, now=now, limit=limit))
        )

    async def next_due(self) -> int | None:
        """When the next such clock runs out; None while none runs."""

        def first(connection: Connection) -> int | None:
            found = self._sql.next_due.row(connection)
            return None if found is None else found[0]

        return await self._database.read(first)

    async def inbox(self, caller: str, *, after: int, limit: int, since: int = 0) -> Sequence[DeliveryStatus]:
        """Statuses of a caller's requests with seq above `after`, in order of seq; none of requests made before
        `since`."""

        def found(connection: Connection) -> list[DeliveryStatus]:
            given = {"caller": caller, "after": after, "limit": limit, "since": since}
            opened = self._sql.opened_after.rows(connection, **given)
            return [
                status_of(row)
                for row in islice(merge(opened, self._sql.inbox.rows(connection, **given), key=seq_of), limit)
            ]

        return await self._database.read(found)

    async def query(self, query: LedgerQuery) -> Sequence[LedgerRow]:
        """Rows with their transitions, newest first. Raises BadCursor where `before` names no request."""

        def found(connection: Connection) -> list[LedgerRow]:
            wanted = select(*COLUMNS).select_from(WITH_LAST_STEP)
            columns = REQUESTS.c
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
            return rows_of(statement.rows(connection, opened=opened, **parameters))

        return await self._database.read(found)

    def _place(self, connection: Connection, request_id: str) -> int:
        found = self._sql.place.row(connection, request_id=request_id)
        if found is None:
            raise UnknownRequest(request_id)
        return int(found[0])

    def _with_transitions(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> list[LedgerRow]:
        complete: list[LedgerRow] = []
        for row in rows:
            fields = fields_of(row)
            steps = self._sql.steps.rows(connection, opened=fields["opened"])
            transitions = (
                opening(fields),
                *(
                    Transition(seq=seq, state=State(state), at=at, reason=None if reason is None else Reason(reason))
                    for seq, state, at, reason in steps
                ),
            )
            complete.append(row_of(fields, transitions))
        return complete

    # ------------------------------------------------------------ in the writer thread

    def _carried_out(self, connection: Connection, asked: Sequence[Opening | Advance | HandOver]) -> Sequence[Any]:
        changes = Changes(connection, self._sql, self._known, self._seq)
        outcomes: list[Any] = []
        for one in asked:
            match one:
                case Opening():
                    outcomes.append(changes.open(one))
                case Advance():
                    outcomes.append(changes.advance(one))
                case HandOver():
                    outcomes.append(changes.count(one))
        changes.write()
        self._seq = changes.seq
        if changes.has_repeats:
            for index, one in enumerate(asked):
                if isinstance(one, Opening):
                    outcomes[index] = self._opened(connection, one, outcomes[index])
        return outcomes

    def _opened(self, connection: Connection, opening: Opening, outcome: tuple[LedgerRow, bool]) -> Any:
        """The outcome of an opening that may repeat another."""
        place = self._sql.place.row(connection, request_id=opening.row.request_id)
        if place is not None and place[0] == outcome[0].seq:
            return outcome
        try:
            return self._standing(connection, opening.row, opening.given), False
        except Conflict as refusal:
            return refusal

    def _standing(self, connection: Connection, row: LedgerRow, given: str | None) -> LedgerRow:
        found = self._sql.by_reference.row(connection, caller=row.caller, caller_ref=row.caller_ref)
        if found is None:
            raise Conflict(f"request id {row.request_id!r} is in use")
        fields = fields_of(found)
        same = (
            fields["operation"] == row.operation.value
            and fields["thing_id"] == row.thing_id
            and fields["name"] == row.name
            and canonical(fields["input"]) == canonical(given)
        )
        standing = self._with_transitions(connection, [found])[0]
        if not same or not (row.authority is None or standing.is_asked_by(row.authority.principal)):
            raise Conflict(f"reference {row.caller_ref!r} was used for another request")
        return standing
