"""Thing Models over HTTP: stored, listed, read, composed and made into descriptions by the service of models."""

import uuid
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.exchange import JSON, LD_JSON, Exchange, json_reply, no_content
from bindings.http.routing import Documented, Route
from things.addresses import encode_segment
from things.errors import Forbidden, Invalid, Malformed, UnknownThing
from things.jsontext import decode_unique
from things.messages import JSONValue
from things.service_ids import MODELS

TM_JSON = "application/tm+json"


def routes() -> list[Route]:
    listing = Documented(tag="models", query=("text", "limit", "cursor"), answers={200: JSON})
    model = Documented(tag="models", query=("version", "composed"), answers={200: TM_JSON})
    write = Documented(tag="models", body=TM_JSON, answers={201: "", 204: ""})
    made = Documented(tag="models", body=JSON, answers={200: JSON})
    one = "/models/{id}"
    return [
        Route("GET", "/models", _list, "Thing Models, by id", documented=listing),
        Route("POST", "/models", _create, "Store a Thing Model under an id of ours", documented=write),
        Route("GET", one, _read, "A Thing Model", documented=model),
        Route("PUT", one, _put, "Store a Thing Model", documented=write),
        Route("DELETE", one, _remove, "Remove a Thing Model", documented=Documented(tag="models")),
        Route("GET", f"{one}/versions", _versions, "Its versions", documented=Documented(tag="models")),
        Route("POST", f"{one}/instances", _instantiate, "Make a Thing Description of it", documented=made),
    ]


async def _list(exchange: Exchange) -> ASGIApp:
    limit = exchange.number("limit", least=1)
    page = {"text": exchange.one("text"), "cursor": exchange.one("cursor"), "limit": min(limit or 100, 1_000)}
    found = await service_calls.call(exchange, MODELS, "listModels", **page)
    reply = json_reply([{**item, "href": _href(item["modelID"])} for item in found["items"]])
    if found.get("cursor"):
        query = {name: str(value) for name, value in {**page, "cursor": found["cursor"]}.items() if value is not None}
        reply.headers["link"] = f'</models?{urlencode(query)}>; rel="next"'
    return reply


async def _create(exchange: Exchange) -> ASGIApp:
    model_id = f"urn:uuid:{uuid.uuid4()}"
    await _stored(exchange, model_id, ifNoneMatch="*")
    return no_content(201, location=_href(model_id))


async def _read(exchange: Exchange) -> ASGIApp:
    composed = exchange.one("composed")
    if composed not in (None, "true", "false"):
        raise Invalid("composed is true or false")
    found = await service_calls.call(
        exchange,
        MODELS,
        "readModel",
        modelID=exchange.params["id"],
        version=exchange.number("version", least=1),
        composed=composed == "true",
    )
    return json_reply(found["model"], media_type=TM_JSON, etag=found["etag"])


async def _put(exchange: Exchange) -> ASGIApp:
    model_id = exchange.params["id"]
    found = await _stored(
        exchange,
        model_id,
        ifMatch=exchange.headers.get("if-match"),
        ifNoneMatch=exchange.headers.get("if-none-match"),
    )
    return no_content(201, location=_href(model_id)) if found["isNew"] else no_content(etag=found["etag"])


async def _remove(exchange: Exchange) -> ASGIApp:
    await _written(exchange, "removeModel", modelID=exchange.params["id"], ifMatch=exchange.headers.get("if-match"))
    return no_content()


async def _versions(exchange: Exchange) -> ASGIApp:
    return json_reply(await service_calls.call(exchange, MODELS, "listModelVersions", modelID=exchange.params["id"]))


async def _instantiate(exchange: Exchange) -> ASGIApp:
    """The description of the Thing, and those of its parts; nothing is registered."""
    given = await exchange.json()
    if not isinstance(given, dict) or "modelID" in given:
        raise Invalid("an object is needed: id, placeholders, options, additions, agent")
    asked: dict[str, JSONValue] = {**given, "modelID": exchange.params["id"]}
    return json_reply(await service_calls.call(exchange, MODELS, "instantiate", **asked))


async def _stored(exchange: Exchange, model_id: str, **conditions: str | None) -> dict[str, Any]:
    text = await exchange.body(TM_JSON, LD_JSON, JSON)
    model = decode_unique(text) if text else None
    if not isinstance(model, dict):
        raise Malformed("a Thing Model is a JSON object")
    found: dict[str, Any] = await _written(exchange, "putModel", modelID=model_id, model=model, **conditions)
    return found


async def _written(exchange: Exchange, method: str, **given: JSONValue) -> Any:
    try:
        return await service_calls.call(exchange, MODELS, method, **given)
    except UnknownThing as error:
        # To who may not write it every model looks unknown, also one that can be read.
        raise Forbidden(f"{exchange.principal.account!r} may not write Thing Models") from error


def _href(model_id: str) -> str:
    return f"/models/{encode_segment(model_id)}"
