"""Queries: their forms and formats, and what is refused."""

import json

import pytest

from things.errors import Invalid, TooLarge
from twin.rdf.queries import GRAPHS, MAX_ANSWER_BYTES, ROWS, answered
from twin.rdf.store import IndexStore

WHOLE = {"usual": 63, "entries": True, "others": {}}


@pytest.fixture
def seen() -> object:
    index = IndexStore()
    td = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": 'Lamp, "quoted"'}
    index.put("urn:lamp", {"td": json.dumps(td), "agent": None, "overlay": {}, "registration": {}})
    return index.seen_by(WHOLE)


@pytest.mark.parametrize("media_type", ROWS)
def test_rows_come_in_every_format(seen: object, media_type: str) -> None:
    head, body = answered(seen, "SELECT ?s WHERE { ?s ?p ?o }", [media_type])  # type: ignore[arg-type]

    assert head == {"form": "rows", "mediaType": media_type}
    assert b"urn:lamp" in body


@pytest.mark.parametrize("query", ["CONSTRUCT WHERE { ?s ?p ?o }", "DESCRIBE <urn:lamp>"])
@pytest.mark.parametrize("media_type", GRAPHS)
def test_graphs_come_in_every_format(seen: object, media_type: str, query: str) -> None:
    head, body = answered(seen, query, [media_type])  # type: ignore[arg-type]

    assert head == {"form": "graph", "mediaType": media_type}
    assert b"urn:lamp" in body


@pytest.mark.parametrize(
    ("query", "accepted", "media_type"),
    [
        ("SELECT * {}", [], "application/sparql-results+json"),
        ("ASK {}", [], "application/sparql-results+json"),
        ("CONSTRUCT {} {}", [], "application/ld+json"),
        ("ASK {}", ["text/csv", "application/xml"], "application/sparql-results+xml"),
        ("ASK {}", ["text/csv"], None),
        ("SELECT * {}", ["text/turtle"], None),
        ("CONSTRUCT {} {}", ["text/csv", "application/json"], "application/ld+json"),
        ("SELECT * {}", ["text/turtle", "application/json"], "application/sparql-results+json"),
    ],
)
def test_the_first_accepted_format_that_fits_the_form_is_taken(
    seen: object, query: str, accepted: list[str], media_type: str | None
) -> None:
    head, _ = answered(seen, query, accepted)  # type: ignore[arg-type]

    assert head.get("mediaType") == media_type


@pytest.mark.parametrize(
    "query",
    [
        "",
        "SELECT",
        "SELECT * { ?x }",
        "INSERT DATA { <urn:a> <urn:b> <urn:c> }",
        "DELETE WHERE { ?s ?p ?o }",
        "LOAD <http://127.0.0.1:1/>",
        "SELECT * { SERVICE <http://127.0.0.1:1/> { ?s ?p ?o } }",
        "SELECT * { service silent ?where { ?s ?p ?o } }",
        "SELECT * { # SERVICE\n SERVICE<urn:a>{} }",
        "SELECT * { BIND('\\'' AS ?x) SERVICE <urn:a> {} }",
    ],
)
def test_what_is_no_query_of_the_directory_is_refused(seen: object, query: str) -> None:
    with pytest.raises(Invalid):
        answered(seen, query, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query",
    [
        "PREFIX service: <urn:s#> SELECT * { ?service a service:service }",
        "SELECT * { ?s ?p 'SERVICE <urn:a> { }' } # SERVICE",
        'SELECT * { ?s ?p """ SERVICE " """ ; <urn:SERVICE> ?o }',
    ],
)
def test_a_word_of_the_language_in_names_and_texts_is_none(seen: object, query: str) -> None:
    assert answered(seen, query, [])[0]["form"] == "rows"  # type: ignore[arg-type]


def test_an_answer_that_grows_too_long_is_refused(seen: object) -> None:
    long = "SELECT * { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . VALUES ?x { %s } VALUES ?y { %s } }"
    values = " ".join(f"'{number}'" for number in range(300))

    with pytest.raises(TooLarge) as refused:
        answered(seen, long % (values, values), [])  # type: ignore[arg-type]

    assert str(MAX_ANSWER_BYTES) in refused.value.detail
