"""Stored events and values: of one Thing by time, or of many by row id; as JSON, CSV or Arrow, raw or by windows."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.arrow import ARROW, arrow_stream, has_arrow
from bindings.http.exchange import JSON, Exchange, json_reply
from bindings.http.problems import NotAcceptable
from bindings.http.routing import Documented, Route
from things.csv_rows import csv_row
from things.errors import Invalid
from things.messages import JSONValue
from things.times import rfc3339

CSV = "text/csv"
COLUMNS = ("rowID", "thingID", "kind", "name", "value", "created", "received", "quality", "tdVersion", "sourceTime")
AGGREGATES = ("avg", "min", "max", "count", "sum", "first", "last")


def routes() -> list[Route]:
    one = Documented(
        tag="history",
        query=("kind", "name", "from", "to", "limit", "cursor", "order", "window", "points", "agg"),
        answers={200: JSON},
    )
    many = Documented(
        tag="history", query=("thing", "kind", "name", "from", "to", "after", "limit"), answers={200: JSON}
    )
    return [
        Route("GET", "/things/{id}/history", _of_thing, "A Thing's stored events and values", documented=one),
        Route("GET", "/history", _of_many, "Stored events and values of many Things", documented=many),
    ]


async def _of_thing(exchange: Exchange) -> ASGIApp:
    order = exchange.one("order")
    if order not in (None, "asc", "desc"):
        raise Invalid("order is asc or desc")
    query = _common(exchange) | {"thingID": exchange.params["id"], "cursor": exchange.one("cursor"), "order": order}
    if exchange.one("window") is not None or exchange.one("points") is not None:
        return await _windowed(exchange, query)
    if exchange.one("agg") is not None:
        raise Invalid("agg needs a window such as 5m, or a number of points")
    return await _reply(exchange, query)


async def _of_many(exchange: Exchange) -> ASGIApp:
    query = _common(exchange) | {
        "things": [*exchange.query.get("thing", ())] or None,
        "afterRow": exchange.number("after") or 0,
    }
    return await _reply(exchange, query)


async def _reply(exchange: Exchange, query: dict[str, JSONValue]) -> ASGIApp:
    media_type = _media_type(exchange)
    page = await service_calls.history(exchange, **query)
    items, cursor = page["items"], page.get("cursor")
    if media_type == JSON:
        reply = json_reply(page)
    elif media_type == CSV:
        reply = Response(_csv(items), media_type=f"{CSV}; charset=utf-8; header=present")
    else:
        async with exchange.context.conversions:
            reply = Response(b"" if exchange.is_head else await arrow_stream(page), media_type=ARROW)
    if cursor is not None and media_type != JSON:
        name = "after" if "afterRow" in query else "cursor"
        reply.headers["link"] = f'<{exchange.raw_path}?{name}={cursor}>; rel="next"'
    return reply


def _media_type(exchange: Exchange) -> str:
    offered = [JSON, CSV, *([ARROW] if has_arrow() else [])]
    explicit = next((one for one in reversed(offered) if exchange.accepts(one, explicitly=True)), None)
    chosen = explicit or next((one for one in offered if exchange.accepts(one)), None)
    if chosen is None:
        raise NotAcceptable(", ".join(offered))
    return chosen


def _csv(items: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item in items:
        writer.writerow(csv_row(item, COLUMNS))
    return text.getvalue()


async def _windowed(exchange: Exchange, query: dict[str, JSONValue]) -> ASGIApp:
    """`{"window","items":[{"kind","name","from","to","count",…}]}`, by name and time; the window in seconds."""
    if not exchange.accepts(JSON):
        raise NotAcceptable(JSON)
    asked: list[JSONValue] = [*(exchange.one("agg") or "avg,min,max,count").split(",")]
    if not set(asked) <= set(AGGREGATES):
        raise Invalid(f"agg is a list of {', '.join(AGGREGATES)}")
    wanted = {name: query[name] for name in ("thingID", "kind", "names", "from", "to")}
    wanted |= {"window": exchange.one("window"), "agg": asked}
    wanted["points"] = exchange.number("points", least=1, most=exchange.context.config.max_history_items)
    return json_reply(await service_calls.windows(exchange, **wanted))


def _common(exchange: Exchange) -> dict[str, JSONValue]:
    config = exchange.context.config
    kind = exchange.one("kind")
    if kind not in (None, "event", "property"):
        raise Invalid("kind is event or property")
    query: dict[str, JSONValue] = {"kind": kind, "names": [*exchange.query.get("name", ())] or None}
    for name in ("from", "to"):
        moment = exchange.moment(name)
        query[name] = None if moment is None else rfc3339(moment)
    query["limit"] = exchange.number("limit", least=1, most=config.max_history_items) or 1_000
    return query
