"""The event streams of this API as AsyncAPI 3; what other bindings offer is merged in by the composition root."""

from collections.abc import Mapping
from typing import Any

_VALUE = {
    "type": "object",
    "required": ["thingID", "kind", "name", "value", "created"],
    "properties": {
        "thingID": {"type": "string"},
        "kind": {"enum": ["property", "event", "td", "action"]},
        "name": {"type": "string"},
        "value": {},
        "created": {"type": "string", "format": "date-time"},
    },
}
_STATUS = {
    "type": "object",
    "required": ["requestID", "state", "seq", "updated"],
    "properties": {
        "requestID": {"type": "string"},
        "callerRef": {"type": "string"},
        "state": {
            "enum": ["pending", "delivered", "waiting", "running", "applied", "completed", "failed", "cancelled"]
        },
        "reason": {"type": "string"},
        "error": {"type": "string"},
        "output": {},
        "progress": {"type": "number", "minimum": 0, "maximum": 100},
        "seq": {"type": "integer"},
        "updated": {"type": "string", "format": "date-time"},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["operation", "thingID", "name", "requestID", "seq"],
    "properties": {
        "operation": {"enum": ["invoke_action", "write_property", "call_rpc", "cancel"]},
        "thingID": {"type": "string"},
        "name": {"type": "string"},
        "requestID": {"type": "string"},
        "input": {},
        "expires": {"type": ["string", "null"], "format": "date-time"},
        "seq": {"type": "integer"},
    },
}
_CHANGE = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}

_STREAMS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    # name: address, what it carries, payload
    "stream": ("/stream", "Values, events, descriptions and progress of many Things", _VALUE),
    "property": ("/things/{id}/properties/{name}", "Values of one property, bare", {}),
    "event": ("/things/{id}/events/{name}", "Data of one event, bare", {}),
    "inbox": ("/inbox", "Statuses of the caller's own requests", _STATUS),
    "agentRequests": ("/agent/requests", "Requests for the agent's Things", _REQUEST),
    "directory": ("/events/{type}", "Changes of the directory", _CHANGE),
}


def asyncapi(base: str, others: Mapping[str, Any]) -> dict[str, Any]:
    """The document; `others` may bring `servers`, `channels` and `operations` of other bindings."""
    scheme, _, host = base.partition("://")
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, (address, title, payload) in _STREAMS.items():
        parameters = {part[1:-1]: {"description": part[1:-1]} for part in address.split("/") if part.startswith("{")}
        channels[name] = {
            "address": address,
            "title": title,
            "servers": [{"$ref": "#/servers/http"}],
            **({"parameters": parameters} if parameters else {}),
            "messages": {"event": {"contentType": "application/json", "payload": dict(payload)}},
        }
        operations[f"receive-{name}"] = {"action": "send", "channel": {"$ref": f"#/channels/{name}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "skep", "version": "1", "description": "Event streams of a digital-twin runtime."},
        "servers": {
            "http": {
                "host": host,
                "protocol": scheme,
                "description": "Server-sent events; the same paths answer long polls with ?wait=N.",
                "security": [{"type": "http", "scheme": "bearer"}],
            },
            "websocket": {
                "host": host,
                "protocol": scheme.replace("http", "ws"),
                "description": "WebSockets of other bindings.",
                "security": [{"type": "http", "scheme": "bearer"}],
            },
            **others.get("servers", {}),
        },
        "channels": channels | dict(others.get("channels", {})),
        "operations": operations | dict(others.get("operations", {})),
    }
