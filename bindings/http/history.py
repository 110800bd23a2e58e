"""Stored events and values: of one Thing, or of many by row id."""

from starlette.types import ASGIApp

from bindings.http import reads
from bindings.http.exchange import JSON, Exchange, json_reply
from bindings.http.routing import Documented, Route
from things.errors import Invalid
from things.messages import JSONValue
from things.times import rfc3339


def routes() -> list[Route]:
    one = Documented(
        tag="history", query=("kind", "name", "from", "to", "limit", "cursor", "order"), answers={200: JSON}
    )
    many = Documented(tag="history", query=("thing", "name", "from", "to", "after", "limit"), answers={200: JSON})
    return [
        Route("GET", "/things/{id}/history", _of_thing, "A Thing's stored events and values", documented=one),
        Route("GET", "/history", _of_many, "Stored events and values of many Things", documented=many),
    ]


async def _of_thing(exchange: Exchange) -> ASGIApp:
    query = _common(exchange)
    query |= {"thingID": exchange.params["id"], "cursor": exchange.one("cursor"), "order": exchange.one("order")}
    return json_reply(await reads.history(exchange, **query))


async def _of_many(exchange: Exchange) -> ASGIApp:
    query = _common(exchange)
    query |= {"things": [*exchange.query.get("thing", ())] or None, "afterRow": exchange.number("after") or 0}
    return json_reply(await reads.history(exchange, **query))


def _common(exchange: Exchange) -> dict[str, JSONValue]:
    config = exchange.context.config
    kind = exchange.one("kind")
    if kind not in (None, "event", "property"):
        raise Invalid("kind is event or property")
    query: dict[str, JSONValue] = {"kind": kind, "names": [*exchange.query.get("name", ())] or None}
    for name in ("from", "to"):
        moment = exchange.moment(name)
        query[name] = None if moment is None else rfc3339(moment)
    query["limit"] = exchange.number("limit", least=1, most=config.max_history_items) or config.page_items
    return query
