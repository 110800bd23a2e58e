"""Searching the directory: JSONPath and simple XPath over the Things that the caller may see.

Queries run in a thread, over what the caller could list; what they cost and what they may answer is bounded.
"""

import asyncio
import re
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

import anyio.to_thread
from starlette.types import ASGIApp

from bindings.http import reads
from bindings.http.exchange import JSON, Exchange, json_reply
from bindings.http.jsonpath import JSONPath
from bindings.http.problems import NotAcceptable
from bindings.http.registration import enriched
from bindings.http.routing import Documented, Route
from things.errors import Invalid, Malformed, TooLarge
from things.jsontext import encode

MAX_SEARCHED = 20_000
MAX_ANSWER_BYTES = 16_777_216
_PAGE = 1_000
_QUERY = re.compile(r"(?:^|&)query=([^&]*)")


def routes() -> list[Route]:
    documented = Documented(tag="directory", query=("query",), answers={200: JSON})
    return [
        Route("GET", "/search/jsonpath", _jsonpath, "Search by JSONPath (RFC 9535)", documented=documented),
        Route("GET", "/search/xpath", _xpath, "Search by simple XPath", documented=documented),
    ]


async def _jsonpath(exchange: Exchange) -> ASGIApp:
    query = JSONPath(_query(exchange))
    return await _answer(exchange, query.find)


async def _xpath(exchange: Exchange) -> ASGIApp:
    query = _query(exchange)
    if len(query) > 1_000 or query.count("//") > 4:
        raise Invalid("the query is too long, or descends too often")
    return await _answer(exchange, lambda tds: xpath(query, tds))


async def _answer(exchange: Exchange, search: Any) -> ASGIApp:
    if not exchange.accepts(JSON):
        raise NotAcceptable(JSON)
    tds = await _visible(exchange)
    limiter = exchange.context.searches
    found = await anyio.to_thread.run_sync(lambda: encode(search(tds)), limiter=limiter)
    if len(found) > MAX_ANSWER_BYTES:
        raise TooLarge(MAX_ANSWER_BYTES, "answer")
    reply = json_reply(None)
    reply.body = found
    reply.headers["content-length"] = str(len(found))
    return reply


async def _visible(exchange: Exchange) -> list[Any]:
    """The TDs that the caller may see, by id; raises TooLarge when there are too many to look through."""
    tds: list[Any] = []
    cursor = None
    while True:
        page = await reads.call(exchange, reads.DIRECTORY, "listTDs", entries=True, limit=_PAGE, cursor=cursor)
        now = exchange.context.sink.clock()
        tds += [enriched(item["td"], item, retrieved=now) for item in page["items"]]
        cursor = page.get("cursor")
        if cursor is None:
            return tds
        if len(tds) > MAX_SEARCHED:
            raise TooLarge(MAX_SEARCHED, "number of Things")
        # Deriving a thousand descriptions takes a while; others go on meanwhile.
        await asyncio.sleep(0)


def _query(exchange: Exchange) -> str:
    """The query; it may hold brackets, quotes and ampersands as they are, since clients send them so."""
    raw = exchange.scope["query_string"].decode("latin-1")
    match = re.match(r"query=(.*)$", raw, re.DOTALL) or _QUERY.search(raw)
    if match is None:
        raise Invalid("the query is given as ?query=")
    try:
        text = unquote_plus(match[1], encoding="utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise Malformed("the query is not percent-encoded UTF-8") from error
    return text.strip()


def xpath(query: str, tds: list[Any]) -> list[Any]:
    """The values that an XPath selects where every Thing is an element `thing` below the root, members are elements by
    their name, and items of an array repeat the element. Paths, `//`, `*`, `[child]`, `[child='text']` and positions
    are understood; texts compare as JSON writes them. Raises Invalid for anything else."""
    values: dict[ElementTree.Element, Any] = {}
    root = ElementTree.Element("things")
    for td in tds:
        _grow(root, "thing", td, values)
    path = query.removeprefix("/things")
    path = f".{path}" if path.startswith("/") else path
    try:
        found = root.findall(path.replace("/text()", ""))
    except (SyntaxError, KeyError, ValueError, IndexError) as error:
        raise Invalid(f"not an XPath query that is understood here: {error}") from error
    return [values[element] for element in found if element in values]


def _grow(parent: ElementTree.Element, name: str, value: Any, values: dict[ElementTree.Element, Any]) -> None:
    if isinstance(value, list):
        for item in value:
            _grow(parent, name, item, values)
        return
    # `@` would read as an attribute; the members of JSON-LD keep their name without it, too.
    element = ElementTree.SubElement(parent, name.removeprefix("@"))
    values[element] = value
    if isinstance(value, dict):
        for key, child in value.items():
            _grow(element, key, child, values)
    else:
        element.text = value if isinstance(value, str) else encode(value).decode()
