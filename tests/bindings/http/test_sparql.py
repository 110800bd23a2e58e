"""SPARQL over HTTP: the protocol's ways to ask, formats, and that nobody learns more than its listings tell."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest

from tests.bindings.http.support import LAMP, House, eventually, lamp_house
from tests.bindings.http.test_directory import TD_JSON, gate
from things.identity import AccountType, Role

pytestmark = pytest.mark.anyio

TD = "https://www.w3.org/2019/wot/td#"
PREFIXES = f"PREFIX td: <{TD}> "
NAMES = (
    PREFIXES + "SELECT ?thing ?name { ?thing ?has ?one . ?one td:name ?name FILTER(?has != td:hasUriTemplateSchema) }"
)


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def ask(client: httpx.AsyncClient, query: str, accept: str | None = None) -> httpx.Response:
    headers = {} if accept is None else {"accept": accept}
    return await client.get("/search/sparql", params={"query": query}, headers=headers)


async def rows(client: httpx.AsyncClient, query: str) -> set[tuple[str, ...]]:
    reply = await ask(client, query)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    return {tuple(row[name]["value"] for name in found["head"]["vars"]) for row in found["results"]["bindings"]}


def listed(things: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Names of affordances as a listing tells them, without those that every twin has."""
    return {
        (thing["id"], name)
        for thing in things
        for plural in ("properties", "actions", "events")
        for name in thing.get(plural, {})
        if name not in ("online", "lastSeen")
    }


async def test_a_query_is_sent_in_each_way_that_the_protocol_has(lamps: House) -> None:
    query = f"ASK {{ <dtw:lights:lamp> <{TD}title> 'Lamp'@en }}"
    async with lamps.client("viewer1") as viewer:
        replies = [
            await ask(viewer, query),
            await viewer.post("/search/sparql", data={"query": query}),
            await viewer.post("/search/sparql", content=query, headers={"content-type": "application/sparql-query"}),
        ]
        head = await viewer.head("/search/sparql", params={"query": query})
        rpc = await viewer.post("/rpc/dtw:directory:things/querySPARQL", json={"query": query})

    assert {reply.status_code for reply in replies} == {200}
    assert {reply.headers["content-type"] for reply in replies} == {"application/sparql-results+json"}
    assert [reply.json()["boolean"] for reply in replies] == [True] * 3
    assert (head.status_code, head.content) == (200, b"")
    assert rpc.json()["mediaType"] == "application/sparql-results+json"


@pytest.mark.parametrize(
    ("query", "accept", "expected"),
    [
        ("SELECT * {}", None, "application/sparql-results+json"),
        ("SELECT * {}", "text/csv;q=0.5, application/sparql-results+xml", "application/sparql-results+xml"),
        ("SELECT * {}", "text/csv, */*;q=0.1", "text/csv; charset=utf-8"),
        ("ASK {}", "text/csv, */*;q=0.1", "application/sparql-results+json"),
        ("CONSTRUCT { } { }", "*/*", "application/ld+json"),
        ("DESCRIBE <urn:x>", "text/turtle", "text/turtle; charset=utf-8"),
        ("CONSTRUCT { } { }", "application/n-triples", "application/n-triples"),
        ("ASK {}", "text/turtle", None),
        ("ASK {}", "image/png", None),
        ("SELECT * {}", "text/csv;q=0", None),
    ],
)
async def test_accept_chooses_the_format(lamps: House, query: str, accept: str | None, expected: str | None) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await ask(viewer, query, accept)

    if expected is None:
        assert (reply.status_code, reply.json()["code"]) == (406, "not-acceptable")
    else:
        assert (reply.status_code, reply.headers["content-type"]) == (200, expected)


async def test_what_is_no_query_is_a_problem(lamps: House) -> None:
    sparql = {"content-type": "application/sparql-query"}
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with lamps.client("viewer1") as viewer, lamps.client() as stranger:
        refused = [
            await viewer.get("/search/sparql"),
            await ask(viewer, ""),
            await ask(viewer, "SELECT"),
            await ask(viewer, "INSERT DATA { <urn:a> <urn:b> <urn:c> }"),
            await ask(viewer, "SELECT * { SERVICE <http://127.0.0.1/> {} }"),
            await ask(viewer, "#" * 20_000),
            await viewer.get("/search/sparql?query=ASK%20%7B%7D&default-graph-uri=urn:x"),
            await viewer.post("/search/sparql", content=b"\xff", headers=sparql),
            await viewer.post("/search/sparql", content="query=ASK%20%7B%7D&named-graph-uri=urn:x", headers=form),
            await viewer.post("/search/sparql", content="query=ASK%20%7B%7D&query=ASK%20%7B%7D", headers=form),
            await viewer.post("/search/sparql", content="", headers=form),
        ]
        update = await viewer.post(
            "/search/sparql", content="CLEAR ALL", headers={"content-type": "application/sparql-update"}
        )
        nobody = await ask(stranger, "ASK {}")

    assert {reply.status_code for reply in refused} == {400}
    assert {reply.json()["status"] for reply in refused} == {400}
    assert (update.status_code, nobody.status_code) == (415, 401)


@pytest.mark.parametrize("role", ["viewer", "operator", "manager", "admin"])
async def test_each_role_finds_the_names_that_its_listing_shows(lamps: House, role: str) -> None:
    async with lamps.client(f"{role}1") as client, lamps.client("manager1") as manager:
        opens = {"open": {"forms": [{"href": "https://gate/"}]}}
        await manager.put("/things/urn:gate", json=gate(actions=opens), headers=TD_JSON)

        assert await rows(client, NAMES) == listed((await client.get("/things")).json())


async def test_a_rule_about_one_name_hides_it_from_every_kind_of_query(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as lamps, lamps.client("viewer1") as viewer:
        async with lamps.client("admin1") as admin, lamps.client("lights") as lights:
            await lights.put("/agent/things/desk", json=LAMP)
            for rule in (
                {"id": "level", "effect": "deny", "thing": "dtw:lights:lamp", "kind": "property", "name": "level"},
                {"id": "desk", "effect": "deny", "thing": "dtw:lights:desk"},
            ):
                reply = await admin.post("/rpc/dtw:authz:admin/putRule", json={"rule": rule})
                assert reply.status_code == 200, reply.text

        found = await rows(viewer, NAMES)
        assert found == listed((await viewer.get("/things")).json())
        assert ("dtw:lights:lamp", "mode") in found
        for query in (
            "ASK { ?x ?y 'level' }",
            "ASK { <dtw:lights:desk> ?y ?z }",
            "ASK { <dtw:lights:lamp> (!<urn:n>)+ 'level' }",
            "ASK FROM <urn:skep:share:2> { ?x ?y 'level' }",
            "ASK { GRAPH ?g { ?x ?y 'level' } }",
        ):
            assert (await ask(viewer, query)).json()["boolean"] is False, query
        (counted,) = await rows(viewer, PREFIXES + "SELECT (COUNT(*) AS ?n) { ?x td:name 'level' }")
        assert counted == ("0",)


async def test_an_agent_finds_what_its_listing_shows(lamps: House) -> None:
    await lamps.account("other", AccountType.AGENT, Role.AGENT)
    async with lamps.client("other") as other, lamps.client("lights") as lights:
        await other.put("/agent/things/meter", json=LAMP)

        for client in (other, lights):
            assert await rows(client, NAMES) == listed((await client.get("/things")).json())
        assert "dtw:lights:lamp" not in {thing for thing, _ in await rows(other, NAMES)}


async def test_what_changes_is_found_by_the_next_query(lamps: House) -> None:
    query = PREFIXES + "SELECT ?title { <urn:gate> td:title ?title }"
    async with lamps.client("manager1") as manager:
        assert await rows(manager, query) == set()
        await manager.put("/things/urn:gate", json=gate(), headers=TD_JSON)
        assert await rows(manager, query) == {("Gate",)}
        await manager.put("/things/urn:gate", json=gate(title="Door"), headers=TD_JSON)
        assert await rows(manager, query) == {("Door",)}
        await manager.patch(
            "/things/dtw:lights:lamp", json={"title": "Ours"}, headers={"content-type": "application/merge-patch+json"}
        )
        assert await rows(manager, query.replace("urn:gate", "dtw:lights:lamp")) == {("Ours",)}
        await manager.delete("/things/urn:gate")
        assert await rows(manager, query) == set()


async def test_a_killed_index_is_made_anew_by_the_next_query(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        before = await rows(viewer, NAMES)
        (index,) = [child for child in psutil.Process().children() if "twin.rdf.worker" in child.cmdline()]
        os.kill(index.pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(lambda: index.wait(10))

        async def answers_again() -> bool:
            # The one that meets its end is told so.
            return (await ask(viewer, "ASK {}")).status_code == 200

        await eventually(answers_again)
        assert await rows(viewer, NAMES) == before


async def test_a_query_that_multiplies_its_answer_is_ended_and_the_next_one_answered(lamps: House) -> None:
    product = "{ ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
    async with lamps.client("viewer1") as viewer:
        long = await ask(viewer, f"SELECT * {product}")
        large = await ask(viewer, f"SELECT * {product} ORDER BY ?l ?a")
        answered = await ask(viewer, "ASK {}")

    assert (long.status_code, long.json()["code"]) == (413, "too-large")
    assert (large.status_code, large.json()["code"]) in ((413, "too-large"), (400, "invalid"))
    assert answered.status_code == 200


@pytest.mark.parametrize("media_type", ["text/turtle", "application/n-triples"])
async def test_a_description_comes_as_rdf_as_the_caller_may_see_it(lamps: House, media_type: str) -> None:
    async with lamps.client("viewer1") as viewer, lamps.client("operator1") as operator:
        shown, more = [
            await client.get("/things/dtw:lights:lamp", headers={"accept": media_type}) for client in (viewer, operator)
        ]
        json_ = await viewer.get(
            "/things/dtw:lights:lamp", headers={"accept": f"{media_type};q=0.5, application/td+json"}
        )
        none = await viewer.get("/things/dtw:lights:other", headers={"accept": media_type})
        self_ = await viewer.get("/.well-known/wot", headers={"accept": media_type})

    assert shown.headers["content-type"].startswith(media_type)
    assert "level" in shown.text
    assert "fade" not in shown.text
    assert "fade" in more.text
    assert json_.headers["content-type"] == "application/td+json"
    assert (none.status_code, self_.status_code) == (404, 200)


async def test_the_directory_describes_its_search(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        td = (await viewer.get("/.well-known/wot")).json()

    get, post = td["actions"]["searchSPARQL"]["forms"]
    assert get["href"].endswith("/search/sparql?query={query}")
    assert (post["htv:methodName"], post["contentType"]) == ("POST", "application/sparql-query")
