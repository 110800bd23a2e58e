"""How requests and statuses are written on the wire, alike on every binding."""

from collections.abc import Mapping
from typing import Any

from things.delivery import DeliveryStatus, Reason, State
from things.messages import JSONValue
from things.problems import failure
from things.records import LedgerRow
from things.times import parse_time, rfc3339

WOT_STATE: dict[State, str] = {
    State.PENDING: "pending",
    State.DELIVERED: "pending",
    State.WAITING: "pending",
    State.RUNNING: "running",
    State.APPLIED: "running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "failed",
}
"""States of the Web of Things' ActionStatus, for what has not failed."""


def status_document(status: DeliveryStatus) -> dict[str, JSONValue]:
    """A status as inboxes carry it; members that say nothing are left out."""
    document: dict[str, JSONValue] = {
        "requestID": status.request_id,
        "callerRef": status.caller_ref,
        "state": status.state,
        "reason": status.reason,
        "error": status.error,
        "progress": status.progress,
    }
    document = {name: value for name, value in document.items() if value is not None}
    if status.output is not None or status.is_success:
        document["output"] = status.output
    document["seq"] = status.seq
    document["updated"] = rfc3339(status.updated)
    return document


def status_of(request: Mapping[str, Any]) -> DeliveryStatus:
    """The status that a request document stands at."""
    return DeliveryStatus(
        request_id=request["requestID"],
        state=State(request["state"]),
        caller_ref=request.get("callerRef"),
        reason=Reason(request["reason"]) if request.get("reason") else None,
        error=request.get("error"),
        output=request.get("output"),
        progress=request.get("progress"),
        seq=request["seq"],
        updated=parse_time(request["updated"]),
        requested=parse_time(request["created"]),
    )


def action_progress(status: DeliveryStatus) -> dict[str, JSONValue]:
    """How far an invocation is, as the Web of Things' ActionStatus tells: when it ended, progress, output, error."""
    found: dict[str, JSONValue] = {}
    if status.is_final and status.updated:
        found["timeEnded"] = rfc3339(status.updated)
    if status.progress is not None:
        found["progress"] = status.progress
    if status.output is not None:
        found["output"] = status.output
    error = failure(status)
    if error is not None:
        found["error"] = error
    return found


def wot_state(status: DeliveryStatus) -> str:
    """The state of an ActionStatus; completed with an error is `failed` there."""
    return "failed" if failure(status) is not None else WOT_STATE[status.state]


def request_document(row: LedgerRow) -> dict[str, JSONValue]:
    """A ledger row with its whole life."""
    document: dict[str, JSONValue] = {
        "requestID": row.request_id,
        "callerRef": row.caller_ref,
        "operation": row.operation,
        "caller": row.caller,
        "binding": row.authority.binding or None if row.authority is not None else None,
        "thingID": row.thing_id,
        "name": row.name,
        "input": row.input,
        "state": row.state,
        "reason": row.reason,
        "error": row.error,
        "output": row.output,
        "progress": row.progress,
        "attempts": row.attempts,
        "expires": rfc3339(row.expires) if row.expires is not None else None,
        "deadline": rfc3339(row.deadline) if row.deadline is not None else None,
        "created": rfc3339(row.created),
        "updated": rfc3339(row.updated),
        "seq": row.seq,
    }
    transitions: list[JSONValue] = [
        {
            "seq": step.seq,
            "state": step.state,
            "at": rfc3339(step.at),
            **({"reason": step.reason} if step.reason else {}),
        }
        for step in row.transitions
    ]
    document["transitions"] = transitions
    return document
