"""The node's part of the AsyncAPI description: its channels, and every kind of message they carry, each with an
example."""

from collections.abc import Mapping
from typing import Any

from bindings.messaging_node.relay import SESSION
from things.envelopes import CODES, MAX_ADDRESS_CHARS, MAX_ID_CHARS, REQUESTS

_ID = {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": MAX_ID_CHARS}]}
_ADDRESS = {"type": "string", "minLength": 1, "maxLength": MAX_ADDRESS_CHARS}
_REFUSED = sorted({*CODES.values(), 400, 501})


def _envelope(type_: Mapping[str, Any], body: Mapping[str, Any], to: Mapping[str, Any] = _ADDRESS) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["id", "type", "from", "to"],
        "properties": {"id": _ID, "type": type_, "from": _ADDRESS, "to": to, "body": {"type": "object", **body}},
    }


def _members(**properties: Any) -> dict[str, Any]:
    return {"properties": properties}


_MESSAGES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: what it is, payload, example
    "session": (
        "Opens, takes up again or closes the session; `from` is the runtime's URL, or for re-open the session's",
        _envelope({"enum": ["open", "re-open", "close"]}, _members(accessToken={"type": "string"}), {"const": SESSION}),
        {"id": 1, "type": "open", "from": "hyperty-runtime://localhost/r1", "to": SESSION},
    ),
    "request": (
        "A message that waits for a response",
        _envelope(
            {"enum": sorted(REQUESTS)},
            _members(
                resource={},
                resources={"type": "array", "items": _ADDRESS},
                value={},
                attribute={"type": "string"},
                method={"type": "string"},
                params={},
                source=_ADDRESS,
                accessToken={"type": "string"},
                idToken={"type": "string"},
                confirmation={"type": "string"},
            ),
        ),
        {
            "id": 2,
            "type": "subscribe",
            "from": "hyperty-runtime://localhost/r1/sm",
            "to": "domain://msg-node.localhost/sm",
            "body": {"resources": ["thing://localhost/greenhouse/bed-1/changes"]},
        },
    ),
    "response": (
        "The answer to a request: 100 is provisional and followed by another",
        _envelope(
            {"const": "response"},
            {
                "required": ["code"],
                **_members(
                    code={"type": "integer", "examples": [100, 200, *_REFUSED]},
                    value={},
                    description={"type": "string"},
                    desc={"type": "string"},
                    error={"type": "string", "description": "the stable code of a refusal"},
                    runtimeToken={"type": "string"},
                ),
            },
        ),
        {
            "id": 2,
            "type": "response",
            "from": "domain://msg-node.localhost/sm",
            "to": "hyperty-runtime://localhost/r1/sm",
            "body": {"code": 200},
        },
    ),
    "news": (
        "A change of an object or Thing, told to `…/changes` and its like; answered by nobody",
        _envelope(
            {"enum": ["create", "update", "delete"]},
            _members(
                attribute={"type": "string"},
                value={},
                attributeType={"const": "array"},
                operation={"enum": ["add", "remove"]},
                version={"type": "integer"},
                lastModified={"type": "string", "format": "date-time"},
            ),
        ),
        {
            "id": 7,
            "type": "update",
            "from": "thing://localhost/greenhouse/bed-1",
            "to": "thing://localhost/greenhouse/bed-1/changes",
            "body": {"attribute": "moisture", "value": 41.5, "lastModified": "2026-01-01T12:00:00Z"},
        },
    ),
    "other": (
        "A message of any other type, routed as it is",
        _envelope({"type": "string", "maxLength": 64}, {}),
        {"id": 8, "type": "ping", "from": "hyper-1", "to": "hyperty://localhost/2b1f"},
    ),
}

_CHANNELS: Mapping[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    # name: address, what it is, query, messages
    "node": (
        "/ws",
        "Messages of a runtime; the first opens its session",
        {},
        ("session", "request", "response", "news", "other"),
    ),
    "nodeStub": (
        "/stub/connect",
        'The same without a handshake; {"cmd": "disconnect"} frees the session',
        {"type": "object", "required": ["runtimeURL"], "properties": {"runtimeURL": _ADDRESS}},
        ("request", "response", "news", "other"),
    ),
}


def described() -> dict[str, Any]:
    """Channels and operations, to be merged into the whole document."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, (address, title, query, carried) in _CHANNELS.items():
        channels[name] = {
            "address": address,
            "title": title,
            "servers": [{"$ref": "#/servers/websocket"}],
            "messages": {one: _message(one) for one in carried},
            "bindings": {"ws": {"method": "GET", **({"query": query} if query else {})}},
        }
        channel = f"#/channels/{name}"
        sent = [one for one in carried if one != "news"]
        received = [one for one in carried if one != "session"]
        operations[f"send-{name}"] = _operation("receive", channel, [*sent, "news"])
        operations[f"receive-{name}"] = _operation("send", channel, received)
    return {"channels": channels, "operations": operations}


def _message(name: str) -> dict[str, Any]:
    summary, payload, example = _MESSAGES[name]
    return {
        "name": name,
        "summary": summary,
        "contentType": "application/json",
        "payload": payload,
        "examples": [{"payload": example}],
    }


def _operation(action: str, channel: str, messages: list[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{name}"} for name in messages],
    }
