"""The variant of a twin TD that names W3C profiles, taken at its word: a client that reads nothing but that TD and
the HTTP Basic and SSE Profiles finds and does everything."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.bindings.http.support import LAMP, Events
from tests.support import skep
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

BASIC = "https://www.w3.org/2022/wot/profile/http-basic/v1"
SSE = "https://www.w3.org/2022/wot/profile/http-sse/v1"
LAMP_ID = "/things/dtw:lights:lamp"


@dataclass(frozen=True)
class Lamps:
    """A runtime with a lamp, and accounts by name."""

    url: str
    tokens: dict[str, str]

    def client(self, account: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.tokens[account]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[Lamps]:
    async with skep(tmp_path) as running:
        tokens = {"lights": (await running.add("lights", "agent")).token}
        for role in ("viewer", "operator", "manager"):
            tokens[f"{role}1"] = (await running.add(f"{role}1", role=role)).token
        opened = Lamps(running.http, tokens)
        async with opened.client("lights") as lights:
            assert (await lights.put("/agent/things/lamp", json=LAMP)).status_code == 201
        yield opened


def form_for(forms: list[dict[str, Any]], operation: str, subprotocol: str | None = None) -> str:
    """The address that a client following the profiles takes for an operation."""
    for form in forms:
        fits = operation in form["op"] and form.get("subprotocol") == subprotocol
        if fits and form["contentType"] == "application/json" and form["href"].startswith("http"):
            return str(form["href"])
    raise AssertionError(f"no form for {operation}")


def basic(house: Lamps, account: str) -> httpx.AsyncClient:
    """A client that knows HTTP Basic authentication and no more."""
    credentials = base64.b64encode(f"{account}:{house.tokens[account]}".encode()).decode()
    return httpx.AsyncClient(headers={"authorization": f"Basic {credentials}"}, timeout=30)


async def answering(lights: httpx.AsyncClient, asked: "asyncio.Queue[dict[str, Any]]", **status: Any) -> None:
    """The agent carries out whatever it is asked."""
    async with lights.stream("GET", "/agent/requests") as response:
        events = Events(response)
        while True:
            request = await events.data()
            await lights.post(f"/agent/status/{request['requestID']}", json={"state": "completed", **status})
            asked.put_nowait(request)


async def test_the_variant_names_its_profiles_and_is_found_from_the_twin(lamps: Lamps) -> None:
    async with lamps.client("manager1") as manager:
        twin = (await manager.get(LAMP_ID)).json()
        href = next(link["href"] for link in twin["links"] if link["rel"] == "alternate")
        reply = await manager.get(href)
        profiled = reply.json()
        unknown = await manager.get(LAMP_ID, params={"forms": "coap"})

    assert "profile" not in twin
    assert reply.headers["content-type"] == "application/td+json"
    assert profiled["profile"] == [BASIC, SSE]
    assert (profiled["id"], profiled["title"]) == (twin["id"], twin["title"])
    assert profiled["securityDefinitions"] == {"basic": {"scheme": "basic", "in": "header", "name": "Authorization"}}
    assert profiled["security"] == ["basic"]
    assert all(action["synchronous"] is False for action in profiled["actions"].values())
    assert {form["href"].partition(":")[0] for form in _all_forms(profiled)} == {"http"}
    assert not any("{" in form["href"] or "?" in form["href"] for form in _all_forms(profiled))
    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid")
    ThingDescription.of({name: value for name, value in profiled.items() if name != "registration"})


def _all_forms(td: dict[str, Any]) -> list[dict[str, Any]]:
    affordances = [one for kind in ("properties", "actions", "events") for one in td[kind].values()]
    return [form for forms in (td["forms"], *(one["forms"] for one in affordances)) for form in forms]


async def test_properties_as_the_basic_profile_says(lamps: Lamps) -> None:
    asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    async with lamps.client("lights") as lights, basic(lamps, "manager1") as client, anyio.create_task_group() as tasks:
        td = (await client.get(f"{lamps.url}{LAMP_ID}?forms=profile")).json()
        await lights.post("/agent/things/lamp/properties", json={"level": 5, "mode": "dim"})
        tasks.start_soon(answering, lights, asked)

        read = await client.get(form_for(td["properties"]["level"]["forms"], "readproperty"))
        all_ = await client.get(form_for(td["forms"], "readallproperties"))
        wrote = await client.put(form_for(td["properties"]["level"]["forms"], "writeproperty"), json=7)
        several = await client.put(form_for(td["forms"], "writemultipleproperties"), json={"level": 8, "mode": ""})
        refused = await client.put(form_for(td["properties"]["level"]["forms"], "writeproperty"), json=101)
        stranger = await client.get(
            form_for(td["properties"]["level"]["forms"], "readproperty"), headers={"authorization": "Basic eA=="}
        )
        tasks.cancel_scope.cancel()

    assert (read.status_code, read.headers["content-type"], read.json()) == (200, "application/json", 5)
    assert {"level": 5, "mode": "dim"}.items() <= all_.json().items()
    assert (wrote.status_code, wrote.content, several.status_code) == (204, b"", 204)
    assert [asked.get_nowait()["input"] for _ in range(3)] == [7, 8, ""]
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
    assert stranger.status_code == 401
    assert any("Basic" in challenge for challenge in stranger.headers.get_list("www-authenticate"))


async def test_asynchronous_actions_as_the_basic_profile_says(lamps: Lamps) -> None:
    async with basic(lamps, "operator1") as client, lamps.client("lights") as lights:
        td = (await client.get(f"{lamps.url}{LAMP_ID}?forms=profile")).json()
        invoke = form_for(td["actions"]["fade"]["forms"], "invokeaction")
        made = await client.post(invoke, json={"to": 3})
        status_url = httpx.URL(lamps.url).join(made.headers["location"])
        pending = await client.get(status_url)
        waiting = await client.post(invoke, json={"to": 4})
        cancelled = await client.delete(httpx.URL(lamps.url).join(waiting.json()["href"]))
        bad = await client.post(invoke, json={})

        async with anyio.create_task_group() as tasks:
            asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            tasks.start_soon(lambda: answering(lights, asked, error="too dark"))
            with anyio.fail_after(30):
                await asked.get()
            tasks.cancel_scope.cancel()
        failed = await client.get(status_url)
        listed = (await client.get(form_for(td["forms"], "queryallactions"))).json()

    assert (made.status_code, made.headers["content-type"]) == (201, "application/json")
    assert made.json().items() >= {"status": "pending", "href": made.headers["location"]}.items()
    assert (pending.status_code, pending.json()["status"]) == (200, "pending")
    assert (cancelled.status_code, bad.status_code) == (204, 400)
    assert (failed.status_code, failed.json()["status"]) == (200, "failed")
    assert {"type", "title", "status", "detail"} <= set(failed.json()["error"])
    assert failed.json()["timeRequested"] < failed.json()["timeEnded"]
    assert set(listed) == set(LAMP["actions"])
    times = [status["timeRequested"] for status in listed["fade"]]
    assert times == sorted(times, reverse=True)


async def test_streams_as_the_sse_profile_says(lamps: Lamps) -> None:
    async with basic(lamps, "viewer1") as client, lamps.client("lights") as lights:
        td = (await client.get(f"{lamps.url}{LAMP_ID}?forms=profile")).json()
        level = form_for(td["properties"]["level"]["forms"], "observeproperty", "sse")
        heat = form_for(td["events"]["overheated"]["forms"], "subscribeevent", "sse")
        accept = {"accept": "text/event-stream"}
        async with (
            client.stream("GET", level, headers=accept) as observed,
            client.stream("GET", heat, headers=accept) as subscribed,
            client.stream("GET", form_for(td["forms"], "observeallproperties", "sse"), headers=accept) as all_observed,
            client.stream("GET", form_for(td["forms"], "subscribeallevents", "sse"), headers=accept) as all_subscribed,
        ):
            await lights.post("/agent/things/lamp/properties", json={"level": 42})
            await lights.post("/agent/things/lamp/events/overheated", json=90.5)
            first = await Events(observed).next()
            told = [await Events(stream).next() for stream in (subscribed, all_observed, all_subscribed)]
        await lights.post("/agent/things/lamp/properties", json={"level": 43})
        async with client.stream("GET", level, headers={**accept, "last-event-id": first["id"]}) as again:
            missed = await Events(again).next()

    assert level == form_for(td["properties"]["level"]["forms"], "readproperty")
    assert observed.headers["content-type"].startswith("text/event-stream")
    assert (first["event"], json.loads(first["data"])) == ("level", 42)
    assert [(one["event"], json.loads(one["data"])) for one in told] == [
        ("overheated", 90.5),
        ("level", 42),
        ("overheated", 90.5),
    ]
    assert all(one["id"] for one in told)
    assert (missed["event"], missed["data"]) == ("level", "43")
