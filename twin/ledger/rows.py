"""What the database holds of a request, as records and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from things.delivery import DeliveryStatus, Reason, State
from things.identity import AccountType, Authority, Principal
from things.messages import JSONValue, Operation
from things.records import LedgerRow, Transition
from twin.ledger.statements import FIELDS, OWN_COLUMNS


def opening(fields: Mapping[str, Any]) -> Transition:
    """The first step, which is the row itself."""
    return Transition(seq=fields["opened"], state=State.PENDING, at=fields["created"])


def seq_of(row: Sequence[Any]) -> int:
    """The number of a step, in the rows from which `status_of` makes statuses."""
    return int(row[2])


def encoded(value: JSONValue) -> str:
    """A value as JSON text."""
    return to_json(value).decode()


def canonical(text_: str | None) -> str | None:
    """One spelling for equal JSON; keeps 1, 1.0 and true apart, as Python's own comparison does not."""
    return None if text_ is None else json.dumps(from_json(text_), sort_keys=True)


def fields_of(row: Sequence[Any]) -> dict[str, Any]:
    """A row of `COLUMNS` by name."""
    return dict(zip(FIELDS, row, strict=True))


def fields_of_new(row: LedgerRow, given: str | None, seq: int) -> dict[str, Any]:
    """A new request by name, its input as JSON; `seq` is its place."""
    return {
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
        "attempts": row.attempts,
        "progress": None,
        "seq": seq,
        "authority": None if row.authority is None else _authority_text(row.authority),
    }


def columns_of(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of the table, in its order, of a request by name."""
    return tuple(fields.values())[:OWN_COLUMNS]


def opened(row: LedgerRow, seq: int) -> LedgerRow:
    """A new request as it is stored at its place."""
    return replace(row, seq=seq, transitions=(Transition(seq=seq, state=State.PENDING, at=row.created),))


def rows_of(rows: Iterable[Sequence[Any]]) -> list[LedgerRow]:
    """Ledger rows without their transitions."""
    return [row_of(fields_of(row)) for row in rows]


def row_of(fields: Mapping[str, Any], transitions: Sequence[Transition] = ()) -> LedgerRow:
    """A ledger row."""
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
        authority=None if fields["authority"] is None else _authority(fields["authority"]),
    )


@lru_cache(maxsize=1_024)
def _authority_text(authority: Authority) -> str:
    """The same few callers ask again and again."""
    return to_json(asdict(authority)).decode()


@lru_cache(maxsize=1_024)
def _authority(text_: str) -> Authority:
    stored = from_json(text_)
    principal = stored.pop("principal")
    return Authority(principal=Principal(**{**principal, "type": AccountType(principal["type"])}), **stored)


def status_of(row: Sequence[Any]) -> DeliveryStatus:
    """A status, of a row of the inbox."""
    request_id, caller_ref, seq, state, at, reason, error, output, progress, requested = row
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
        requested=requested,
    )
