"""What goes into the lake beside readings: TD versions, presence, finished requests; above the mark of each table."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from things.delivery import FINAL
from things.lake import PRESENCE, REQUESTS, THINGS
from twin.database import Database
from twin.tables import PresenceRow, RequestRow, TDVersionRow, TransitionRow, table

MAX_ROWS = 50_000
"""Of one table in one sealing; the rest goes with the next."""

_VERSIONS, _PRESENCE = table(TDVersionRow), table(PresenceRow)
_REQUESTS, _TRANSITIONS = table(RequestRow), table(TransitionRow)


async def beside(database: Database, marks: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
    """Batches `{"table", "mark", "rows"}` for `Sealer.seal`; times are µs UTC. Empty ones are left out."""

    def found(connection: Connection) -> list[Mapping[str, Any]]:
        batches = (
            _batch(THINGS, "published", _versions(connection, marks.get(THINGS, 0))),
            _batch(PRESENCE, "change", _changes(connection, marks.get(PRESENCE, 0))),
            _batch(REQUESTS, "seq", _finished(connection, marks.get(REQUESTS, 0))),
        )
        return [batch for batch in batches if batch["rows"]]

    return await database.read(found)


def _batch(name: str, counter: str, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    mark = max((row[counter] for row in rows), default=0)
    if counter != "published":
        for row in rows:
            del row[counter]
    return {"table": name, "mark": mark, "rows": rows}


def _versions(connection: Connection, after: int) -> list[dict[str, Any]]:
    wanted = (
        select(_VERSIONS.c.thing_id, _VERSIONS.c.version, _VERSIONS.c.published, _VERSIONS.c.td)
        .where(_VERSIONS.c.published > after, _VERSIONS.c.td.is_not(None))
        .order_by(_VERSIONS.c.published)
        .limit(MAX_ROWS)
    )
    return [
        {"thing_id": thing_id, "td_version": version, "published": published, "td": td}
        for thing_id, version, published, td in connection.execute(wanted)
    ]


def _changes(connection: Connection, after: int) -> list[dict[str, Any]]:
    wanted = select(_PRESENCE).where(_PRESENCE.c.change > after).order_by(_PRESENCE.c.change).limit(MAX_ROWS)
    return [
        {"change": change, "agent_id": agent, "online": bool(online), "at": at}
        for change, agent, online, at in connection.execute(wanted)
    ]


def _finished(connection: Connection, after: int) -> list[dict[str, Any]]:
    columns = (
        _REQUESTS.c.seq,
        _REQUESTS.c.request_id,
        _REQUESTS.c.operation,
        _REQUESTS.c.thing_id,
        _REQUESTS.c.name,
        _REQUESTS.c.caller,
        _REQUESTS.c.state,
        _TRANSITIONS.c.reason,
        _TRANSITIONS.c.error,
        _REQUESTS.c.created,
        _REQUESTS.c.updated,
    )
    # The last transition of a request is its final one, and its number its place in the mark.
    wanted = (
        select(*columns)
        .where(_TRANSITIONS.c.seq == _REQUESTS.c.seq, _TRANSITIONS.c.seq > after)
        .where(_TRANSITIONS.c.state.in_([state.value for state in FINAL]))
        .order_by(_TRANSITIONS.c.seq)
        .limit(MAX_ROWS)
    )
    return [dict(row._mapping) for row in connection.execute(wanted)]
