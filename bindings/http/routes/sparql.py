"""SPARQL 1.1 over the directory, by the protocol's three ways to send a query.

The answer is found by the directory's own service, which knows what the caller may see; its form decides among the
media types that the caller takes.
"""

from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.directory_td import SPARQL, SPARQL_RESULTS
from bindings.http.exchange import JSON, LD_JSON, N_TRIPLES, TURTLE, Exchange
from bindings.http.problems import NotAcceptable
from bindings.http.routing import Documented, Route
from things.errors import Invalid, Malformed
from things.service_ids import DIRECTORY

_FORM = "application/x-www-form-urlencoded"
_FORMATS = (
    *(SPARQL_RESULTS, LD_JSON, "application/sparql-results+xml"),
    *("text/csv", "text/tab-separated-values", TURTLE, N_TRIPLES, "application/rdf+xml", JSON, "application/xml"),
)
_FITTING = {
    "rows": "application/sparql-results+json, application/sparql-results+xml, text/csv and text/tab-separated-values",
    "truth": "application/sparql-results+json and application/sparql-results+xml",
    "graph": "application/ld+json, text/turtle, application/n-triples and application/rdf+xml",
}


def routes() -> list[Route]:
    documented = Documented(tag="directory", query=("query",), answers={200: SPARQL_RESULTS})
    posted = Documented(tag="directory", body=SPARQL, answers={200: SPARQL_RESULTS})
    return [
        Route("GET", "/search/sparql", _asked, "Search by SPARQL 1.1", documented=documented),
        Route("POST", "/search/sparql", _sent, "The same; the query is the body", documented=posted),
    ]


async def _asked(exchange: Exchange) -> ASGIApp:
    return await _answered(exchange, exchange.one("query"))


async def _sent(exchange: Exchange) -> ASGIApp:
    text = await exchange.body(SPARQL, _FORM)
    try:
        query: str | None = text.decode()
    except UnicodeDecodeError as error:
        raise Malformed("a query is UTF-8") from error
    if (exchange.headers.get("content-type") or "").lower().startswith(_FORM):
        query = _of_form(str(query))
    return await _answered(exchange, query)


def _of_form(text: str) -> str | None:
    try:
        members = parse_qs(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=16)
    except ValueError as error:
        raise Malformed("the form is not percent-encoded UTF-8") from error
    for name, values in members.items():
        # Those of the protocol that choose graphs among them: there is one.
        if name != "query" or len(values) != 1:
            raise Invalid(f"a form holds the query alone, once, and not {name[:40]!r}")
    return members["query"][0] if members else None


async def _answered(exchange: Exchange, query: str | None) -> ASGIApp:
    if not query:
        raise Invalid("a SPARQL query is needed: ?query= or a body")
    accepted = exchange.preferred(*_FORMATS)
    if not accepted:
        raise NotAcceptable(" and ".join(_FITTING.values()))
    found = await service_calls.call(exchange, DIRECTORY, "querySPARQL", query=query, accepted=list(accepted))
    if found["mediaType"] is None:
        raise NotAcceptable(_FITTING[found["form"]])
    return Response(found["text"], media_type=found["mediaType"])
