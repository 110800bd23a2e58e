"""The documents of the wire: statuses, ActionStatus, requests, events of streams. camelCase begins here."""

from runtime.ports import Publication, Request
from things.addresses import encode_segment
from things.delivery import DeliveryStatus
from things.documents import action_progress, wot_state
from things.messages import JSONValue
from things.times import rfc3339


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


def action_status(status: DeliveryStatus, *, href: str) -> dict[str, JSONValue]:
    """The ActionStatus of the W3C HTTP Basic Profile, with our request id and state beside it."""
    return {
        "status": wot_state(status),
        "href": href,
        "timeRequested": rfc3339(status.requested),
        "requestID": status.request_id,
        "state": status.state.value,
        **action_progress(status),
    }
