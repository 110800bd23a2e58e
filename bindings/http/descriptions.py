"""Descriptions as RDF: what a caller gets of a Thing, in Turtle or N-Triples.

Made off the loop, one at a time: a large description has thousands of statements.
"""

from collections.abc import Mapping
from typing import Any

import anyio
from pyoxigraph import RdfFormat, parse, serialize

from bindings.http.exchange import N_TRIPLES, TURTLE
from things.rdf import lines, statements
from things.rdf_terms import PREFIXES

RDF_TYPES = (TURTLE, N_TRIPLES)

_ONE = anyio.CapacityLimiter(1)


async def as_rdf(document: Mapping[str, Any], media_type: str) -> bytes:
    """The statements of a Thing Description that has an id."""
    return await anyio.to_thread.run_sync(_spelled, document, media_type, limiter=_ONE)


def _spelled(document: Mapping[str, Any], media_type: str) -> bytes:
    text = lines(statements(document, str(document.get("id", "")), "t"))
    if media_type == N_TRIPLES:
        return text.encode()
    used = {prefix: iri for prefix, iri in PREFIXES.items() if f"<{iri}" in text}
    written = serialize(parse(text.encode(), RdfFormat.N_TRIPLES, lenient=True), format=RdfFormat.TURTLE, prefixes=used)
    assert written is not None
    return written
