"""The binding over a real runtime and every engine, with paho as an independent MQTT 3.1.1 client."""

import json
from asyncio import Future, get_running_loop
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from runtime.ports import Appended, History, HistoryQuery, Reading, Row
from tests.bindings.mqtt.engines.contract import EngineType
from tests.bindings.mqtt.support import LAMP, Client, House, Refused, lamp_house
from things.addresses import Kind
from things.errors import StorageFull
from things.identity import AccountType, Role
from things.messages import JSONValue
from things.records import HistoryQuery as Query

pytestmark = pytest.mark.anyio

TWIN = "dtw:lights:lamp"


# ---------------------------------------------------------------- publishing


async def test_an_acknowledged_event_is_stored_and_reaches_who_may_see_it(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/lights/lamp/event/#")
        await agent.publish("agents/lights/event/lamp/overheated", 71.5)

        stored = await lamp.twin.history.read(Query(things=[TWIN], kind=Kind.EVENT))
        event = await viewer.receive()

    assert [(row.name, row.value) for row in stored] == [("overheated", b"71.5")]
    assert (event.topic, event.value, event.qos, event.retain) == (
        "things/lights/lamp/event/overheated",
        71.5,
        1,
        False,
    )


async def test_an_event_may_come_without_data_and_a_property_may_not(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await agent.subscribe("inbox/lights/refused")
        await viewer.subscribe("things/lights/lamp/event/+")
        await agent.publish("agents/lights/event/lamp/touched", raw=b"")
        await agent.publish("agents/lights/property/lamp/level", raw=b"")

        assert (await viewer.receive()).value is None
        assert (await agent.receive()).value["type"] == "urn:skep:error:invalid"


async def test_new_subscribers_get_the_latest_values_and_tds_retained_and_never_an_event(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await agent.publish("agents/lights/property/lamp/level", 1)
        await agent.publish("agents/lights/property/lamp/level", 2)
        await agent.publish("agents/lights/event/lamp/touched", None)
        await viewer.subscribe("things/#")

        received = {message.topic: message for message in await viewer.settle()}

    assert {message.retain for message in received.values()} == {True}
    assert received["things/lights/lamp/property/level"].value == 2
    assert isinstance(received["things/lights/lamp/property/online"].value, bool)
    assert received["things/lights/lamp/property/lastSeen"].value.endswith("Z")
    assert received["things/lights/lamp/td"].value["id"] == TWIN
    assert not [topic for topic in received if "/event/" in topic]


async def test_retain_flags_of_clients_are_ignored(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        agent.paho.publish("agents/lights/event/lamp/touched", b"1", 1, retain=True)
        await agent.publish("agents/lights/event/lamp/touched", 2)
        await viewer.subscribe("things/lights/lamp/event/+")
        await viewer.subscribe("things/lights/lamp/event/touched")

        assert await viewer.settle() == []


async def test_many_properties_in_one_publish_are_stored_together(lamp: House) -> None:
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/refused")
        await agent.publish("agents/lights/properties/lamp", {"level": 9, "temperature": 20.5})
        await agent.publish("agents/lights/properties/lamp", {"level": "high", "temperature": 21.5})

        refused = (await agent.receive()).value

    values = {name: value.value for (_, name), value in lamp.twin.values.of_thing(TWIN).items()}
    assert values == {"level": 9, "temperature": 21.5}
    assert "level" in refused["detail"]


async def test_what_follows_a_td_at_once_is_judged_by_that_td(lamp: House) -> None:
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        for number in range(20):
            agent.send(f"agents/lights/td/new{number}", LAMP)
            agent.send(f"agents/lights/property/new{number}/level", 1)
            agent.send(f"agents/lights/property/new{number}/level", 2)
            agent.send(f"agents/lights/properties/new{number}", {"temperature": 3})
        batch = [item("touched", None, thingID="new20")]
        agent.send("agents/lights/td/new20", LAMP)
        agent.send("agents/lights/batch", batch)
        result = await agent.receive()

    assert result.value == {"stored": 1, "duplicates": 0, "rejected": []}
    for number in range(20):
        values = lamp.twin.values.of_thing(f"dtw:lights:new{number}")
        assert {name: value.value for (_, name), value in values.items()} == {"level": 2, "temperature": 3}


async def test_an_empty_td_removes_the_thing_and_tells_observers_with_an_empty_payload(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/+/+/td")
        assert (await viewer.receive()).value["title"] == "Lamp"
        await agent.publish("agents/lights/td/lamp", {**LAMP, "title": "Lantern"})
        assert (await viewer.receive()).value["title"] == "Lantern"
        await agent.publish("agents/lights/td/lamp", raw=b"")

        assert (await viewer.receive()).payload == b""

    assert lamp.twin.directory.get(TWIN) is None


REFUSED: list[tuple[str, bytes, str]] = [
    ("agents/lights/event/lamp/overheated", b"{", "malformed"),
    ("agents/lights/event/lamp/overheated", b'"hot"', "invalid"),
    ("agents/lights/event/lamp/overheated", b"NaN", "malformed"),
    ("agents/lights/event/lamp/overheated", b"[" * 200 + b"]" * 200, "too-deep"),
    ("agents/lights/event/nothing/x", b"1", "unknown-thing"),
    ("agents/lights/property/lamp/level", b'"high"', "invalid"),
    ("agents/lights/properties/lamp", b"[]", "malformed"),
    ("agents/lights/td/lamp", b'{"title": 1}', "td-invalid"),
    ("agents/lights/td/lamp", b"\xff", "malformed"),
    ("agents/lights/batch", b"{}", "malformed"),
    ("agents/lights/status/nothing", b'{"state":"completed"}', "unknown-request"),
    ("agents/lights/nonsense/lamp", b"1", "bad-address"),
    ("agents/other/event/lamp/touched", b"1", "forbidden"),
    ("things/lights/lamp/event/touched", b"1", "forbidden"),
    ("inbox/viewer1/status/x", b"1", "forbidden"),
    ("$SYS/x", b"1", "forbidden"),
    ("req/other/action/lights/lamp/blink/r1", b"", "forbidden"),
]


@pytest.mark.parametrize(("topic", "payload", "code"), REFUSED)
async def test_what_is_refused_for_good_is_acknowledged_and_told_in_the_inbox(
    lamp: House, topic: str, payload: bytes, code: str
) -> None:
    before = await lamp.twin.history.read(Query(things=[TWIN]))
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/+/+/event/#")
        await agent.subscribe("inbox/lights/refused")
        await agent.publish(topic, raw=payload)

        told = (await agent.receive()).value
        assert await viewer.settle() == []

    assert (told["type"], told["topic"]) == (f"urn:skep:error:{code}", topic)
    assert "Traceback" not in json.dumps(told)
    assert await lamp.twin.history.read(Query(things=[TWIN])) == before


async def test_a_refused_request_names_the_callers_reference(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer:
        await viewer.subscribe("inbox/viewer1/#")
        await viewer.publish("req/viewer1/action/lights/lamp/fade/mine", {"to": 1})

        told = (await viewer.receive()).value

    assert (told["type"], told["callerRef"]) == ("urn:skep:error:forbidden", "mine")


# ---------------------------------------------------------------- storage that fails


class Full:
    """History without space."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.is_full = False

    @property
    def last_row(self) -> int:
        return self._history.last_row

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        return await self._history.read(query)

    async def horizon(self, query: HistoryQuery, *, max_bytes: int, received: int) -> int:
        return await self._history.horizon(query, max_bytes=max_bytes, received=received)

    def append(self, readings: Sequence[Reading]) -> "Future[Sequence[Appended]]":
        if self.is_full:
            refused: Future[Sequence[Appended]] = get_running_loop().create_future()
            refused.set_exception(StorageFull())
            return refused
        return self._history.append(readings)

    def place(self, reading: Reading) -> int | None:
        return None if self.is_full else self._history.place(reading)

    def on_lost(self, callback: Callable[[int, BaseException], None]) -> None:
        self._history.on_lost(callback)


async def test_without_space_a_publish_is_not_acknowledged_and_succeeds_when_it_comes_again(
    any_engine: EngineType, tmp_path: Path
) -> None:
    made: list[Full] = []

    def full(history: History) -> History:
        made.append(Full(history))
        return made[0]

    async with lamp_house(tmp_path / "home", any_engine, history=full) as lamp:
        async with lamp.client("lights") as agent:
            made[0].is_full = True
            agent.send("agents/lights/event/lamp/overheated", 1)
            assert await agent.is_lost()
        made[0].is_full = False
        async with lamp.client("lights") as agent:
            await agent.publish("agents/lights/event/lamp/overheated", 1)

        assert len(await lamp.twin.history.read(Query(things=[TWIN], kind=Kind.EVENT))) == 1


# ---------------------------------------------------------------- batches


def item(name: str, data: JSONValue, **more: JSONValue) -> dict[str, JSONValue]:
    return {"v": 1, "operation": "publish_event", "thingID": "lamp", "name": name, "data": data, **more}


async def test_a_batch_stores_what_is_valid_in_one_go_and_tells_what_was_not(lamp: House) -> None:
    created = "2026-01-31T12:00:00Z"
    batch = [
        item("overheated", 1, created=created, messageID="a"),
        item("overheated", "hot", messageID="b"),
        item("overheated", 2, created=created, messageID="a2"),
        item("overheated", 1, created=created, messageID="a"),
        {"v": 1, "operation": "invoke_action", "thingID": "lamp", "name": "fade", "data": {}, "messageID": "c"},
        item("overheated", 3, created="yesterday"),
        item("touched", None, thingID="dtw:other:lamp"),
        item("touched", None, thingID="dtw:lights:lamp"),
        {**item("level", 4), "operation": "publish_property"},
    ]
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/lights/lamp/event/overheated")
        await agent.subscribe("inbox/lights/batch")
        await agent.publish("agents/lights/batch", batch)

        result = (await agent.receive()).value
        events = [(await viewer.receive()).value for _ in range(2)]

    assert events == [1, 2]
    assert (result["stored"], result["duplicates"]) == (4, 1)
    assert [(each["index"], each["messageID"], each["code"]) for each in result["rejected"]] == [
        (1, "b", "invalid"),
        (4, "c", "invalid"),
        (5, None, "invalid"),
        (6, None, "forbidden"),
    ]
    assert lamp.twin.values.of_thing(TWIN)[Kind.PROPERTY, "level"].value == 4


async def test_a_batch_over_its_bound_is_refused_whole(lamp: House) -> None:
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        await agent.publish("agents/lights/batch", raw=b"[" + b",".join([b"{}"] * 5_001) + b"]")

        assert (await agent.receive()).topic == "inbox/lights/refused"


# ---------------------------------------------------------------- requests


async def test_an_action_goes_to_the_agent_and_every_status_comes_back(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("operator1") as caller:
        await agent.subscribe("inbox/lights/#")
        await caller.subscribe("inbox/operator1/status/+")
        await caller.publish("req/operator1/action/lights/lamp/fade/r%201", {"to": 5})
        request = await agent.receive()
        _, _, kind, thing, name, request_id = request.topic.split("/")
        await agent.publish(f"agents/lights/status/{request_id}", {"state": "running", "progress": 50})
        await agent.publish(f"agents/lights/status/{request_id}", {"state": "completed", "output": "done"})

        statuses = [(await caller.receive()).value for _ in range(4)]

    assert (kind, thing, name, request.value) == ("action", "lamp", "fade", {"to": 5})
    assert [status["state"] for status in statuses] == ["pending", "delivered", "running", "completed"]
    assert {status["callerRef"] for status in statuses} == {"r 1"}
    assert {status["requestID"] for status in statuses} == {request_id}
    assert [status["seq"] for status in statuses] == sorted({status["seq"] for status in statuses})
    assert statuses[-1]["output"] == "done"


async def test_a_request_for_an_absent_agent_waits_and_is_delivered_once(lamp: House) -> None:
    async with lamp.client("operator1") as caller:
        await caller.subscribe("inbox/operator1/#")
        for number in range(3):
            await caller.publish(f"req/operator1/action/lights/lamp/fade/r{number}", {"to": number})
        assert {status.value["state"] for status in await caller.settle()} == {"pending"}
        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/+/#")
            requests = [await agent.receive() for _ in range(3)]
            for request in requests:
                await agent.publish(f"agents/lights/status/{request.topic.split('/')[-1]}", {"state": "completed"})
            for number in range(3):
                assert (await caller.final(f"inbox/operator1/status/r{number}"))["state"] == "completed"
        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/#")
            assert await agent.settle() == []

    assert [request.value["to"] for request in requests] == [0, 1, 2]


async def test_a_request_the_agent_never_acknowledged_is_delivered_again(lamp: House) -> None:
    async with lamp.client("operator1") as caller:
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        agent = lamp.client("lights", "first")
        async with agent:
            await agent.subscribe("inbox/lights/#")
            first = await agent.receive()
            await agent.break_off()
        async with lamp.client("lights", "second") as agent:
            await agent.subscribe("inbox/lights/#")
            again = await agent.receive()

    assert again.topic == first.topic
    assert again.payload == b""


async def test_the_same_reference_again_is_the_same_request(lamp: House) -> None:
    async with lamp.client("operator1") as caller:
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/action/lights/lamp/fade/r1", {"to": 1})
        first = (await caller.receive()).value
        await caller.publish("req/operator1/action/lights/lamp/fade/r1", {"to": 1})
        again = await caller.settle()
        await caller.publish("req/operator1/action/lights/lamp/fade/r1", {"to": 2})
        conflict = (await caller.receive()).value

    assert {message.value["requestID"] for message in again} <= {first["requestID"]}
    assert conflict["type"] == "urn:skep:error:conflict"


async def test_a_value_said_before_completed_is_heard_before_it(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("operator1") as caller:
        await agent.subscribe("inbox/lights/#")
        await caller.subscribe("inbox/operator1/#")
        await caller.subscribe("things/lights/lamp/property/+")
        for number in range(20):
            await caller.publish(f"req/operator1/action/lights/lamp/blink/r{number}", raw=b"")
            request_id = (await agent.receive()).topic.split("/")[-1]
            agent.send("agents/lights/property/lamp/level", number)
            agent.send(f"agents/lights/status/{request_id}", {"state": "running"})
            agent.send(f"agents/lights/status/{request_id}", {"state": "completed"})
            heard = []
            while "completed" not in heard:
                message = await caller.receive()
                heard.append(message.value["state"] if "/status/" in message.topic else message.value)

            assert [word for word in heard if word in (number, "running", "completed")] == [
                number,
                "running",
                "completed",
            ]


async def test_a_property_write_reaches_the_agent_and_the_value_changes_only_when_it_says_so(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("manager1") as caller:
        await agent.subscribe("inbox/lights/property/#")
        await caller.subscribe("inbox/manager1/#")
        await caller.publish("req/manager1/property/lights/lamp/level/w1", 30)
        request = await agent.receive()
        assert (Kind.PROPERTY, "level") not in lamp.twin.values.of_thing(TWIN)
        await agent.publish("agents/lights/property/lamp/level", 30)
        await agent.publish(f"agents/lights/status/{request.topic.split('/')[-1]}", {"state": "completed"})

        assert (await caller.final("inbox/manager1/status/w1"))["state"] == "completed"

    assert request.topic.startswith("inbox/lights/property/lamp/level/")
    assert lamp.twin.values.of_thing(TWIN)[Kind.PROPERTY, "level"].value == 30


async def test_an_rpc_is_answered_by_a_connected_agent_and_never_queued(lamp: House) -> None:
    async with lamp.client("operator1") as caller:
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/rpc/lights/lamp/blink/absent", raw=b"")
        assert (await caller.receive()).value["type"] == "urn:skep:error:not-connected"
        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/#")
            await caller.publish("req/operator1/rpc/lights/lamp/blink/present", raw=b"")
            request = await agent.receive()
            await agent.publish(
                f"agents/lights/status/{request.topic.split('/')[-1]}", {"state": "completed", "output": 7}
            )
            final = await caller.final("inbox/operator1/status/present")

    assert request.topic.startswith("inbox/lights/rpc/lamp/blink/")
    assert final["output"] == 7


async def test_a_service_answers_a_call_at_once(lamp: House) -> None:
    async with lamp.client("admin1") as caller:
        await caller.subscribe("inbox/admin1/#")
        await caller.publish("req/admin1/rpc/skep/requests/list/l1", {})

        answer = await caller.receive()

    assert answer.topic in ("inbox/admin1/status/l1", "inbox/admin1/refused")


async def test_a_cancelled_request_ends_and_the_agent_is_told(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("operator1") as caller:
        await agent.subscribe("inbox/lights/#")
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        request_id = (await agent.receive()).topic.split("/")[-1]
        while (await caller.receive()).value["state"] != "delivered":
            pass
        await caller.publish("req/operator1/cancel/r1", raw=b"")
        assert (await agent.receive()).topic == f"inbox/lights/cancel/{request_id}"
        await agent.publish(f"agents/lights/status/{request_id}", {"state": "cancelled"})

        assert (await caller.final("inbox/operator1/status/r1"))["state"] == "cancelled"


async def test_statuses_can_be_replayed_from_any_point(lamp: House) -> None:
    async with lamp.client("operator1") as caller:
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        await caller.publish("req/operator1/cancel/r1", raw=b"")
        await caller.subscribe("inbox/operator1/status/+")
        assert await caller.settle() == []
        await caller.publish("req/operator1/replay", {"after": 0})
        states = [(await caller.receive()).value for _ in range(2)]
        await caller.publish("req/operator1/replay", {"after": states[0]["seq"]})
        again = (await caller.receive()).value

    assert [status["state"] for status in states] == ["pending", "cancelled"]
    assert again == states[1]


async def test_another_agent_cannot_answer_for_a_request(lamp: House) -> None:
    await lamp.account("mallory", AccountType.AGENT, Role.AGENT)
    async with lamp.client("lights") as agent, lamp.client("mallory") as mallory, lamp.client("operator1") as caller:
        await agent.subscribe("inbox/lights/#")
        await mallory.subscribe("inbox/mallory/#")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        request_id = (await agent.receive()).topic.split("/")[-1]
        await mallory.publish(f"agents/mallory/status/{request_id}", {"state": "completed"})

        assert (await mallory.receive()).value["type"] == "urn:skep:error:unknown-request"


async def test_a_request_no_filter_of_the_agent_takes_yet_waits_for_one_and_holds_nobody_up(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("manager1") as caller:
        await agent.subscribe("inbox/lights/action/#")
        await caller.publish("req/manager1/property/lights/lamp/level/w1", 1)
        await caller.publish("req/manager1/action/lights/lamp/blink/r1", raw=b"")
        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")
        await agent.subscribe("inbox/lights/property/#")

        assert (await agent.receive()).topic.startswith("inbox/lights/property/lamp/level/")


# ---------------------------------------------------------------- filters


REFUSED_FILTERS = [
    ("viewer1", "inbox/lights/#"),
    ("viewer1", "inbox/+/#"),
    ("viewer1", "#"),
    ("viewer1", "+/#"),
    ("viewer1", "agents/lights/#"),
    ("viewer1", "req/viewer1/#"),
    ("viewer1", "$SYS/#"),
    ("viewer1", "elsewhere"),
    ("viewer1", "things/lights/lamp/action/fade"),
    ("none1", "things/#"),
    ("none1", "things/lights/lamp/property/level"),
    ("lights", "$SYS/#"),
]


@pytest.mark.parametrize(("account", "topic_filter"), REFUSED_FILTERS)
async def test_a_filter_that_can_match_nothing_permitted_is_refused(
    lamp: House, account: str, topic_filter: str
) -> None:
    async with lamp.client(account) as client:
        with pytest.raises(Refused):
            await client.subscribe(topic_filter)


async def test_who_may_see_less_gets_less_from_the_same_filter(lamp: House) -> None:
    async with (
        lamp.client("lights") as agent,
        lamp.client("viewer1") as viewer,
        lamp.client("operator1") as operator,
    ):
        await agent.subscribe("inbox/lights/#")
        for client in (viewer, operator):
            await client.subscribe("things/lights/lamp/+/+")
        await operator.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        request_id = (await agent.receive()).topic.split("/")[-1]
        await agent.publish(f"agents/lights/status/{request_id}", {"state": "completed", "output": "secret"})
        await agent.publish("agents/lights/event/lamp/touched", 1)
        progress = await operator.receive_on("things/lights/lamp/action/blink")
        await operator.receive_on("things/lights/lamp/event/touched")

        seen = [(await viewer.receive_on("things/lights/lamp/event/touched")).topic]

    assert seen == ["things/lights/lamp/event/touched"]
    assert set(progress.value) <= {"requestID", "state", "updated"}


async def test_overlapping_filters_deliver_once_at_the_highest_qos(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/#", 0)
        await viewer.subscribe("things/+/+/event/+", 1)
        await viewer.subscribe("things/lights/lamp/event/touched", 0)
        await viewer.settle()
        await agent.publish("agents/lights/event/lamp/touched", 1)
        await agent.publish("agents/lights/event/lamp/overheated", 2)

        received = [await viewer.receive(), await viewer.receive()]
        assert await viewer.settle() == []

    assert [(message.value, message.qos) for message in received] == [(1, 1), (2, 1)]


async def test_an_unsubscribed_filter_delivers_no_more(lamp: House) -> None:
    async with lamp.client("lights") as agent, lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/lights/lamp/event/+")
        await viewer.unsubscribe("things/lights/lamp/event/+")
        await agent.publish("agents/lights/event/lamp/touched", 1)

        assert await viewer.settle() == []


async def test_figures_of_the_runtime_are_for_admins(lamp: House) -> None:
    async with lamp.client("admin1") as admin:
        await admin.subscribe("$SYS/#")

        figures = {message.topic: message.value for message in await admin.settle()}

    assert figures["$SYS/mqtt/clients"] == 1


async def test_a_shared_group_takes_turns_and_stays_within_its_account(lamp: House) -> None:
    async with (
        lamp.client("lights") as agent,
        lamp.client("viewer1", "a") as one,
        lamp.client("viewer1", "b") as two,
        lamp.client("operator1") as other,
    ):
        for client in (one, two, other):
            await client.subscribe("$share/workers/things/+/+/event/+")
        for number in range(10):
            await agent.publish("agents/lights/event/lamp/overheated", number)
        shares = [[message.value for message in await client.settle()] for client in (one, two)]
        whole = [message.value for message in await other.settle()]
        await two.unsubscribe("$share/workers/things/+/+/event/+")
        await agent.publish("agents/lights/event/lamp/overheated", 10)

        assert (await one.receive()).value == 10

    assert [len(share) for share in shares] == [5, 5]
    assert sorted(shares[0] + shares[1]) == list(range(10))
    assert whole == list(range(10))


# ---------------------------------------------------------------- links


async def test_a_will_is_published_for_its_agent_when_it_is_lost(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/lights/lamp/event/+")
        async with lamp.client("lights", will=("agents/lights/event/lamp/overheated", b"99")) as agent:
            await agent.break_off()

        assert (await viewer.receive()).value == 99


FORGED_WILLS = [
    ("lights", "agents/other/event/lamp/touched", b"1"),
    ("lights", "things/lights/lamp/event/touched", b"1"),
    ("lights", "inbox/viewer1/status/x", b"1"),
    ("lights", "agents/lights/event/lamp/touched", b"{"),
    ("viewer1", "agents/viewer1/event/lamp/touched", b"1"),
]


@pytest.mark.parametrize(("account", "topic", "payload"), FORGED_WILLS)
async def test_a_will_that_would_be_refused_refuses_the_connect(
    lamp: House, account: str, topic: str, payload: bytes
) -> None:
    with pytest.raises(Refused):
        async with lamp.client(account, will=(topic, payload)):
            pass


async def test_a_revoked_account_is_cut_off(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer:
        await lamp.authenticator.administration.disable("viewer1", by="test")

        assert await viewer.is_lost()

    with pytest.raises(Refused):
        async with lamp.client("viewer1"):
            pass


async def test_wrong_secrets_and_unknown_accounts_are_refused_alike(lamp: House) -> None:
    reasons = set()
    for account, secret in (
        ("viewer1", "wrong"),
        ("nobody", "wrong"),
        ("viewer1", ""),
        ("lights", lamp.tokens["viewer1"]),
    ):
        with pytest.raises(Refused) as refused:
            async with Client(lamp.binding.addresses[0], account, secret):
                pass
        reasons.add(str(refused.value))

    assert len(reasons) == 1


async def test_nothing_of_a_client_is_left_when_it_has_gone(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer, lamp.client("lights", "x") as agent:
        await viewer.subscribe("things/#")
        await viewer.subscribe("$share/g/things/#")
        await agent.subscribe("inbox/lights/#")
        assert len(lamp.runtime.sessions.everyone()) == 3
    async with lamp.client("admin1") as admin:
        await admin.subscribe("$SYS/mqtt/clients")
        while len(lamp.runtime.sessions.everyone()) > 1:
            await admin.settle()

        assert lamp.runtime.deliveries.is_reachable("lights") is False
