"""A SPARQL query carried out over what its caller sees; runs in a process of its own, which is bounded.

Query forms only: what would change something is no query here. Nothing is fetched: SERVICE is refused, FROM and GRAPH
choose nothing, since there is one graph.
"""

import re
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pyoxigraph import QueryBoolean, QueryResultsFormat, QueryTriples, RdfFormat

from things.errors import Invalid, TooLarge
from twin.rdf.store import Seen

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

MAX_ANSWER_BYTES = 4_194_304

ROWS = {
    "application/sparql-results+json": QueryResultsFormat.JSON,
    "application/sparql-results+xml": QueryResultsFormat.XML,
    "text/csv": QueryResultsFormat.CSV,
    "text/tab-separated-values": QueryResultsFormat.TSV,
}
"""Of SELECT; of ASK the first two."""
GRAPHS = {
    "application/ld+json": RdfFormat.JSON_LD,
    "text/turtle": RdfFormat.TURTLE,
    "application/n-triples": RdfFormat.N_TRIPLES,
    "application/rdf+xml": RdfFormat.RDF_XML,
}
"""Of CONSTRUCT and DESCRIBE."""
_TRUTHS = list(ROWS)[:2]
_ALIASES = {
    "application/json": ("application/sparql-results+json", "application/ld+json"),
    "application/xml": ("application/sparql-results+xml", "application/rdf+xml"),
}
"""What clients accept that do not know the names of these formats, which the answer has all the same."""

_PASSED_OVER = re.compile(
    r"""'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|<[^<>"{}|^`\\\x00-\x20]*>|\#[^\n]*""",
    re.DOTALL,
)
_SERVICE = re.compile(r"(?<![\w:?$@.\-])SERVICE(?![\w:.\-])", re.IGNORECASE)


def answered(seen: Seen, query: str, accepted: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """`{"form", "mediaType"}` and the answer in the first of the formats that fits the query's form; without mediaType
    if none does. Raises Invalid for what is not a query or cannot be answered, TooLarge for too long an answer."""
    if _SERVICE.search(_PASSED_OVER.sub(" ", query)):
        raise Invalid("SERVICE is not answered here: a query is about this directory only")
    told = _Bounded()
    try:
        results = seen.store.query(
            query,
            # Both given, so that a query's own FROM and GRAPH reach nothing beside what the caller sees.
            use_default_graph_as_union=seen.graphs is None,
            default_graph=None if seen.graphs is None else list(seen.graphs),
            named_graphs=[],
        )
        if isinstance(results, QueryTriples):
            form, media_type = "graph", _first(accepted, list(GRAPHS))
            if media_type is not None:
                results.serialize(told, format=GRAPHS[media_type])
        else:
            is_truth = isinstance(results, QueryBoolean)
            form, media_type = (
                ("truth", _first(accepted, _TRUTHS)) if is_truth else ("rows", _first(accepted, list(ROWS)))
            )
            if media_type is not None:
                results.serialize(told, format=ROWS[media_type])
    except SyntaxError as error:
        raise Invalid(f"not a SPARQL query: {str(error.msg)[:300]}") from error
    except (OSError, ValueError, RuntimeError) as error:
        if told.is_full:
            raise TooLarge(MAX_ANSWER_BYTES, "answer") from error
        raise Invalid(f"the query cannot be answered: {str(error)[:300]}") from error
    return {"form": form, **({} if media_type is None else {"mediaType": media_type})}, told.getvalue()


def _first(accepted: Sequence[str], known: Sequence[str]) -> str | None:
    if not accepted:
        return known[0]
    return next((each for one in accepted for each in _ALIASES.get(one, (one,)) if each in known), None)


class _Bounded(BytesIO):
    """Takes what is written until it is too much."""

    is_full = False

    def write(self, piece: "Buffer") -> int:
        if self.tell() + memoryview(piece).nbytes > MAX_ANSWER_BYTES:
            self.is_full = True
            raise ValueError("full")
        return super().write(piece)
