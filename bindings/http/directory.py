"""The W3C WoT Discovery directory API over the built-in directory service."""

from typing import Any

from starlette.types import ASGIApp

from bindings.http import reads
from bindings.http.exchange import JSON, LD_JSON, TD_JSON, Exchange, json_reply
from bindings.http.problems import NotAcceptable
from bindings.http.routing import Documented, Route


def routes() -> list[Route]:
    read = Documented(tag="directory", answers={200: TD_JSON})
    return [
        Route("GET", "/things/{id}", _read, "A Thing Description", documented=read),
    ]


async def _read(exchange: Exchange) -> ASGIApp:
    media_type = next((one for one in (TD_JSON, LD_JSON, JSON) if exchange.accepts(one)), None)
    if media_type is None:
        raise NotAcceptable(f"{TD_JSON}, {LD_JSON} and {JSON}")
    td: dict[str, Any] = await reads.td(exchange, exchange.params["id"])
    return json_reply(td, media_type=media_type)
