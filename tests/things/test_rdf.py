"""Thing Descriptions as statements: what each member becomes, and that no text of a TD becomes more than a text."""

import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyoxigraph import BlankNode, Literal, NamedNode, RdfFormat, Triple, parse

from things.addresses import Kind
from things.rdf import as_iri, lines, statements
from things.rdf_context import context_of
from things.rdf_terms import DISCOVERY, HYPERMEDIA, JSON_SCHEMA, RDF, SECURITY, TD, XSD

LAMP = "dtw:works:lamp"


def triples(document: dict[str, Any]) -> list[Triple]:
    return list(parse(lines(statements(document, LAMP, "t")).encode(), RdfFormat.N_TRIPLES, lenient=True))


def said(document: dict[str, Any], predicate: str) -> set[str]:
    """What is said by a predicate anywhere: texts as they are, IRIs in angle brackets."""
    return {
        str(triple.object) if isinstance(triple.object, NamedNode) else getattr(triple.object, "value", "")
        for triple in triples(document)
        if triple.predicate.value == predicate
    }


def one(plural: str, definition: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", plural: {"it": definition}, **members}


@pytest.mark.parametrize(
    ("document", "predicate", "expected"),
    [
        ({"title": "Lamp"}, TD + "title", {"Lamp"}),
        ({"title": "L", "@type": ["Thing", "skep:Light", "urn:a:b"]}, RDF + "type",
         {f"<{TD}Thing>", "<urn:skep:v1#Light>", "<urn:a:b>"}),
        ({"title": "L", "titles": {"de": "Lampe", "en": "Lamp"}}, TD + "titleInLanguage", {"Lampe", "Lamp"}),
        ({"title": "L", "base": "https://a/"}, TD + "baseURI", {"https://a/"}),
        ({"title": "L", "version": {"model": "2.0"}}, TD + "model", {"2.0"}),
        ({"title": "L", "registration": {"created": "2026-01-01T00:00:00Z"}}, DISCOVERY + "dateCreated",
         {"2026-01-01T00:00:00Z"}),
        (one("properties", {"type": "number"}), TD + "name", {"it"}),
        (one("properties", {"type": "number"}), RDF + "type",
         {f"<{TD}Thing>", f"<{TD}PropertyAffordance>", f"<{JSON_SCHEMA}NumberSchema>"}),
        (one("properties", {"properties": {"a": {"minimum": 4}}}), JSON_SCHEMA + "propertyName", {"a"}),
        (one("properties", {"minimum": 1.5, "maximum": 3}), JSON_SCHEMA + "maximum", {"3"}),
        (one("properties", {"enum": ["a", 1, True, None]}), JSON_SCHEMA + "enum", {"a", "1", "true"}),
        (one("properties", {"unit": "%"}), "http://schema.org/unitCode", {"%"}),
        (one("properties", {"unit": "skep:celsius"}), "http://schema.org/unitCode", {"<urn:skep:v1#celsius>"}),
        (one("properties", {"observable": True}), TD + "isObservable", {"true"}),
        (one("actions", {"input": {"type": "string"}, "safe": True}), TD + "isSafe", {"true"}),
        (one("events", {"data": {"type": "string"}}), RDF + "type",
         {f"<{TD}Thing>", f"<{TD}EventAffordance>", f"<{JSON_SCHEMA}StringSchema>"}),
        (one("properties", {"forms": [{"href": "http://a/{x}", "op": ["readproperty"]}]}), HYPERMEDIA + "hasTarget",
         {"http://a/{x}"}),
        (one("properties", {"forms": [{"href": "a", "op": "readproperty"}]}), HYPERMEDIA + "hasOperationType",
         {f"<{TD}readProperty>"}),
        (one("events", {}, securityDefinitions={"b": {"scheme": "bearer", "in": "body"}}), SECURITY + "in", {"body"}),
        (one("events", {}, links=[{"href": "a", "type": "x/y"}]), HYPERMEDIA + "hintsAtMediaType", {"x/y"}),
        ({"title": "L", "vendor": {"serial": 7}}, JSON_SCHEMA + "serial", {"7"}),
        ({"title": "L", "@context": {"v": "urn:v#"}, "v:serial": "A7"}, "urn:v#serial", {"A7"}),
        ({"title": "L", "@context": {"by": {"@id": "urn:by", "@type": "@id"}}, "by": "urn:m"}, "urn:by", {"<urn:m>"}),
        ({"title": "L", "@context": "https://else.example/context", "colour": "red"}, TD + "colour", {"red"}),
        ({"title": "L", "seeAlso": {"@id": "https://a/b"}}, TD + "seeAlso", {"<https://a/b>"}),
    ],
)  # fmt: skip
def test_each_member_becomes_what_the_standards_terms_say(
    document: dict[str, Any], predicate: str, expected: set[str]
) -> None:
    assert said(document, predicate) == expected


def test_texts_are_in_the_language_of_the_description() -> None:
    def language(document: dict[str, Any]) -> str | None:
        (title,) = [t.object for t in triples(document) if t.predicate.value == TD + "title"]
        assert isinstance(title, Literal)
        return title.language

    assert language({"title": "Lampe", "@context": {"@language": "de-AT"}}) == "de-at"
    assert language({"title": "Lamp"}) == "en"
    assert language({"title": "Lamp", "@context": {"@language": "x y"}}) == "en"


def test_numbers_and_truths_keep_their_types() -> None:
    found = {t.object.datatype.value for t in triples(one("properties", {"const": [1, 1.5, True]}))
             if t.predicate.value == JSON_SCHEMA + "const" and isinstance(t.object, Literal)}  # fmt: skip

    assert found == {XSD + "integer", XSD + "double", XSD + "boolean"}


def test_parts_hold_what_is_said_of_their_affordance_alone() -> None:
    document = one("properties", {"title": "Secret"}, actions={"it": {"title": "Fade"}})

    found = statements(document, LAMP, "t")

    assert set(found) == {None, (Kind.PROPERTY, "it"), (Kind.ACTION, "it")}
    assert not [each for each in found[None] if "Secret" in each or "Fade" in each]
    assert [each for each in found[Kind.ACTION, "it"] if "Fade" in each]


def test_samples_become_statements_that_are_all_read_again() -> None:
    for sample in files("things.samples").iterdir():
        if sample.name.endswith(".td.json"):
            document = json.loads(sample.read_text())
            found = [each for part in statements(document, LAMP, "t").values() for each in part]
            assert len(triples(document)) == len(found) > 10, sample.name


HOSTILE = st.text(alphabet='"\\<>.{}^`| \n\r\t\x00\x85\u2028aé@_:#%', max_size=12)
VALUES = st.recursive(
    HOSTILE | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=8,
)


@given(HOSTILE, st.dictionaries(HOSTILE, VALUES, max_size=4), HOSTILE)
def test_no_text_ends_a_statement_or_speaks_of_another_thing(name: str, members: dict[str, Any], iri: str) -> None:
    document = {
        "@context": [{"@language": name, "p": f"urn:{iri}", name: {"@id": f"p:{iri}", "@type": "@id"}}],
        "title": name,
        "@type": [iri, f"p:{iri}"],
        "properties": {name: {**members, "@type": f"p:{iri}", "unit": f"p:{iri}", "title": iri}},
        "titles": {iri: name},
        f"p:{name}": {"@value": iri, "@type": f"urn:{iri}", "@language": name},
        "see": {"@id": f"urn:{iri}"},
        **{f"p:{key}": value for key, value in members.items()},
    }

    found = [each for part in statements(document, LAMP, "t").values() for each in part]
    read = triples(document)

    assert len(read) == len(found)
    assert {str(t.subject) for t in read if not isinstance(t.subject, BlankNode)} == {f"<{LAMP}>"}


def test_addresses_are_encoded_where_they_cannot_stand() -> None:
    assert as_iri("urn:a> <urn:b") == "<urn:a%3E%20%3Curn:b>"
    assert as_iri("no scheme") is None


def test_a_context_means_what_stands_in_it_and_nothing_else() -> None:
    context = context_of(
        {"@context": ["https://a.example/c", {"a": "urn:a#", "b": "a:b", "@vocab": "urn:v#", "@import": "http://x"}]}
    )

    assert context.expanded("a:x") == "urn:a#x"
    assert context.expanded("https://a/b") == "https://a/b"
    assert context.expanded("word") is None
    assert context.terms["b"].iri == "urn:a#b"
    assert context.vocabulary == "urn:v#"
    assert "@import" not in context.terms
