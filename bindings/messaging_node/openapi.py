"""The node's part of the OpenAPI description: one exchange is one message and its response."""

from typing import Any

_BODY = {"content": {"application/json": {"schema": {"type": "object"}}}}
_ADDRESS = {
    "name": "address",
    "in": "path",
    "required": True,
    "description": "a node address, percent-encoded",
    "schema": {"type": "string"},
}
_ATTRIBUTE = {"name": "attribute", "in": "query", "description": "of a read", "schema": {"type": "string"}}
_VERBS = {"get": "read", "post": "create", "put": "update", "delete": "delete"}


def described() -> dict[str, Any]:
    """Paths, to be merged into the whole document."""
    of_address = {verb: _operation(f"{type_} of an address", has_body=verb != "get") for verb, type_ in _VERBS.items()}
    of_address["get"]["parameters"] = [_ATTRIBUTE]
    return {
        "paths": {
            "/node/messages": {"post": _operation("One message of the node, answered by its response", has_body=True)},
            "/node/{address}": {"parameters": [_ADDRESS], **of_address},
        }
    }


def _operation(summary: str, *, has_body: bool) -> dict[str, Any]:
    return {
        "summary": summary,
        "tags": ["node"],
        **({"requestBody": _BODY} if has_body else {}),
        "responses": {
            "200": {"description": "the response's body, whose code is the status", **_BODY},
            "202": {"description": "an update, which nobody answers"},
            "504": {"description": "no response came in time", **_BODY},
            "default": {"description": "a refusal: code, description and error", **_BODY},
        },
        "security": [{"bearer": []}, {"basic": []}],
    }
