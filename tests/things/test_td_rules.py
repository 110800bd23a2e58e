"""The rules of Thing Descriptions: each broken alone, and all reported at once."""

import copy
import json
import time
from importlib.resources import files
from typing import Any

import pytest

from things.errors import Invalid, Malformed, TDInvalid
from things.findings import MAX_FINDINGS
from things.schemas import MAX_PATTERN_CHARS, MAX_PATTERNS
from things.td import ThingDescription
from things.td_rules import TD_10, TD_11, problems_of

MISSING = object()


def sample(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files("things").joinpath("samples", f"{name}.td.json").read_text())
    return document


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `document` with the member at the JSON pointer set, or removed for MISSING."""
    result = copy.deepcopy(document)
    *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    place: Any = result
    for step in parents:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    if value is MISSING:
        del place[last]
    elif isinstance(place, list):
        place.insert(int(last), value)
    else:
        place[last] = value
    return result


@pytest.mark.parametrize("name", ["pump", "thermometer"])
def test_complete_td_is_valid_for_directories_and_agents(name: str) -> None:
    assert problems_of(sample(name)) == []
    assert problems_of(sample(name), agent=True) == []


def test_td_without_forms_and_security_is_valid_for_agents_only() -> None:
    lamp = sample("lamp")

    assert problems_of(lamp, agent=True) == []
    pointers = {problem.pointer for problem in problems_of(lamp)}
    assert {"/security", "/securityDefinitions", "/properties/on/forms", "/actions/fade/forms"} <= pointers
    assert "/events/overheated/forms" in pointers


def test_what_an_agent_does_give_must_be_right() -> None:
    lamp = sample("lamp") | {"security": "nobody"}
    lamp["properties"]["on"]["forms"] = [{"op": "invokeaction"}]

    problems = problems_of(lamp, agent=True)

    assert [(problem.pointer, problem.code) for problem in problems] == [
        ("/security", "undefined-security"),
        ("/properties/on/forms/0/href", "missing"),
        ("/properties/on/forms/0/op", "op"),
    ]


BROKEN: list[tuple[str, Any, str, str]] = [
    # member changed, its new value, pointer of the problem, its code
    ("/@context", MISSING, "/@context", "missing"),
    ("/@context", "https://example.org", "/@context", "context"),
    ("/@context", [], "/@context", "context"),
    ("/@context", 7, "/@context", "context"),
    ("/@context", ["http://www.w3.org/ns/td"], "/@context", "version"),
    ("/@context", [TD_11, TD_10], "/@context", "context"),
    ("/@context", [TD_11, 7], "/@context/1", "type"),
    ("/@context", [TD_11, {"a": 1}], "/@context/1/a", "type"),
    ("/@context", [TD_11, {"skep": "urn:other#"}], "/@context/1/skep", "context"),
    ("/title", MISSING, "/title", "missing"),
    ("/title", 7, "/title", "type"),
    ("/titles/de", 7, "/titles/de", "type"),
    ("/descriptions", "x", "/descriptions", "shape"),
    ("/@type", {"a": 1}, "/@type", "type"),
    ("/@type", ["tm:ThingModel"], "/@type", "thing-model"),
    ("/tm:required", ["/properties/flow"], "/tm:required", "thing-model"),
    ("/id", "no uri", "/id", "uri"),
    ("/id", 7, "/id", "uri"),
    ("/id", "urn:" + "x" * 600, "/id", "too-long"),
    ("/base", "relative/", "/base", "uri"),
    ("/base", MISSING, "/forms/0/href", "no-base"),
    ("/base", "https://joe:pass@pump.example/", "/base", "secret"),
    ("/support", 7, "/support", "type"),
    ("/created", "yesterday", "/created", "date-time"),
    ("/created", "2026-02-30T00:00:00Z", "/created", "date-time"),
    ("/modified", 7, "/modified", "date-time"),
    ("/version", {"model": "1"}, "/version", "shape"),
    ("/profile", [], "/profile", "empty"),
    ("/registration", {"ttl": -1}, "/registration/ttl", "type"),
    ("/registration", {"expires": "soon"}, "/registration/expires", "date-time"),
    ("/registration", [], "/registration", "shape"),
    ("/schemaDefinitions", {}, "/schemaDefinitions", "shape"),
    ("/schemaDefinitions/bad", 7, "/schemaDefinitions/bad", "shape"),
    ("/uriVariables", {"a": {"type": "object"}}, "/uriVariables/a", "type"),
    ("/security", MISSING, "/security", "missing"),
    ("/security", [], "/security", "empty"),
    ("/security", "unknown", "/security", "undefined-security"),
    ("/security", {"a": 1}, "/security", "type"),
    ("/securityDefinitions", [], "/securityDefinitions", "shape"),
    ("/securityDefinitions", {}, "/securityDefinitions", "empty"),
    ("/securityDefinitions/x", 7, "/securityDefinitions/x", "shape"),
    ("/securityDefinitions/x", {}, "/securityDefinitions/x/scheme", "missing"),
    ("/securityDefinitions/x", {"scheme": "magic"}, "/securityDefinitions/x/scheme", "scheme"),
    ("/securityDefinitions/x", {"scheme": "auto", "name": "n"}, "/securityDefinitions/x/name", "contradiction"),
    ("/securityDefinitions/x", {"scheme": "basic", "in": "air"}, "/securityDefinitions/x/in", "type"),
    ("/securityDefinitions/x", {"scheme": "basic", "in": "uri"}, "/securityDefinitions/x/in", "type"),
    ("/securityDefinitions/x", {"scheme": "apikey", "in": "uri"}, "/securityDefinitions/x/name", "missing"),
    ("/securityDefinitions/x", {"scheme": "digest", "qop": "all"}, "/securityDefinitions/x/qop", "type"),
    ("/securityDefinitions/x", {"scheme": "psk", "identity": 7}, "/securityDefinitions/x/identity", "type"),
    ("/securityDefinitions/x", {"scheme": "bearer", "alg": 7}, "/securityDefinitions/x/alg", "type"),
    ("/securityDefinitions/x", {"scheme": "nosec", "proxy": 7}, "/securityDefinitions/x/proxy", "type"),
    ("/securityDefinitions/x", {"scheme": "combo"}, "/securityDefinitions/x", "combo"),
    ("/securityDefinitions/either/allOf", ["login", "site"], "/securityDefinitions/either", "combo"),
    ("/securityDefinitions/either/oneOf", ["login"], "/securityDefinitions/either/oneOf", "combo"),
    ("/securityDefinitions/either/oneOf", "login", "/securityDefinitions/either/oneOf", "shape"),
    ("/securityDefinitions/either/oneOf/0", "who", "/securityDefinitions/either/oneOf/0", "undefined-security"),
    ("/securityDefinitions/either/oneOf/0", "either", "/securityDefinitions/either/oneOf/0", "combo"),
    ("/securityDefinitions/site/token", MISSING, "/securityDefinitions/site/token", "missing"),
    (
        "/securityDefinitions/site/authorization",
        "http://a/",
        "/securityDefinitions/site/authorization",
        "contradiction",
    ),
    ("/securityDefinitions/site/flow", "code", "/securityDefinitions/site/authorization", "missing"),
    ("/securityDefinitions/site/scopes", 7, "/securityDefinitions/site/scopes", "type"),
    ("/securityDefinitions/login/password", "123", "/securityDefinitions/login/password", "secret"),
    ("/securityDefinitions/login/x:client_secret", "123", "/securityDefinitions/login/x:client_secret", "secret"),
    ("/securityDefinitions/login/deep", {"apiKey": "1"}, "/securityDefinitions/login/deep/apiKey", "secret"),
    ("/links", {}, "/links", "shape"),
    ("/links/0", 7, "/links/0", "shape"),
    ("/links/0/href", MISSING, "/links/0/href", "missing"),
    ("/links/0/rel", 7, "/links/0/rel", "type"),
    ("/links/0/rel", "tm:extends", "/links/0/rel", "thing-model"),
    ("/links/0/hreflang", "not a tag", "/links/0/hreflang", "language"),
    ("/links/0/sizes", "64x64", "/links/0/sizes", "contradiction"),
    ("/links/1/sizes", "large", "/links/1/sizes", "type"),
    ("/links/0", {"href": "other", "rel": "type"}, "/links/3/rel", "repeated"),
    ("/links/0", {"href": "/pump.png", "rel": "icon", "sizes": "64x64"}, "/links/2/rel", "repeated"),
    ("/forms", [], "/forms", "empty"),
    ("/forms/0/op", MISSING, "/forms/0/op", "missing"),
    ("/forms/0/op", "readproperty", "/forms/0/op", "op"),
    ("/properties", [], "/properties", "shape"),
    ("/properties/flow", 7, "/properties/flow", "shape"),
    ("/properties/..", {"forms": [{"href": "x"}]}, "/properties/..", "bad-address"),
    ("/properties/" + "x" * 129, {"forms": [{"href": "x"}]}, "/properties/" + "x" * 129, "bad-address"),
    ("/properties/a~1b~0c", 7, "/properties/a~1b~0c", "shape"),
    ("/properties/flow/forms", MISSING, "/properties/flow/forms", "missing"),
    ("/properties/flow/forms", [], "/properties/flow/forms", "empty"),
    ("/properties/flow/forms", {}, "/properties/flow/forms", "shape"),
    ("/properties/flow/forms/0", "x", "/properties/flow/forms/0", "shape"),
    ("/properties/flow/forms/0/href", 7, "/properties/flow/forms/0/href", "type"),
    ("/properties/flow/forms/0/href", "https://a:b@c/", "/properties/flow/forms/0/href", "secret"),
    ("/properties/flow/forms/0/op", "invokeaction", "/properties/flow/forms/0/op", "op"),
    ("/properties/flow/forms/0/op", [], "/properties/flow/forms/0/op", "empty"),
    ("/properties/flow/forms/0/op", {}, "/properties/flow/forms/0/op", "type"),
    ("/properties/flow/forms/0/contentType", 7, "/properties/flow/forms/0/contentType", "type"),
    ("/properties/flow/forms/0/security", ["who"], "/properties/flow/forms/0/security", "undefined-security"),
    ("/properties/flow/forms/0/scopes", [7], "/properties/flow/forms/0/scopes/0", "type"),
    ("/properties/flow/forms/0/response", {}, "/properties/flow/forms/0/response/contentType", "missing"),
    ("/properties/flow/forms/0/additionalResponses", {}, "/properties/flow/forms/0/additionalResponses", "shape"),
    (
        "/actions/rinse/forms/0/additionalResponses/0/schema",
        "other",
        "/actions/rinse/forms/0/additionalResponses/0/schema",
        "undefined-schema",
    ),
    (
        "/properties/flow/forms/0/htv:headers",
        [{"htv:fieldName": "Authorization", "htv:fieldValue": "Bearer x"}],
        "/properties/flow/forms/0/htv:headers/0",
        "secret",
    ),
    ("/properties/flow/observable", "yes", "/properties/flow/observable", "type"),
    ("/properties/flow/writeOnly", True, "/properties/flow", "contradiction"),
    ("/properties/flow/type", "float", "/properties/flow/type", "type"),
    ("/properties/flow/type", ["number", "null"], "/properties/flow/type", "type"),
    ("/properties/flow/minimum", "0", "/properties/flow/minimum", "type"),
    ("/properties/flow/minimum", 500, "/properties/flow/minimum", "contradiction"),
    ("/properties/flow/multipleOf", 0, "/properties/flow/multipleOf", "type"),
    ("/properties/flow/minLength", -1, "/properties/flow/minLength", "type"),
    ("/properties/flow/maxItems", 1.5, "/properties/flow/maxItems", "type"),
    ("/properties/flow/unit", 7, "/properties/flow/unit", "type"),
    ("/properties/flow/enum", [], "/properties/flow/enum", "empty"),
    ("/properties/flow/enum", "x", "/properties/flow/enum", "shape"),
    ("/properties/flow/enum", [1, 2, 1.0], "/properties/flow/enum", "repeated"),
    ("/properties/flow/enum", [{"a": [1]}, {"a": [1]}], "/properties/flow/enum", "repeated"),
    ("/properties/mode/oneOf", {}, "/properties/mode/oneOf", "shape"),
    ("/properties/mode/oneOf/0", 7, "/properties/mode/oneOf/0", "shape"),
    ("/properties/mode/items", 7, "/properties/mode/items", "shape"),
    ("/properties/mode/items", [{}, 7], "/properties/mode/items/1", "shape"),
    ("/properties/mode/properties", [], "/properties/mode/properties", "shape"),
    ("/properties/mode/required", "a", "/properties/mode/required", "shape"),
    ("/properties/mode/required", [7], "/properties/mode/required/0", "type"),
    ("/properties/mode/$ref", "https://evil.example/schema", "/properties/mode/$ref", "reference"),
    ("/properties/mode/tm:ref", "x", "/properties/mode/tm:ref", "thing-model"),
    ("/properties/mode/allOf", [{"$ref": "#"}], "/properties/mode/allOf/0/$ref", "reference"),
    ("/properties/mode/uniqueItems", "yes", "/properties/mode", "schema"),
    ("/properties/mode/pattern", "(?=a)b", "/properties/mode/pattern", "pattern"),
    ("/properties/mode/pattern", "(a{1000}){1000}", "/properties/mode/pattern", "pattern"),
    ("/properties/mode/pattern", "x" * (MAX_PATTERN_CHARS + 1), "/properties/mode/pattern", "pattern"),
    ("/properties/mode/pattern", "(", "/properties/mode/pattern", "pattern"),
    ("/properties/mode/pattern", 7, "/properties/mode/pattern", "pattern"),
    ("/properties/mode/patternProperties", {"(": {}}, "/properties/mode/patternProperties/(", "pattern"),
    ("/properties/flow/skep:interval", "often", "/properties/flow/skep:interval", "duration"),
    ("/properties/flow/uriVariables", {"a": 7}, "/properties/flow/uriVariables/a", "shape"),
    ("/actions/rinse/skep:expires", -1, "/actions/rinse/skep:expires", "duration"),
    ("/actions/rinse/input", 7, "/actions/rinse/input", "shape"),
    ("/actions/rinse/output/properties/litres/type", "x", "/actions/rinse/output/properties/litres/type", "type"),
    ("/actions/rinse/safe", "no", "/actions/rinse/safe", "type"),
    ("/actions/rinse/synchronous", "no", "/actions/rinse/synchronous", "type"),
    ("/actions/rinse/tm:ref", "x", "/actions/rinse/tm:ref", "thing-model"),
    ("/actions/rinse/forms/0/op", "readproperty", "/actions/rinse/forms/0/op", "op"),
    ("/events/ranDry/data", [], "/events/ranDry/data", "shape"),
    ("/events/ranDry/dataResponse", 7, "/events/ranDry/dataResponse", "shape"),
    ("/events/ranDry/forms/0/op", "observeproperty", "/events/ranDry/forms/0/op", "op"),
]


@pytest.mark.parametrize(("path", "value", "pointer", "code"), BROKEN)
def test_broken_rule_is_reported_where_it_is_broken(path: str, value: Any, pointer: str, code: str) -> None:
    problems = problems_of(changed(sample("pump"), path, value))

    assert (pointer, code) in [(problem.pointer, problem.code) for problem in problems]
    assert all(problem.detail for problem in problems)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/@context", [TD_10, TD_11]),
        ("/@context", [TD_11, "https://example.org/terms"]),
        ("/securityDefinitions/x", {"scheme": "ace:ACESecurityScheme", "ace:as": "coaps://as.example/"}),
        ("/securityDefinitions/x", {"scheme": "oauth2", "flow": "vendor"}),
        ("/properties/flow/forms/0/subprotocol", "webthingprotocol"),
        ("/properties/flow/enum", [1, True, "1", None]),
        ("/properties/flow/unknown", {"anything": [1]}),
        ("/properties/password", {"type": "string", "writeOnly": True, "forms": [{"href": "p"}]}),
        ("/links/0", {"href": "/other.pdf", "rel": "service-doc"}),
        ("/actions/rinse/forms/0/op", ["invokeaction", "queryaction", "cancelaction"]),
        ("/created", "2016-12-31T23:59:60Z"),
        ("/properties/mode/additionalProperties", False),
        (
            "/properties/mode/additionalProperties",
            {"type": "object", "additionalProperties": {"properties": {"additionalProperties": False}}},
        ),
        ("/properties/mode/not", {"items": True}),
    ],
)
def test_what_the_standard_allows_is_allowed(path: str, value: Any) -> None:
    assert problems_of(changed(sample("pump"), path, value)) == []


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("/securityDefinitions/x", {"scheme": "auto"}, "version"),
        ("/securityDefinitions/x", {"scheme": "oauth2", "flow": "client", "token": "http://a/"}, "version"),
        ("/securityDefinitions/x", {"scheme": "basic", "in": "auto"}, "type"),
        ("/events/frost/forms/0/subprotocol", "cloudevents", "version"),
        ("/actions/a", {"forms": [{"href": "http://a/", "op": "queryaction"}]}, "version"),
    ],
)
def test_what_is_new_in_td_11_needs_its_context(path: str, value: Any, code: str) -> None:
    old = changed(sample("thermometer"), path, value)

    assert [problem.code for problem in problems_of(old)] == [code]
    assert problems_of(old | {"@context": [TD_10, TD_11]}) == []


def test_every_problem_is_reported_at_once() -> None:
    document = sample("pump")
    for path, value in [("/title", 7), ("/security", "x"), ("/events/ranDry/data", 7), ("/links/0/href", 7)]:
        document = changed(document, path, value)

    with pytest.raises(TDInvalid, match="and 3 more") as refused:
        ThingDescription.of(document)

    assert [problem.pointer for problem in refused.value.problems] == [
        "/title",
        "/security",
        "/events/ranDry/data",
        "/links/0/href",
    ]


def test_number_of_problems_listed_is_bounded() -> None:
    document = sample("pump") | {"properties": {f"p{number}": 7 for number in range(5_000)}}

    problems = problems_of(document)

    assert len(problems) == MAX_FINDINGS + 1
    assert problems[-1].code == "more"


@pytest.mark.parametrize("literal", ["1e999", "-1e400", "9" * 400 + ".5"])
def test_number_out_of_range_is_refused_rather_than_changed(literal: str) -> None:
    text = json.dumps(sample("pump")).replace("3000", literal)

    with pytest.raises(Malformed):
        ThingDescription.parse(text)


def test_large_and_exact_numbers_in_range_are_kept() -> None:
    text = json.dumps(sample("pump")).replace("3000", "1e300")

    assert ThingDescription.parse(text).document["properties"]["speed"]["maximum"] == 1e300


def test_evil_pattern_runs_in_linear_time() -> None:
    lamp = sample("lamp")
    lamp["properties"]["code"] = {"type": "string", "pattern": "^(a+)+$"}
    td = ThingDescription.of(lamp, agent=True)

    started = time.process_time()  # a busy machine takes none of it
    with pytest.raises(Invalid):
        td.check_property("code", "a" * 100_000 + "!")

    assert time.process_time() - started < 1


def test_number_of_patterns_is_bounded() -> None:
    lamp = sample("lamp")
    lamp["properties"] = {f"p{n}": {"type": "string", "pattern": f"^{n}$"} for n in range(MAX_PATTERNS)}
    assert problems_of(lamp, agent=True) == []

    lamp["properties"]["one more"] = {"allOf": [{"pattern": "x"}]}

    assert [problem.pointer for problem in problems_of(lamp, agent=True)] == ["/properties/one more/allOf/0/pattern"]


def test_message_about_a_large_value_stays_short() -> None:
    td = ThingDescription.of(sample("lamp"), agent=True)

    with pytest.raises(Invalid) as refused:
        td.check_property("brightness", "x" * 100_000)

    assert len(refused.value.detail) < 300


def test_references_are_never_followed() -> None:
    lamp = sample("lamp")
    lamp["properties"]["on"] = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}

    with pytest.raises(TDInvalid, match="references are refused"):
        ThingDescription.of(lamp, agent=True)
