"""The description of this API as OpenAPI 3.1, made from the routes themselves, and documents given from outside."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp

from bindings.http.asyncapi import asyncapi
from bindings.http.exchange import JSON, LD_JSON, Exchange, json_reply
from bindings.http.routing import Documented, Endpoint, Route
from bindings.web.refusals import PROBLEM_JSON

ASYNCAPI = "/asyncapi.json"
OPENAPI = "/openapi.json"
_DOCUMENT = Documented(tag="documents", answers={200: JSON})


def routes(described: Sequence[Route], documents: Mapping[str, Any]) -> list[Route]:
    """`/openapi.json` and `/asyncapi.json`, and every given document at its path."""

    async def streams(exchange: Exchange) -> ASGIApp:
        others = documents.get(ASYNCAPI, {})
        return json_reply(asyncapi(exchange.urls.base or "", others), cache_control="no-cache")

    found = [
        Route("GET", ASYNCAPI, streams, "The event streams", public=True, documented=_DOCUMENT),
        Route(
            "GET",
            OPENAPI,
            _serving(lambda: openapi(described, documents.get(OPENAPI, {})), JSON),
            "This description",
            public=True,
            documented=_DOCUMENT,
        ),
    ]
    for path, document in documents.items():
        if path in (ASYNCAPI, OPENAPI):
            continue  # merged into ours
        media_type = LD_JSON if path.endswith(".jsonld") else JSON
        found.append(Route("GET", path, _serving(_constant(document), media_type), "A document", public=True))
    return found


def openapi(described: Sequence[Route], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The OpenAPI document of these routes; `others` may bring `paths` of other bindings."""
    paths: dict[str, dict[str, Any]] = dict((others or {}).get("paths", {}))
    for route in described:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "skep",
            "version": "1",
            "description": "Digital twins over HTTPS: directory, values, actions, streams and history.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "__Host-skep"},
            },
            "schemas": {"Problem": _PROBLEM},
            "responses": {
                "Problem": {
                    "description": "Refused, and why (RFC 9457)",
                    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
        "security": [{"bearer": []}, {"basic": []}, {"cookie": []}],
    }


_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "requestID": {"type": "string"},
        "state": {"type": "string"},
        "confirmation": {
            "type": "string",
            "description": "Of 428: the same request with this as X-Confirmation is carried out, once",
        },
        "expiresIn": {"type": "number", "description": "Seconds for which it is good"},
    },
}


def _operation(route: Route) -> dict[str, Any]:
    documented = route.documented
    parameters = [
        {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for segment in route.path.split("/")
        if segment.startswith("{")
    ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in documented.query]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _identifier(route),
        "responses": {
            **{str(status): _response(media_type) for status, media_type in documented.answers.items()},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if documented.tag:
        operation["tags"] = [documented.tag]
    if parameters:
        operation["parameters"] = parameters
    if documented.body is not None:
        operation["requestBody"] = {"content": {documented.body: {"schema": {}}}}
    if route.public:
        operation["security"] = []
    return operation


def _response(media_type: str) -> dict[str, Any]:
    if not media_type:
        return {"description": "Done"}
    return {"description": "Done", "content": {media_type: {"schema": {}}}}


def _identifier(route: Route) -> str:
    words = [segment.strip("{}").replace(".", "-") for segment in route.path.split("/") if segment]
    return "-".join([route.method.lower(), *words]) if words else f"{route.method.lower()}-root"


def _serving(document: Callable[[], Any], media_type: str) -> Endpoint:
    async def serve(exchange: Exchange) -> ASGIApp:
        return json_reply(document(), media_type=media_type, cache_control="no-cache")

    return serve


def _constant(document: Any) -> Callable[[], Any]:
    return lambda: document
