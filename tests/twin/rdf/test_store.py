"""The statements of all descriptions: put, replaced, taken out, and seen by callers of different rights."""

import json
from typing import Any

import pytest

from twin.rdf.parts import Share
from twin.rdf.queries import answered
from twin.rdf.store import IndexStore, Seen

NAMES = "SELECT ?name WHERE { ?thing <https://www.w3.org/2019/wot/td#name> ?name } ORDER BY ?name"
WHOLE = {"usual": Share.WHOLE.value, "entries": True, "others": {}}
TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Lamp",
    "properties": {"level": {}, "state": {"readOnly": True}, "key": {"writeOnly": True}},
    "actions": {"fade": {"input": {"type": "integer"}}},
    "events": {"hot": {}},
}


def told(agent: str | None = "works", **members: Any) -> dict[str, Any]:
    return {"td": json.dumps({**TD, **members}), "agent": agent, "overlay": {}, "registration": {}}


@pytest.fixture
def store() -> IndexStore:
    index = IndexStore()
    index.put("dtw:works:lamp", told())
    index.put("dtw:works:desk", told(title="Desk"))
    index.put("urn:gate", told(agent=None, properties={"open": {}}, actions={}, events={}))
    return index


def names(seen: Seen) -> list[str]:
    _, body = answered(seen, NAMES, ["text/csv"])
    return body.decode().split()[1:]


def test_what_is_put_again_replaces_what_was_there_and_what_is_removed_leaves_nothing(store: IndexStore) -> None:
    before = store.size

    store.put("dtw:works:lamp", told())
    assert (store.size, len(store.seen_by(WHOLE).store)) == (before, before)

    for thing_id in ("dtw:works:lamp", "dtw:works:desk", "urn:gate", "urn:gate", "urn:never"):
        store.remove(thing_id)
    assert (store.size, len(store.seen_by(WHOLE).store)) == (0, 0)


def test_a_title_laid_over_a_twin_is_its_title(store: IndexStore) -> None:
    store.put("dtw:works:lamp", {**told(), "overlay": {"title": "Ours"}})

    _, body = answered(store.seen_by(WHOLE), "ASK { <dtw:works:lamp> ?says 'Ours'@en }", [])

    assert json.loads(body)["boolean"] is True


def test_devices_own_addresses_are_not_in_the_index(store: IndexStore) -> None:
    forms = [{"href": "http://10.0.0.7/secret"}]
    hidden: dict[str, Any] = {
        "base": "http://10.0.0.7/",
        "properties": {"level": {"forms": forms}},
        "links": [{"href": "local"}],
    }
    store.put("dtw:works:lamp", told(**hidden, securityDefinitions={"b": {"scheme": "basic"}}, security="b"))

    _, body = answered(store.seen_by(WHOLE), "SELECT ?o { <dtw:works:lamp> ?p ?o }", ["text/csv"])
    _, forms_ = answered(store.seen_by(WHOLE), "ASK { ?p <https://www.w3.org/2019/wot/td#hasForm> ?f }", [])

    assert b"10.0.0.7" not in body
    assert json.loads(forms_)["boolean"] is False


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (WHOLE, ["fade", "fade", "hot", "hot", "key", "key", "level", "level", "open", "state", "state"]),
        ({"usual": 0, "entries": False, "others": {}}, []),
        ({"usual": 0, "entries": True, "others": {}}, ["open"]),
        ({"usual": int(Share.THING | Share.READ_ONLY | Share.EVENTS), "entries": False, "others": {}},
         ["hot", "hot", "state", "state"]),
        ({"usual": 63, "entries": True, "others": {"dtw:works:desk": 0}},
         ["fade", "hot", "key", "level", "open", "state"]),
        ({"usual": 0, "entries": False, "others": {"dtw:works:desk": ["", "property/level"]}}, ["level"]),
        ({"usual": 1, "entries": True, "others": {"dtw:works:desk": 17, "urn:gate": 0, "urn:gone": 63}}, ["fade"]),
    ],
)  # fmt: skip
def test_a_caller_sees_its_shares_and_what_is_added_or_taken_for_it(
    store: IndexStore, sight: dict[str, Any], expected: list[str]
) -> None:
    assert names(store.seen_by(sight)) == expected


@pytest.mark.parametrize(
    "query",
    [
        "ASK { ?x ?y 'fade' }",
        "ASK { GRAPH ?g { ?x ?y 'fade' } }",
        "ASK FROM <urn:skep:share:16> { ?x ?y 'fade' }",
        "ASK FROM NAMED <urn:skep:share:16> { GRAPH ?g { ?x ?y 'fade' } }",
        "ASK { <dtw:works:lamp> (!<urn:nothing>)* 'fade' }",
        "ASK { <dtw:works:lamp> <https://www.w3.org/2019/wot/td#hasActionAffordance>/!<urn:n> 'fade' }",
        "ASK { { SELECT (COUNT(?y) AS ?n) { ?x <https://www.w3.org/2019/wot/td#hasActionAffordance> ?y } } "
        "FILTER (?n > 0) }",
    ],
)
def test_no_query_reaches_beside_what_its_caller_sees(store: IndexStore, query: str) -> None:
    def is_true(sight: dict[str, Any]) -> bool:
        _, body = answered(store.seen_by(sight), query, [])
        found: bool = json.loads(body)["boolean"]
        return found

    without = int(Share.WHOLE & ~Share.ACTIONS)

    assert not is_true({"usual": without, "entries": True, "others": {}})
    assert not is_true({"usual": 0, "entries": True, "others": {"dtw:works:lamp": ["", "property/level"]}})
    if "GRAPH" not in query:
        assert is_true(WHOLE)
    # What this takes away is gone, as in the process that ends with its query.
    assert not is_true({"usual": 63, "entries": True, "others": {"dtw:works:lamp": without, "dtw:works:desk": 0}})
