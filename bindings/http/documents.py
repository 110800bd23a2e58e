"""The documents of the wire: statuses, ActionStatus, requests, events of streams. camelCase begins here."""

from collections.abc import Mapping
from typing import Any

from bindings.http.problems import STATUSES, code_of
from runtime.ports import Publication, Request
from things.addresses import encode_segment
from things.delivery import DeliveryStatus, Reason, State
from things.documents import WOT_STATE
from things.messages import JSONValue
from things.times import parse_time, rfc3339


def request_document(request: Request) -> dict[str, JSONValue]:
    """What an agent is asked; without `input` where there is none."""
    members: dict[str, JSONValue] = {
        "operation": request.operation.value,
        "thingID": request.thing,
        "name": request.name,
        "requestID": request.request_id,
    }
    if request.payload:
        members["input"] = request.input
    members["expires"] = None if request.expires is None else rfc3339(request.expires)
    members["seq"] = request.seq
    return members


def publication_document(publication: Publication) -> dict[str, JSONValue]:
    """One publication of a long poll, like the data of a stream's event, with the row to go on from."""
    return {
        "rowID": publication.row_id,
        "thingID": publication.thing_id,
        "kind": publication.kind.value,
        "name": publication.name,
        "value": publication.value,
        "created": rfc3339(publication.created),
    }


def action_href(thing_id: str, name: str, request_id: str) -> str:
    """Where the status of an invocation is found."""
    return f"/things/{encode_segment(thing_id)}/actions/{encode_segment(name)}/{request_id}"


def action_status(status: DeliveryStatus, *, href: str, requested: int) -> dict[str, Any]:
    """The ActionStatus of the W3C HTTP Basic Profile, with our request id and state beside it."""
    found: dict[str, Any] = {
        "status": _action_state(status),
        "href": href,
        "timeRequested": rfc3339(requested),
        "requestID": status.request_id,
        "state": status.state.value,
    }
    if status.is_final and status.updated:
        found["timeEnded"] = rfc3339(status.updated)
    if status.progress is not None:
        found["progress"] = status.progress
    if status.output is not None:
        found["output"] = status.output
    code = code_of(status)
    if code is not None:
        found["error"] = {
            "type": f"urn:skep:error:{code}",
            "title": code,
            "status": STATUSES.get(code, 500),
            "detail": status.error or code,
            "code": code,
        }
    return found


def status_of(request: Mapping[str, Any]) -> DeliveryStatus:
    """The status that a request document of the ledger stands at."""
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
    )


def _action_state(status: DeliveryStatus) -> str:
    if status.state is State.COMPLETED and status.error is not None:
        return "failed"
    return WOT_STATE[status.state]
