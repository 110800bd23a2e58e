"""The web thing protocol's part of the AsyncAPI description: its channel and the messages it carries."""

from collections.abc import Mapping
from typing import Any

from bindings.websocket.messages import MAX_ID_CHARS, SUBPROTOCOL

CHANNEL = "webThings"
_ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}
_TIME = {"type": "string", "format": "date-time"}


def _envelope(type_: str, required: tuple[str, ...] = (), **members: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["thingID", "messageID", "messageType", "operation", *required],
        "properties": {
            "thingID": {"type": "string"},
            "messageID": _ID,
            "messageType": {"const": type_},
            "operation": {"type": "string", "maxLength": MAX_ID_CHARS},
            "correlationID": _ID,
            "timestamp": _TIME,
            "name": {"type": "string"},
            **members,
        },
    }


_MESSAGES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: what it is, payload, example
    "request": (
        "What a consumer asks, what an agent publishes of its Things (`exposething`), what an agent is asked",
        _envelope(
            "request",
            names={"type": "array", "items": {"type": "string"}},
            value={},
            values={"type": "object"},
            input={},
            actionID={"type": "string"},
            td={"type": "object"},
            wait={"type": "number", "minimum": 0},
            expiresIn={"type": "number", "minimum": 0},
            expires=_TIME,
            after={"type": "integer", "minimum": 0},
            confirmation={"type": "string"},
        ),
        {
            "thingID": "dtw:kitchen:kettle",
            "messageID": "1",
            "messageType": "request",
            "operation": "invokeaction",
            "name": "boil",
            "input": 95,
            "correlationID": "tea",
        },
    ),
    "response": (
        "The answer to a request, joined to it by correlationID",
        _envelope(
            "response",
            value={},
            values={"type": "object"},
            output={},
            status={"type": "object"},
            statuses={"type": "object"},
            actionID={"type": "string"},
            error={"type": "object", "required": ["status", "title"]},
        ),
        {
            "thingID": "dtw:kitchen:kettle",
            "messageID": "2",
            "messageType": "response",
            "operation": "invokeaction",
            "name": "boil",
            "status": {"actionID": "0199", "state": "pending", "deliveryState": "pending"},
            "timestamp": "2026-01-31T12:00:00Z",
            "correlationID": "tea",
        },
    ),
    "notification": (
        "Values, events and statuses that were asked for; an agent's own values and events",
        _envelope("notification", value={}, data={}, status={"type": "object"}),
        {
            "thingID": "dtw:kitchen:kettle",
            "messageID": "3",
            "messageType": "notification",
            "operation": "observeproperty",
            "name": "temperature",
            "value": 41.5,
            "timestamp": "2026-01-31T12:00:01Z",
        },
    ),
}


def described(address: str) -> dict[str, Any]:
    """Channel and operations, to be merged into the whole document."""
    channel = f"#/channels/{CHANNEL}"
    references = [{"$ref": f"{channel}/messages/{name}"} for name in _MESSAGES]
    headers = {"type": "object", "properties": {"Sec-WebSocket-Protocol": {"const": SUBPROTOCOL}}}
    return {
        "channels": {
            CHANNEL: {
                "address": address,
                "title": "Reading, acting, observing and exposing Things over one socket",
                "servers": [{"$ref": "#/servers/websocket"}],
                "messages": {
                    name: {
                        "name": name,
                        "summary": summary,
                        "contentType": "application/json",
                        "payload": payload,
                        "examples": [{"payload": example}],
                    }
                    for name, (summary, payload, example) in _MESSAGES.items()
                },
                "bindings": {"ws": {"method": "GET", "headers": headers}},
            }
        },
        "operations": {
            f"send-{CHANNEL}": {"action": "receive", "channel": {"$ref": channel}, "messages": references},
            f"receive-{CHANNEL}": {"action": "send", "channel": {"$ref": channel}, "messages": references},
        },
    }
