"""Searching the directory: JSONPath and simple XPath over the Things that the caller may see.

The Things are gathered here, as the caller could list them; the search itself runs in a process of its own.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from time import thread_time
from urllib.parse import unquote_plus

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.exchange import JSON, Exchange
from bindings.http.problems import NotAcceptable
from bindings.http.registration import spelled
from bindings.http.routing import Documented, Route
from things.errors import Invalid, Malformed
from things.service_ids import DIRECTORY

MAX_QUERY_CHARS = 2_000
_PAGE = 20
_QUERY = re.compile(r"(?:^|&)query=([^&]*)")


def routes() -> list[Route]:
    documented = Documented(tag="directory", query=("query",), any_query=True, answers={200: JSON})
    return [
        Route("GET", "/search/jsonpath", _jsonpath, "Search by JSONPath (RFC 9535)", documented=documented),
        Route("GET", "/search/xpath", _xpath, "Search by simple XPath", documented=documented),
    ]


async def _jsonpath(exchange: Exchange) -> ASGIApp:
    return await _answer(exchange, "jsonpath", _query(exchange))


async def _xpath(exchange: Exchange) -> ASGIApp:
    return await _answer(exchange, "xpath", _query(exchange).strip())


async def _answer(exchange: Exchange, language: str, query: str) -> ASGIApp:
    if not exchange.accepts(JSON):
        raise NotAcceptable(JSON)
    if len(query) > MAX_QUERY_CHARS:
        raise Invalid(f"a query has at most {MAX_QUERY_CHARS} characters")
    account = exchange.principal.account
    return Response(await exchange.context.searches.find(account, language, query, _visible(exchange)), media_type=JSON)


async def _visible(exchange: Exchange) -> AsyncGenerator[Sequence[bytes], None]:
    """The TDs that the caller may see, by id."""
    cursor: str | None = ""
    while cursor is not None:
        begun = thread_time()
        page = await service_calls.call(
            exchange, DIRECTORY, "listTDs", entries=True, encoded=True, limit=_PAGE, cursor=cursor or None
        )
        now = exchange.context.sink.clock()
        yield [spelled(item, retrieved=now) for item in page["items"]]
        cursor = page.get("cursor")
        # To derive thousands of descriptions takes a while: at most a third of the loop's time is a search's.
        await asyncio.sleep(2 * (thread_time() - begun))


def _query(exchange: Exchange) -> str:
    """The query; it may hold brackets, quotes and ampersands as they are, since clients send them so."""
    raw = exchange.scope["query_string"].decode("latin-1")
    match = re.match(r"query=(.*)$", raw, re.DOTALL) or _QUERY.search(raw)
    if match is None:
        raise Invalid("the query is given as ?query=")
    try:
        return unquote_plus(match[1], encoding="utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise Malformed("the query is not percent-encoded UTF-8") from error
