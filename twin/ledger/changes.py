"""What one group of writers changes: requests opened and steps taken, written by a few statements for all of them.

Everything here runs in the writer thread, in one transaction. Until `write` has run its statements, what was asked for
is known here only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from things.delivery import FINAL, REPORTABLE, State, is_legal
from things.errors import IllegalStatus, SkepError, UnknownRequest
from things.records import LedgerRow
from twin.ledger.recent_rows import Standing
from twin.ledger.rows import columns_of, fields_of, fields_of_new, opened, row_of
from twin.ledger.statements import Statements
from twin.ledger.steps import Step, changes, has_run_out


class Opening(NamedTuple):
    """A request to be stored, and its input as JSON."""

    row: LedgerRow
    given: str | None


class Advance(NamedTuple):
    """A step to be taken; with `agent` given, only by a request of that agent's."""

    request_id: str
    agent: str | None
    step: Step


class HandOver(NamedTuple):
    """Requests that are about to be handed over (1), or were not after all (-1)."""

    request_ids: Sequence[str]
    by: int


class Changes:
    """The changes of one group."""

    __slots__ = ("_changed", "_connection", "_opened", "_sql", "_standing", "_steps", "has_repeats", "seq")

    def __init__(self, connection: Connection, sql: Statements, standing: Standing, seq: int) -> None:
        self.seq = seq
        """The last number given."""
        self.has_repeats = False
        """Some of the opened requests were not stored, since others stand under their references or ids."""
        self._connection = connection
        self._sql = sql
        self._standing = standing
        self._opened: list[dict[str, Any]] = []
        self._changed: dict[str, dict[str, Any]] = {}
        self._steps: list[tuple[Any, ...]] = []

    def open(self, opening: Opening) -> tuple[LedgerRow, bool]:
        """Store a request as pending."""
        self.seq += 1
        self._opened.append(fields_of_new(opening.row, opening.given, self.seq))
        return opened(opening.row, self.seq), True

    def advance(self, asked: Advance) -> list[LedgerRow] | SkepError:
        """Take a step, or say why it cannot be."""
        step, agent = asked.step, asked.agent
        fields = self._found(asked.request_id)
        if fields is None or (agent is not None and fields["agent"] != agent):
            return UnknownRequest(asked.request_id)
        current = State(fields["state"])
        # The agent's word is proof that it has the request, even if its receipt was lost.
        is_first_word = (
            current is State.PENDING
            and step.state in REPORTABLE
            and (agent is not None or not is_legal(current, step.state))
        )
        if not is_first_word and (not is_legal(current, step.state) or not has_run_out(fields, step)):
            return IllegalStatus(asked.request_id, current.value, step.state.value)
        rows = []
        if is_first_word:
            fields = self.take(fields, Step(State.DELIVERED, step.now))
            rows.append(row_of(fields))
        rows.append(row_of(self.take(fields, step)))
        return rows

    def count(self, asked: HandOver) -> list[str]:
        """Count a hand-over of each request that still waits; those that do."""
        counted = []
        for request_id in asked.request_ids:
            fields = self._found(request_id)
            if fields is not None and fields["state"] == State.PENDING and fields["attempts"] + asked.by >= 0:
                self._changed[request_id] = {**fields, "attempts": fields["attempts"] + asked.by}
                counted.append(request_id)
        return counted

    def take(self, fields: dict[str, Any], step: Step) -> dict[str, Any]:
        """Let a request take a step; the request afterwards."""
        self.seq += 1
        after = {**fields, **changes(fields, step, self.seq)}
        after["reason"] = None if step.reason is None else step.reason.value
        after["error"], after["output"] = step.error, step.output
        self._changed[after["request_id"]] = after
        self._steps.append(
            (
                *(self.seq, after["opened"], after["caller"], after["state"], step.now),
                *(after["reason"], step.error, step.output, after["progress"]),
            )
        )
        return after

    def write(self) -> None:
        """Run the statements."""
        changed, new = self._changed, self._opened
        if changed:
            self._sql.change.run(self._connection, [columns_of(fields) for fields in changed.values()])
            if self._steps:
                self._sql.record.run(self._connection, self._steps)
            for request_id, fields in changed.items():
                if fields["state"] in FINAL:
                    self._standing.drop(request_id)
                else:
                    self._standing.keep(fields)
            self._changed, self._steps = {}, []
        if new:
            if self._sql.open.run(self._connection, [columns_of(fields) for fields in new]) < len(new):
                self.has_repeats = True
            else:
                for fields in new:
                    self._standing.keep(fields)
            self._opened = []

    def _found(self, request_id: str) -> dict[str, Any] | None:
        fields = self._changed.get(request_id) or self._standing.get(request_id)
        if fields is None:
            if self._opened:
                self.write()  # it may be one of them
            row = self._sql.by_id.row(self._connection, request_id=request_id)
            fields = None if row is None else fields_of(row)
        return fields
