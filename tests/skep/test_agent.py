"""Agents against the real MQTT engines: what they announce, keep, repeat and answer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest
from pydantic import JsonValue

from bindings.mqtt.engines.seam import Outcome, Publish
from skep import Agent, AgentRequest, Consumer, Problem, Refused, Runtime
from skep.mqtt_client import MQTTVersion
from skep.testing import Gateway
from tests.skep.gateways import ENGINES, served
from things.errors import BadAddress, Invalid, TDInvalid, TimedOut, Unauthenticated, UnknownName, UnknownThing
from things.samples import sample_td

pytestmark = pytest.mark.anyio

TD = sample_td("pump-station")
CET = timezone(timedelta(hours=1))
NOWHERE = "mqtt://127.0.0.1:9"


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def url(engine: str, gateway: Gateway) -> AsyncIterator[str]:
    async with served(engine, gateway) as port:
        yield f"mqtt://127.0.0.1:{port}"


def an_agent(url: str, **options: object) -> Agent:
    agent = Agent(url, "pumps", "secret", **options)  # type: ignore[arg-type]
    agent.expose("pump-1", TD)
    return agent


async def test_agent_announces_its_things_before_it_takes_requests(url: str, gateway: Gateway) -> None:
    async with an_agent(url):
        await gateway.takes_requests()

    assert gateway.topics()[0] == "agents/pumps/td/pump-1"
    assert gateway.published[0].payload == TD


async def test_values_and_events_carry_ids_and_source_times(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        await agent.publish("pump-1", "flow", 12.5, created=datetime(2023, 11, 14, 23, 13, 20, tzinfo=CET))
        await agent.event("pump-1", "alarm", {"reason": "pressure"})
        await agent.flush(10)

    first, second = gateway.readings()
    assert (first["operation"], first["thingID"], first["name"], first["data"]) == (
        "publish_property",
        "pump-1",
        "flow",
        12.5,
    )
    assert first["created"] == "2023-11-14T22:13:20Z"
    assert second["operation"] == "publish_event"
    assert first["messageID"] != second["messageID"]


async def test_version_five_is_used_where_the_server_speaks_it(url: str, gateway: Gateway, engine: str) -> None:
    async with an_agent(url):
        level = gateway.links[-1].protocol_level

    assert level == (5 if engine == "native" else 4)


async def test_version_can_be_fixed(url: str, gateway: Gateway) -> None:
    async with an_agent(url, mqtt_version=MQTTVersion.V311):
        assert gateway.links[-1].protocol_level == 4


async def test_wrong_secret_is_said_at_once(url: str) -> None:
    with pytest.raises(Unauthenticated):
        async with Agent(url, "pumps", "wrong"):
            pytest.fail("was let in")


async def test_broken_description_is_refused_before_anything_is_sent(url: str) -> None:
    agent = Agent(url, "pumps", "secret")

    with pytest.raises(TDInvalid):
        agent.expose("pump-1", {"title": "no security"})


async def test_action_is_answered_with_progress_and_output(url: str, gateway: Gateway) -> None:
    agent = an_agent(url)

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        await request.progress(50)
        await request.waiting()
        await request.applied()
        return speed

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        final = await gateway.final("r1")

    assert final == {"state": "completed", "output": 30}
    assert [s["state"] for s in gateway.statuses("r1")] == ["running", "waiting", "applied", "completed"]
    assert gateway.statuses("r1")[0]["progress"] == 50
    assert gateway.acknowledged == ["inbox/pumps/action/pump-1/setSpeed/r1"]


async def test_absent_input_differs_from_null(url: str, gateway: Gateway) -> None:
    agent = an_agent(url)

    @agent.action("pump-1", "stop")
    async def stop(data: JsonValue, request: AgentRequest) -> JsonValue:
        return request.has_input

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/stop/none", empty=True)
        gateway.send("inbox/pumps/rpc/pump-1/stop/null", None)

        assert (await gateway.final("none"))["output"] is False
        assert (await gateway.final("null"))["output"] is True


async def test_device_that_says_no_completes_the_request_with_its_words(url: str, gateway: Gateway) -> None:
    agent = an_agent(url)
    agent.expose("room-1", sample_td("room-climate"))

    @agent.write("room-1", "setPoint")
    async def write(value: JsonValue, request: AgentRequest) -> JsonValue:
        raise Refused("too fast")

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/property/room-1/setPoint/r1", 300)

        assert await gateway.final("r1") == {"state": "completed", "error": "too fast"}


async def test_broken_handler_fails_its_request_and_no_other(url: str, gateway: Gateway) -> None:
    agent = an_agent(url)

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        if speed == 1:
            raise RuntimeError("burnt")
        return speed

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 1)
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r2", 2)
        first, second = await gateway.final("r1"), await gateway.final("r2")

    assert (first["state"], first["reason"]) == ("failed", "agent-error")
    assert second["state"] == "completed"


async def test_request_without_handler_is_rejected(url: str, gateway: Gateway) -> None:
    async with an_agent(url):
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/cleanFilter/r1", empty=True)

        final = await gateway.final("r1")

    assert (final["state"], final["reason"]) == ("failed", "rejected")


async def test_redelivered_request_has_its_effect_once_and_its_answer_again(url: str, gateway: Gateway) -> None:
    agent, effects = an_agent(url), []

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        effects.append(speed)
        return speed

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        await gateway.final("r1")
        gateway.drop()
        await gateway.until(lambda: not gateway.links)
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        await gateway.until(lambda: len(gateway.statuses("r1")) >= 2 and len(gateway.acknowledged) == 2)

    assert effects == [30]
    assert gateway.statuses("r1")[-1] == {"state": "completed", "output": 30}


async def test_answer_given_while_offline_is_reported_after_the_reconnect(url: str, gateway: Gateway) -> None:
    agent, go_on = an_agent(url), anyio.Event()

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        await go_on.wait()
        return speed

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        await gateway.until(lambda: bool(gateway.acknowledged))
        gateway.drop()
        await gateway.until(lambda: not gateway.links)
        go_on.set()

        assert (await gateway.final("r1"))["state"] == "completed"


async def test_cancelled_request_stops_its_handler(url: str, gateway: Gateway) -> None:
    agent, stopped = an_agent(url), anyio.Event()

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return speed

    async with agent:
        await gateway.takes_requests()
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        await gateway.until(lambda: bool(gateway.acknowledged))
        gateway.send("inbox/pumps/cancel/r1", empty=True)

        assert (await gateway.final("r1"))["state"] == "cancelled"
    assert stopped.is_set()


async def test_what_was_not_acknowledged_comes_again_in_order_with_the_same_ids(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        await gateway.takes_requests()
        gateway.hold = asyncio.Event()
        for number in range(5):
            await agent.publish("pump-1", "flow", number)
        await gateway.until(lambda: len(gateway.readings()) >= 1)
        gateway.drop()
        await gateway.until(lambda: not gateway.links)
        before, gateway.published, gateway.hold = gateway.readings(), [], None
        await agent.publish("pump-1", "flow", 5)
        await agent.flush(10)

    again = gateway.readings()
    assert [item["data"] for item in again] == [0, 1, 2, 3, 4, 5]
    assert {item["messageID"] for item in before} <= {item["messageID"] for item in again}


async def test_agent_starts_without_a_runtime_and_says_everything_when_there_is_one(
    engine: str, gateway: Gateway
) -> None:
    async with served(engine, Gateway()) as port:
        pass  # a port that was free a moment ago

    async with an_agent(f"mqtt://127.0.0.1:{port}") as agent:
        assert not agent.is_connected
        await agent.publish("pump-1", "flow", 1)
        with pytest.raises(TimedOut):
            await agent.flush(0.05)
        async with served(engine, gateway, port=port):
            await agent.flush(10)

    assert [item["data"] for item in gateway.readings()] == [1]


async def test_full_outbox_drops_the_oldest_reading_and_counts_it() -> None:
    agent = an_agent("mqtt://127.0.0.1:9", max_outbox_items=3)

    async with agent:
        for number in range(5):
            await agent.publish("pump-1", "flow", number)

    assert agent.dropped == 2


async def test_temporary_refusal_of_an_item_is_tried_again_and_a_lasting_one_told(url: str, gateway: Gateway) -> None:
    problems: list[Problem] = []
    async with an_agent(url, on_problem=problems.append) as agent:
        await gateway.takes_requests()
        await agent.publish("pump-1", "flow", 1)
        await agent.publish("pump-1", "flow", 2)
        await agent.flush(10)
        one, other = (str(item["messageID"]) for item in gateway.readings())
        rejected: JsonValue = [
            {"index": 0, "messageID": one, "code": "rate-limited"},
            {"index": 1, "messageID": other, "code": "invalid"},
        ]
        gateway.send("inbox/pumps/batch", {"stored": 0, "duplicates": 0, "rejected": rejected})
        await gateway.until(lambda: len(gateway.readings()) == 3)

    assert gateway.readings()[2]["messageID"] == one
    assert [(one.thing, one.name, one.code, one.subject) for one in problems] == [("pump-1", "flow", "invalid", other)]
    assert str(problems[0]) == "Thing 'pump-1', 'flow': invalid"


async def test_refusal_that_comes_before_the_acknowledgement_is_tried_again_too(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        await gateway.takes_requests()
        gateway.hold = asyncio.Event()
        await agent.publish("pump-1", "flow", 1)
        await gateway.until(lambda: len(gateway.readings()) == 1)
        rejected: JsonValue = [{"index": 0, "messageID": gateway.readings()[0]["messageID"], "code": "rate-limited"}]
        gateway.send("inbox/pumps/batch", {"stored": 0, "duplicates": 0, "rejected": rejected})
        await gateway.until(lambda: "inbox/pumps/batch" in gateway.acknowledged)
        gateway.hold.set()
        await gateway.until(lambda: len(gateway.readings()) == 2)

    assert gateway.readings()[1]["messageID"] == gateway.readings()[0]["messageID"]


async def test_refused_topics_are_told_as_problems(url: str, gateway: Gateway) -> None:
    problems: list[Problem] = []
    seen = anyio.Event()

    def note(problem: Problem) -> None:
        problems.append(problem)
        seen.set()

    async with an_agent(url, on_problem=note):
        await gateway.takes_requests()
        gateway.send("inbox/pumps/refused", {"topic": "agents/pumps/td/pump-1", "code": "td-invalid", "detail": "no"})
        with anyio.fail_after(30):
            await seen.wait()

    assert problems == [
        Problem(thing="pump-1", code="td-invalid", detail="no", subject="agents/pumps/td/pump-1"),
    ]


async def test_storage_that_is_full_makes_the_agent_come_again_later(url: str, gateway: Gateway, engine: str) -> None:
    if engine == "amqtt":
        pytest.skip("3.1.1 has no reason codes; there the connection ends, which is tried above")

    def full_once(message: Publish) -> Outcome:
        return (
            Outcome(reason_code=0x97)
            if message.topic.endswith("/batch") and len(gateway.readings()) == 1
            else Outcome()
        )

    gateway.outcome = full_once
    async with an_agent(url) as agent:
        await agent.publish("pump-1", "flow", 1)
        await agent.flush(10)

    assert len(gateway.readings()) == 2
    assert gateway.readings()[0]["messageID"] == gateway.readings()[1]["messageID"]


async def test_withdrawn_thing_is_removed(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        agent.withdraw("pump-1")
        await agent.flush(10)

    assert gateway.published[-1].topic == "agents/pumps/td/pump-1"
    assert gateway.published[-1].payload == b""


async def test_publishing_for_a_thing_that_is_not_exposed_is_refused_at_the_call() -> None:
    agent = an_agent(NOWHERE)

    with pytest.raises(UnknownThing, match="no Thing 'pump-2'; did you mean 'pump-1'"):
        await agent.publish("pump-2", "flow", 1.0)
    with pytest.raises(UnknownThing):
        await agent.event("pump-2", "alarm")
    agent.withdraw("pump-1")
    with pytest.raises(UnknownThing):
        await agent.publish("pump-1", "flow", 1.0)


async def test_value_that_the_own_description_rules_out_is_refused_at_the_call(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        for wrong in ("hot", True, None, float("nan"), [1], datetime(2026, 1, 1, tzinfo=UTC), {1, 2}, object()):
            with pytest.raises(Invalid, match="Thing 'pump-1': property 'flow'"):
                await agent.publish("pump-1", "flow", wrong)  # type: ignore[arg-type]
        await agent.publish("pump-1", "flow", -1e9)  # out of its range, and true all the same
        await agent.flush(10)

    assert [one["data"] for one in gateway.readings()] == [-1e9]


async def test_name_that_the_description_lacks_is_refused_unless_it_is_meant(url: str, gateway: Gateway) -> None:
    async with an_agent(url) as agent:
        with pytest.raises(UnknownName, match="Thing 'pump-1' has no property 'flwo'; did you mean 'flow'"):
            await agent.publish("pump-1", "flwo", 1.0)
        with pytest.raises(UnknownName, match="has no event 'flow'"):
            await agent.event("pump-1", "flow", 1.0)
        with pytest.raises(BadAddress):
            await agent.publish("pump-1", "a\nb", 1.0, undeclared=True)
        await agent.publish("pump-1", "flwo", "x", undeclared=True)
        await agent.flush(10)

    assert [one["name"] for one in gateway.readings()] == ["flwo"]


def test_handler_of_what_the_description_lacks_is_refused_where_it_is_declared() -> None:
    agent = an_agent(NOWHERE)

    with pytest.raises(UnknownName, match="Thing 'pump-1' has no action 'setSped'; did you mean 'setSpeed'"):
        agent.action("pump-1", "setSped")
    with pytest.raises(UnknownThing, match="did you mean 'pump-1'"):
        agent.action("pump1", "setSpeed")
    with pytest.raises(UnknownName):
        agent.write("pump-1", "setSpeed")
    with pytest.raises(Invalid, match="property 'flow' is read-only"):
        agent.write("pump-1", "flow")


async def test_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Invalid, match="no time zone"):
        await an_agent(NOWHERE).publish("pump-1", "flow", 1, created=datetime(2026, 1, 1))


@pytest.mark.parametrize("address", ["htp://x", "x", "", "mqtt://", "mqtt://x:port", "mqtt://[::1", "mqtt://x:99999"])
def test_malformed_address_is_wrong_input_and_no_passing_failure(address: str) -> None:
    with pytest.raises(BadAddress):
        Agent(address, "pumps", "secret")
    with pytest.raises(BadAddress):
        Consumer(address)
    with pytest.raises(BadAddress):
        Runtime(address)


async def test_lasting_refusal_of_a_batch_and_of_a_status_names_the_things(
    url: str, gateway: Gateway, engine: str
) -> None:
    if engine == "amqtt":
        pytest.skip("3.1.1 has no reason codes")
    problems: list[Problem] = []
    gateway.outcome = lambda message: Outcome(reason_code=0x87 if "/td/" not in message.topic else 0)
    agent = an_agent(url, on_problem=problems.append)

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        return speed

    async with agent:
        await gateway.takes_requests()
        await agent.publish("pump-1", "flow", 1)
        await agent.flush(10)
        gateway.send("inbox/pumps/action/pump-1/setSpeed/r1", 30)
        await gateway.final("r1")
        await agent.flush(10)

    assert [(one.thing, one.name, one.code, one.subject) for one in problems] == [
        ("pump-1", "flow", "forbidden", "batch"),
        ("pump-1", "setSpeed", "forbidden", "status/r1"),
    ]
