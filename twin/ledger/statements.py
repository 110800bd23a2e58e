"""The ledger's tables and statements. Every read has a (partial) index of its own."""

from typing import Any

from sqlalchemy import bindparam, func, null, select, text

from twin.database import Database, Prepared
from twin.statements import Rows, inserting
from twin.tables import MarkRow, RequestRow, TransitionRow, table

REQUESTS = table(RequestRow)
TRANSITIONS = table(TransitionRow)
MARKS = table(MarkRow)
COLUMNS = (
    *REQUESTS.c,
    TRANSITIONS.c.reason.label("reason"),
    TRANSITIONS.c.error.label("error"),
    TRANSITIONS.c.output.label("output"),
)
FIELDS = tuple(column.name for column in COLUMNS)
OWN_COLUMNS = len(REQUESTS.c)
"""So many of the fields, from the first on, are the table's."""
# The first step, to pending, is the row itself: `opened` is its number and `created` its time.
WITH_LAST_STEP = REQUESTS.outerjoin(TRANSITIONS, TRANSITIONS.c.seq == REQUESTS.c.seq)


class Statements:
    """The ledger's statements, compiled once for the database's dialect."""

    def __init__(self, database: Database) -> None:
        r, t = REQUESTS.c, TRANSITIONS.c
        whole = select(*COLUMNS).select_from(WITH_LAST_STEP)
        limit: Any = bindparam("limit")
        pending = r.state == text("'pending'")

        def prepared(statement: Any) -> Prepared:
            return Prepared(statement, database.engine)

        insert = inserting(database.engine)
        engine = database.engine
        self.open = Rows(insert(REQUESTS).on_conflict_do_nothing(), engine)
        self.record = Rows(insert(TRANSITIONS), engine)
        standing = insert(REQUESTS)
        changing = ("state", "deadline", "due", "updated", "attempts", "progress", "seq")
        # An update that takes whole rows, since of rows a statement takes many.
        self.change = Rows(
            standing.on_conflict_do_update(
                index_elements=["opened"], set_={name: standing.excluded[name] for name in changing}
            ),
            engine,
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
            select(r.request_id, r.caller_ref, t.seq, t.state, t.at, t.reason, t.error, t.output, t.progress, r.created)
            .where(t.opened == r.opened, t.caller == bindparam("caller"), t.seq > bindparam("after"))
            .where(r.created >= bindparam("since"))
            .order_by(t.seq)
            .limit(limit)
        )
        self.opened_after = prepared(
            select(r.request_id, r.caller_ref, r.opened, text("'pending'"), r.created)
            .add_columns(null(), null(), null(), null(), r.created)
            .where(r.caller == bindparam("caller"), r.opened > bindparam("after"))
            .where(r.created >= bindparam("since"))
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
        self.forget_transitions = prepared(TRANSITIONS.delete().where(t.opened == bindparam("opened")))
        self.forget_request = prepared(REQUESTS.delete().where(r.opened == bindparam("opened")))
        mark = insert(MARKS)
        self.mark = prepared(mark.on_conflict_do_update(index_elements=["name"], set_={"value": mark.excluded.value}))
