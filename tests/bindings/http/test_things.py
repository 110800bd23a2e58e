"""Properties, actions, RPC, requests and the inbox, between a consumer and an agent that both speak HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from bindings.http.config import HttpConfig
from tests.bindings.http.support import LAMP, Events, House, eventually, lamp_house
from things.identity import AccountType, Role

pytestmark = pytest.mark.anyio

LAMP_PATH = "/things/dtw:lights:lamp"
_AGENT = (AccountType.AGENT, Role.AGENT)


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


@asynccontextmanager
async def listening(house: House, account: str = "lights") -> AsyncIterator[tuple[httpx.AsyncClient, Events]]:
    """The agent with its request stream open."""
    async with house.client(account) as client, client.stream("GET", "/agent/requests") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield client, Events(response)


async def _answers(client: httpx.AsyncClient, events: Events, **status: Any) -> dict[str, Any]:
    """Take one request and answer it."""
    request: dict[str, Any] = await events.data()
    reply = await client.post(f"/agent/status/{request['requestID']}", json={"state": "completed", **status})
    assert reply.status_code == 204, reply.text
    return request


async def test_td_is_put_replaced_and_removed(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        assert (await lights.put("/agent/things/lamp", json=LAMP | {"title": "Better lamp"})).status_code == 204
        td = await viewer.get(LAMP_PATH)
        assert td.headers["content-type"] == "application/td+json"
        assert td.json()["title"] == "Better lamp"
        assert td.json()["id"] == "dtw:lights:lamp"

        created = await lights.put("/agent/things/other", json=LAMP)
        assert (created.status_code, created.headers["location"]) == (201, "/things/dtw:lights:other")
        assert (await lights.delete("/agent/things/other")).status_code == 204
        assert (await lights.delete("/agent/things/other")).status_code == 404
        assert (await viewer.get("/things/dtw:lights:other")).status_code == 404


async def test_a_td_with_problems_lists_them_all(lamps: House) -> None:
    async with lamps.client("lights") as lights:
        reply = await lights.put("/agent/things/bad", json={"@context": 7, "properties": {"x": {"type": "nonsense"}}})

    problem = reply.json()
    assert (reply.status_code, problem["code"]) == (400, "td-invalid")
    assert len(problem["validationErrors"]) >= 2
    assert all(error["field"] and error["description"] for error in problem["validationErrors"])


async def test_consumers_may_not_publish(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        assert (await manager.put("/agent/things/lamp", json=LAMP)).status_code == 403
        assert (await manager.post("/agent/things/lamp/events/touched")).status_code == 403
        assert (await manager.get("/agent/requests")).status_code == 403


async def test_property_write_is_204_once_the_agent_confirms(lamps: House) -> None:
    async with (
        listening(lamps) as (lights, events),
        lamps.client("manager1") as manager,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_answers, lights, events)
        reply = await manager.put(f"{LAMP_PATH}/properties/level", json=50)

    assert (reply.status_code, reply.content) == (204, b"")


@pytest.mark.parametrize(
    "headers",
    [
        {"prefer": "wait=-1"},
        {"prefer": "wait=soon"},
        {"x-expires-in": "-1"},
        {"x-expires-in": "1e99"},
        {"x-expires-in": "nan"},
        {"idempotency-key": "x" * 300},
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{LAMP_PATH}/actions/blink", None),
        ("PUT", f"{LAMP_PATH}/properties/level", 50),
        ("PUT", f"{LAMP_PATH}/properties", {"level": 50}),
    ],
)
async def test_a_request_with_a_header_that_cannot_be_is_refused_and_not_stored(
    lamps: House, headers: dict[str, str], method: str, path: str, body: Any
) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.request(method, path, json=body, headers=headers)
        requests = (await manager.get("/requests")).json()

    assert (reply.status_code, reply.json()["code"]) == (400, "invalid")
    assert requests["items"] == []


async def test_property_write_to_an_absent_agent_is_202_with_a_location(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.put(f"{LAMP_PATH}/properties/level", json=50, headers={"prefer": "wait=0"})
        assert reply.status_code == 202
        request = (await manager.get(reply.headers["location"])).json()

    assert (request["state"], request["input"], request["operation"]) == ("pending", 50, "write_property")
    assert [step["state"] for step in request["transitions"]] == ["pending"]


@pytest.mark.parametrize(
    ("name", "value", "status", "code"),
    [
        ("level", 101, 400, "invalid"),
        ("level", "much", 400, "invalid"),
        ("temperature", 5, 400, "invalid"),
        ("nonsense", 5, 404, "unknown-name"),
    ],
)
async def test_a_write_that_cannot_be_is_refused_and_not_stored(
    lamps: House, name: str, value: object, status: int, code: str
) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.put(f"{LAMP_PATH}/properties/{name}", json=value)
        several = await manager.put(f"{LAMP_PATH}/properties", json={"mode": "x", name: value})
        rows = (await manager.get("/requests")).json()["items"]

    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert (several.status_code, several.json()["code"]) == (status, code)
    assert rows == []


async def test_several_properties_are_written_as_one_request_each(lamps: House) -> None:
    async with listening(lamps) as (lights, events), lamps.client("manager1") as manager:
        async with anyio.create_task_group() as tasks:

            async def answer_two() -> None:
                names = {(await _answers(lights, events))["name"] for _ in range(2)}
                assert names == {"level", "mode"}

            tasks.start_soon(answer_two)
            reply = await manager.put(f"{LAMP_PATH}/properties", json={"level": 5, "mode": "dim"})
        assert reply.status_code == 204


async def test_properties_that_a_list_names_are_read_at_once(lamps: House) -> None:
    path = f"{LAMP_PATH}/properties"
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await lights.post("/agent/things/lamp/properties", json={"level": 5, "mode": "warm", "temperature": 21.5})
        td = (await viewer.get(LAMP_PATH)).json()
        (form,) = [
            form for form in td["forms"] if form["op"] == ["readmultipleproperties"] and "htv:methodName" in form
        ]

        found = await viewer.request(form["htv:methodName"], form["href"], json=["mode", "online", "mode"])
        unknown = await viewer.post(path, json=["mode", "colour"])
        refused = [await viewer.post(path, json=body) for body in ([], {"mode": 1}, [7], "mode")]
        stranger = await lamps.client().post(path, json=["mode"])

    assert (found.status_code, found.json()) == (200, {"mode": "warm", "online": False})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-name")
    assert {(reply.status_code, reply.json()["code"]) for reply in refused} == {(400, "invalid")}
    assert stranger.status_code == 401


async def test_an_operator_may_not_write_properties(lamps: House) -> None:
    async with lamps.client("operator1") as operator:
        reply = await operator.put(f"{LAMP_PATH}/properties/level", json=50)

    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")


async def test_action_is_accepted_at_once_and_its_status_followed(lamps: House) -> None:
    async with lamps.client("operator1") as operator:
        reply = await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 3})
        status = reply.json()
        assert reply.status_code == 201
        assert reply.headers["location"] == status["href"]
        assert status["href"].startswith(f"{LAMP_PATH}/actions/fade/")
        assert status["status"] == "pending"
        assert status["timeRequested"].endswith("Z")

        async with listening(lamps) as (lights, events):
            request = await events.data()
            assert request["operation"] == "invoke_action"
            assert (request["thingID"], request["name"], request["input"]) == ("lamp", "fade", {"to": 3})
            path = f"/agent/status/{request['requestID']}"
            assert (await lights.post(path, json={"state": "running", "progress": 40})).status_code == 204
            running = (await operator.get(status["href"])).json()
            assert running["timeRequested"] == status["timeRequested"]
            assert (running["status"], running["progress"]) == ("running", 40)
            assert (await lights.post(path, json={"state": "completed", "output": "done"})).status_code == 204
            late = await lights.post(path, json={"state": "running"})
            assert (late.status_code, late.json()["code"]) == (409, "illegal-status")

        ended = (await operator.get(status["href"])).json()
        assert (ended["status"], ended["output"]) == ("completed", "done")
        assert ended["timeEnded"].endswith("Z")
        listed = (await operator.get(f"{LAMP_PATH}/actions")).json()
        assert [one["requestID"] for one in listed["fade"]] == [request["requestID"]]
        assert listed["blink"] == []
        one = (await operator.get(f"{LAMP_PATH}/actions/fade")).json()
        assert [row["requestID"] for row in one["items"]] == [request["requestID"]]
        assert (await operator.get(status["href"].replace("fade", "blink"))).status_code == 404


async def test_prefer_wait_gives_the_output(lamps: House) -> None:
    async with listening(lamps) as (lights, events), lamps.client("operator1") as operator:
        for output, status_code in (("faded", 200), (None, 204)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(_answers, lights, events, output=output))
                reply = await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 3}, headers={"prefer": "wait=5"})
            assert reply.status_code == status_code
            assert reply.content == (b"" if output is None else b'"faded"')


@pytest.mark.parametrize(
    ("status", "code", "http_status"),
    [
        ({"state": "completed", "error": "too hot"}, "agent-error", 502),
        ({"state": "failed", "reason": "rejected", "error": "no"}, "rejected", 502),
        ({"state": "failed", "reason": "agent-error", "error": "oops"}, "agent-error", 502),
    ],
)
async def test_a_request_without_success_names_itself(
    lamps: House, status: dict[str, Any], code: str, http_status: int
) -> None:
    async with (
        listening(lamps) as (lights, events),
        lamps.client("operator1") as operator,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: _answers(lights, events, **status))
        reply = await operator.post(f"{LAMP_PATH}/actions/blink", headers={"prefer": "wait=5"})

    problem = reply.json()
    assert (reply.status_code, problem["code"], problem["state"]) == (http_status, code, status["state"])
    assert problem["requestID"]
    if "error" in status:
        assert problem["detail"] == status["error"]


async def test_the_same_reference_is_the_same_request_and_other_content_a_conflict(lamps: House) -> None:
    headers = {"idempotency-key": "mine-1"}
    async with lamps.client("operator1") as operator, lamps.client("manager1") as manager:
        first = await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 3}, headers=headers)
        again = await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 3}, headers=headers)
        other = await operator.post(f"{LAMP_PATH}/actions/fade", json={"to": 4}, headers=headers)
        somebody = await manager.post(f"{LAMP_PATH}/actions/fade", json={"to": 4}, headers=headers)

    assert first.json()["requestID"] == again.json()["requestID"]
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert somebody.status_code == 201


async def test_an_action_that_is_never_queued_needs_its_agent(lamps: House) -> None:
    async with lamps.client("operator1") as operator:
        reply = await operator.post(f"{LAMP_PATH}/actions/now")
        assert (reply.status_code, reply.json()["code"]) == (503, "not-connected")
        assert (await operator.get("/requests")).json()["items"] == []


async def test_a_queued_action_is_cancelled_and_stays_so(lamps: House) -> None:
    async with lamps.client("operator1") as operator, lamps.client("viewer1") as viewer:
        href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
        assert (await viewer.delete(href)).status_code in (403, 404)
        assert (await operator.delete(href)).status_code == 204
        assert (await operator.get(href)).json()["status"] == "failed"
        again = await operator.delete(href)
        assert (again.status_code, again.json()["code"]) == (409, "conflict")


async def test_rpc_answers_or_says_why_not(lamps: House) -> None:
    async with lamps.client("operator1") as operator:
        absent = await operator.post("/rpc/dtw:lights:lamp/fade", json={"to": 1})
        assert (absent.status_code, absent.json()["code"]) == (503, "not-connected")

        async with listening(lamps) as (lights, events):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: _answers(lights, events, output={"ok": True}))
                good = await operator.post("/rpc/dtw:lights:lamp/fade", json={"to": 1})
            assert (good.status_code, good.json()) == (200, {"ok": True})

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: _answers(lights, events, error="bulb is broken"))
                bad = await operator.post("/rpc/dtw:lights:lamp/fade", json={"to": 1})
            assert (bad.status_code, bad.json()["detail"]) == (502, "bulb is broken")

            late = await operator.post("/rpc/dtw:lights:lamp/fade", json={"to": 1}, headers={"prefer": "wait=0.1"})
            assert (late.status_code, late.json()["code"]) == (504, "timeout")


async def test_requests_are_listed_by_state_and_for_their_caller_only(lamps: House) -> None:
    async with lamps.client("operator1") as operator, lamps.client("manager1") as manager:
        href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
        await manager.post(f"{LAMP_PATH}/actions/blink")
        await operator.delete(href)

        assert len((await operator.get("/requests")).json()["items"]) == 1
        assert len((await manager.get("/requests")).json()["items"]) == 2
        cancelled = (await manager.get("/requests?state=cancelled&thing=dtw:lights:lamp")).json()["items"]
        assert [row["caller"] for row in cancelled] == ["operator1"]
        assert (await manager.get("/requests?state=odd")).status_code == 400
        assert (await manager.get("/requests?from=yesterday")).status_code == 400
        page = (await manager.get("/requests?limit=1")).json()
        rest = (await manager.get(f"/requests?limit=1&cursor={page['cursor']}")).json()
        assert page["items"][0]["requestID"] > rest["items"][0]["requestID"]
        assert (await operator.get("/requests/nonsense")).status_code == 404


async def test_inbox_streams_statuses_and_replays_what_was_missed(lamps: House) -> None:
    async with lamps.client("operator1") as operator:
        async with operator.stream("GET", "/inbox") as response:
            inbox = Events(response)
            href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
            event = await inbox.next()
            assert event["event"] == "status"
            assert json.loads(event["data"])["state"] == "pending"
            assert json.loads(event["data"])["seq"] == int(event["id"])
        await operator.delete(href)

        async with operator.stream("GET", "/inbox", headers={"last-event-id": event["id"]}) as response:
            missed = await Events(response).data()
        assert (missed["state"], missed["requestID"]) == ("cancelled", href.rpartition("/")[2])

        polled = (await operator.get("/inbox?after=0")).json()
        assert [status["state"] for status in polled["items"]] == ["pending", "cancelled"]
        with anyio.fail_after(30):
            nothing = (await operator.get(f"/inbox?after={polled['cursor']}&wait=0.1")).json()
        assert nothing == {"items": [], "cursor": polled["cursor"]}
        assert (await operator.get("/inbox", headers={"last-event-id": "x"})).status_code == 400


async def test_inbox_long_poll_ends_when_a_status_comes(lamps: House) -> None:
    async with lamps.client("operator1") as operator, lamps.client("viewer1") as viewer:
        found: list[Any] = []

        async def poll() -> None:
            found.append((await operator.get("/inbox?after=0&wait=60")).json()["items"])

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await operator.post(f"{LAMP_PATH}/actions/blink")
        assert [status["state"] for status in found[0]] == ["pending"]
        assert (await viewer.get("/inbox?after=0")).json()["items"] == []


async def test_a_status_for_a_foreign_or_unknown_request_is_404(lamps: House) -> None:
    await lamps.account("thief", *_AGENT)
    async with lamps.client("operator1") as operator, lamps.client("thief") as thief:
        href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
        for request_id in (href.rpartition("/")[2], "00000000-0000-7000-8000-000000000000"):
            reply = await thief.post(f"/agent/status/{request_id}", json={"state": "completed"})
            assert (reply.status_code, reply.json()["code"]) == (404, "unknown-request")
        assert (await operator.get(href)).json()["status"] == "pending"


async def test_agent_polls_for_requests_and_gets_lost_replies_again(lamps: House) -> None:
    async with lamps.client("operator1") as operator, lamps.client("lights") as lights:
        href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
        first = await lights.get("/agent/requests?wait=5")
        assert float(first.headers["poll-interval"]) == 30
        page = first.json()
        assert [request["name"] for request in page["items"]] == ["blink"]
        assert page["items"][0]["expires"].endswith("Z")

        again = (await lights.get("/agent/requests?after=0&wait=1")).json()
        assert [request["requestID"] for request in again["items"]] == [page["items"][0]["requestID"]]
        assert (await lights.get(f"/agent/requests?after={page['cursor']}&wait=0")).json()["items"] == []

        # Between two polls the agent is still reachable.
        assert (await operator.post(f"{LAMP_PATH}/actions/now")).status_code == 201
        assert [one["name"] for one in (await lights.get("/agent/requests?wait=5")).json()["items"]] == ["now"]
        await lights.post(f"/agent/status/{page['items'][0]['requestID']}", json={"state": "completed"})
        assert (await operator.get(href)).json()["status"] == "completed"


async def test_an_agent_that_stops_polling_is_gone_and_its_requests_return(tmp_path: Path) -> None:
    async with (
        lamp_house(tmp_path / "home", HttpConfig(poll_interval_s=0.2)) as lamps,
        lamps.client("operator1") as operator,
        lamps.client("lights") as lights,
    ):
        href = (await operator.post(f"{LAMP_PATH}/actions/blink")).headers["location"]
        assert len((await lights.get("/agent/requests?wait=5")).json()["items"]) == 1
        await eventually(lamps.no_sessions)
        assert (await operator.post(f"{LAMP_PATH}/actions/now")).status_code == 503

        async def is_pending() -> bool:
            return bool((await operator.get(href)).json()["state"] == "pending")

        # The row returns by a transaction of its own, which the session's end does not wait for.
        await eventually(is_pending)
        assert len((await lights.get("/agent/requests?wait=5")).json()["items"]) == 1


async def test_a_later_poll_takes_over_and_keeps_the_agent_reachable(tmp_path: Path) -> None:
    async with (
        lamp_house(tmp_path / "home", HttpConfig(poll_interval_s=0.3)) as lamps,
        lamps.client("lights") as one,
        lamps.client("lights") as two,
        lamps.client("operator1") as operator,
    ):
        former: list[Any] = []
        later: list[Any] = []

        async def poll(client: httpx.AsyncClient, into: list[Any]) -> None:
            into.extend((await client.get("/agent/requests?wait=30")).json()["items"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll, one, former)
            await eventually(lamps.some_session)
            tasks.start_soon(poll, two, later)
            # Longer than the interval: the poll that was taken over must not end the session of the one that waits.
            await anyio.sleep(0.6)
            assert (await operator.post(f"{LAMP_PATH}/actions/now")).status_code == 201
        assert former == []
        assert [request["name"] for request in later] == ["now"]


async def test_batch_stores_the_valid_items_and_names_the_others(lamps: House) -> None:
    def item(**members: Any) -> dict[str, Any]:
        base = {"v": 1, "operation": "publish_property", "thingID": "lamp", "name": "level", "data": 1}
        return base | members

    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        batch = [
            item(data=5, created="2026-01-01T00:00:00Z", messageID="a"),
            item(data="much", messageID="b"),
            item(operation="invoke_action", messageID="c"),
            item(thingID="unknown", messageID="d"),
            item(operation="publish_event", name="overheated", data=90.5, messageID="e"),
            7,
        ]
        reply = await lights.post("/agent/batch", json=batch)
        assert reply.status_code == 200, reply.text
        result = reply.json()
        assert (result["stored"], result["duplicates"]) == (2, 0)
        assert [(one["index"], one["messageID"]) for one in result["rejected"]] == [
            (1, "b"),
            (2, "c"),
            (3, "d"),
            (5, None),
        ]
        assert (await viewer.get(f"{LAMP_PATH}/properties/level")).json() == 5
        again = (await lights.post("/agent/batch", json=batch[:1])).json()
        assert (again["stored"], again["duplicates"]) == (0, 1)

        assert (await lights.post("/agent/batch", json={"v": 1})).status_code == 400
        assert (await lights.post("/agent/batch", json=[item()] * 5_001)).status_code == 400


async def test_values_of_a_write_only_property_are_refused_and_kept_nowhere(lamps: House) -> None:
    td = {**LAMP, "properties": {"pin": {"type": "string", "writeOnly": True}, "level": {"type": "integer"}}}
    item = {"v": 1, "operation": "publish_property", "thingID": "lamp", "name": "pin", "data": "1234"}
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer, lamps.client("manager1") as manager:
        assert (await lights.put("/agent/things/lamp", json=td)).status_code in (201, 204)

        alone = await lights.post("/agent/things/lamp/properties", json={"pin": "1234"})
        beside = await lights.post("/agent/things/lamp/properties", json={"pin": "1234", "level": 3})
        batch = (await lights.post("/agent/batch", json=[item])).json()

        assert (alone.status_code, alone.json()["code"]) == (400, "invalid")
        assert (beside.json()["rejected"], beside.json()["stored"]) == ({"pin": "invalid"}, 1)
        assert [each["code"] for each in batch["rejected"]] == ["invalid"]
        assert (await viewer.get(f"{LAMP_PATH}/properties/level")).json() == 3
        assert (await viewer.get(f"{LAMP_PATH}/properties/pin")).status_code == 404
        assert (await viewer.get(f"{LAMP_PATH}/history?name=pin")).json()["items"] == []
        assert (await manager.put(f"{LAMP_PATH}/properties/pin", json="1234")).status_code == 202, "it can be written"


async def test_publishing_options_are_checked(lamps: House) -> None:
    path = "/agent/things/lamp/events/touched"
    async with lamps.client("lights") as lights:
        assert (await lights.post(f"{path}?guarantee=none")).status_code == 202
        assert (await lights.post(f"{path}?guarantee=perhaps")).status_code == 400
        assert (await lights.post(f"{path}?created=2026-01-01T00:00:00Z")).status_code == 204
        assert (await lights.post(f"{path}?created=2026-01-01T00:00:00%2B02:00")).status_code == 204
        assert (await lights.post(f"{path}?created=lately")).status_code == 400
        assert (await lights.post("/agent/things/no%20thing/events/touched")).status_code == 400
        refused = await lights.post("/agent/things/lamp/properties", json={"level": "x", "mode": "y"})
        assert refused.status_code == 400
        assert refused.json()["rejected"] == {"level": "invalid"}
        assert refused.json()["stored"] == 1


async def test_an_action_of_a_built_in_service_is_answered_with_its_output(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer, lamps.client("operator1") as operator:
        td = (await operator.get("/things/dtw:directory:things")).json()
        path = "/things/dtw:directory:things/actions/readTD"
        read = await operator.post(path, json={"thingID": "dtw:lights:lamp"})
        unknown = await operator.post(path, json={"thingID": "dtw:lights:none"})
        wrong = await operator.post(path, json={})
        read_by_viewer = await viewer.post(path, json={"thingID": "dtw:lights:lamp"})

    assert td["actions"]["readTD"]["synchronous"] is True
    assert (read.status_code, read.json()["title"]) == (200, "Lamp")
    assert "location" not in read.headers
    assert (unknown.status_code, wrong.status_code) == (404, 400)
    assert read_by_viewer.status_code == 200
