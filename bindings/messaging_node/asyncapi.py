"""The node's part of the AsyncAPI description: its channels and the message they carry."""

from typing import Any

_TYPES = ("create", "read", "update", "delete", "subscribe", "unsubscribe", "execute", "forward", "response", "open")

_ENVELOPE = {
    "type": "object",
    "required": ["id", "from", "to"],
    "properties": {
        "id": {"type": ["integer", "string"]},
        "type": {
            "type": "string",
            "examples": [*_TYPES],
        },
        "from": {"type": "string", "minLength": 1, "maxLength": 1024},
        "to": {"type": "string", "minLength": 1, "maxLength": 1024},
        "body": {
            "type": "object",
            "properties": {"code": {"type": "integer"}, "value": {}, "resource": {}, "accessToken": {"type": "string"}},
        },
    },
}

_CHANNELS = {
    "node": ("/ws", "Messages of a runtime; the first opens its session", {}),
    "nodeStub": (
        "/stub/connect",
        "The same without a handshake",
        {
            "type": "object",
            "required": ["runtimeURL"],
            "properties": {"runtimeURL": {"type": "string", "minLength": 1, "maxLength": 1024}},
        },
    ),
}


def described() -> dict[str, Any]:
    """Channels and operations, to be laid into the whole document."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, (address, title, query) in _CHANNELS.items():
        channels[name] = {
            "address": address,
            "title": title,
            "messages": {"message": {"name": "message", "contentType": "application/json", "payload": _ENVELOPE}},
            "bindings": {"ws": {"method": "GET", **({"query": query} if query else {})}},
        }
        reference = {"$ref": f"#/channels/{name}"}
        operations[f"send-{name}"] = {"action": "receive", "channel": reference}
        operations[f"receive-{name}"] = {"action": "send", "channel": reference}
    return {"channels": channels, "operations": operations}
