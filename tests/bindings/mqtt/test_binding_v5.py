"""What MQTT 5 adds to the binding: reason codes, response topics, properties, resumed sessions."""

from asyncio import Future, get_running_loop
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bindings.mqtt.engines.seam import Hello
from runtime.ports import Appended, History, Reading
from tests.bindings.mqtt.engines.contract import EngineType
from tests.bindings.mqtt.support import House, Refused, lamp_house
from things.addresses import Kind
from things.errors import StorageFull
from things.identity import Principal
from things.records import HistoryQuery

pytestmark = pytest.mark.anyio

TWIN = "dtw:lights:lamp"

REASONS: list[tuple[str, bytes, str]] = [
    ("agents/other/event/lamp/touched", b"1", "Not authorized"),
    ("agents/lights/event/nothing/x", b"1", "Topic name invalid"),
    ("agents/lights/nonsense", b"1", "Topic name invalid"),
    ("agents/lights/event/lamp/overheated", b"{", "Payload format invalid"),
    ("req/lights/action/lights/lamp/blink/r1", b"", "Not authorized"),
]


@pytest.mark.parametrize(("topic", "payload", "reason"), REASONS)
async def test_a_refusal_is_a_reason_code_and_nothing_comes_to_the_inbox(
    lamp_5: House, topic: str, payload: bytes, reason: str
) -> None:
    async with lamp_5.client("lights", v5=True) as agent:
        await agent.subscribe("inbox/lights/refused")
        with pytest.raises(Refused, match=reason):
            await agent.publish(topic, raw=payload)

        assert await agent.settle() == []


async def test_a_refused_publish_without_acknowledgement_is_told_in_the_inbox(lamp_5: House) -> None:
    async with lamp_5.client("lights", v5=True) as agent:
        await agent.subscribe("inbox/lights/refused")
        await agent.publish("agents/lights/event/nothing/x", 1, qos=0)

        assert (await agent.receive()).value["topic"] == "agents/lights/event/nothing/x"


async def test_without_space_a_client_is_told_to_keep_its_message(engine_5: EngineType, tmp_path: Path) -> None:
    class Full:
        def __init__(self, history: History) -> None:
            self.last_row = history.last_row
            self.read = history.read
            self.place = history.place
            self.on_lost = history.on_lost

        def append(self, readings: Sequence[Reading]) -> "Future[Sequence[Appended]]":
            refused: Future[Sequence[Appended]] = get_running_loop().create_future()
            refused.set_exception(StorageFull())
            return refused

    async with (
        lamp_house(tmp_path / "home", engine_5, history=Full) as lamp,
        lamp.client("lights", v5=True) as agent,
    ):
        with pytest.raises(Refused, match="Quota exceeded"):
            await agent.publish("agents/lights/event/lamp/touched", 1)
        assert not agent.lost.is_set()


async def test_statuses_go_to_the_response_topic_with_the_correlation_data(lamp_5: House) -> None:
    async with lamp_5.client("lights") as agent, lamp_5.client("operator1", v5=True) as caller:
        await agent.subscribe("inbox/lights/#")
        await caller.subscribe("inbox/operator1/answers/+")
        await caller.publish(
            "req/operator1/action/lights/lamp/fade/r1",
            {"to": 1},
            ResponseTopic="inbox/operator1/answers/7",
            CorrelationData=b"\x00mine",
        )
        request_id = (await agent.receive()).topic.split("/")[-1]
        await agent.publish(f"agents/lights/status/{request_id}", {"state": "completed", "output": 5})
        answers = [await caller.receive() for _ in range(3)]

    assert {answer.topic for answer in answers} == {"inbox/operator1/answers/7"}
    assert {answer.correlation for answer in answers} == {b"\x00mine"}
    assert answers[-1].value["output"] == 5


async def test_correlation_data_alone_comes_back_on_the_status_topic(lamp_5: House) -> None:
    async with lamp_5.client("operator1", v5=True) as caller:
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"", CorrelationData=b"x")

        status = await caller.receive()

    assert (status.topic, status.correlation) == ("inbox/operator1/status/r1", b"x")


@pytest.mark.parametrize("topic", ["inbox/lights/answers/1", "things/x", "inbox/operator1/action/lamp/blink/1"])
async def test_a_response_topic_outside_the_own_inbox_is_refused(lamp_5: House, topic: str) -> None:
    async with lamp_5.client("operator1", v5=True) as caller:
        with pytest.raises(Refused, match="Not authorized"):
            await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"", ResponseTopic=topic)

    assert await lamp_5.twin.ledger.by_reference("operator1", "r1") is None


async def test_message_expiry_shortens_the_wait_for_an_absent_agent(lamp_5: House) -> None:
    async with lamp_5.client("operator1", v5=True) as caller:
        await caller.subscribe("inbox/operator1/#")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"", MessageExpiryInterval=1)

        final = await caller.final("inbox/operator1/status/r1")

    assert (final["state"], final["reason"]) == ("failed", "expired")


async def test_message_ids_and_times_come_from_user_properties(lamp_5: House) -> None:
    created = "2026-01-31T12:00:00Z"
    async with lamp_5.client("lights", v5=True) as agent, lamp_5.client("viewer1", v5=True) as viewer:
        await viewer.subscribe("things/+/+/event/+")
        for _ in range(2):
            await agent.publish(
                "agents/lights/event/lamp/overheated", 1, UserProperty=[("messageID", "m1"), ("created", created)]
            )
        event = await viewer.receive()
        assert await viewer.settle() == []
        with pytest.raises(Refused, match="Payload format invalid"):
            await agent.publish("agents/lights/event/lamp/overheated", 1, UserProperty=[("created", "noon")])
        with pytest.raises(Refused, match="Payload format invalid"):
            await agent.publish("agents/lights/event/lamp/overheated", 1, UserProperty=[("messageID", "m" * 129)])

    assert dict(event.user_properties)["created"] == created
    assert len(await lamp_5.twin.history.read(HistoryQuery(things=[TWIN], kind=Kind.EVENT))) == 1


async def test_subscription_options_decide_what_is_sent(lamp_5: House) -> None:
    async with lamp_5.client("lights", v5=True) as agent, lamp_5.client("viewer1", v5=True) as viewer:
        await agent.publish("agents/lights/property/lamp/level", 3)
        await viewer.subscribe("things/lights/lamp/property/+", retainHandling=2, subscription_id=7)
        assert await viewer.settle() == []
        await viewer.subscribe("things/lights/lamp/property/level", retainHandling=1, subscription_id=8)
        (latest,) = await viewer.settle()
        await viewer.subscribe("things/lights/lamp/property/level", retainHandling=1, subscription_id=8)
        assert await viewer.settle() == []
        await agent.publish("agents/lights/property/lamp/level", 4)
        both = await viewer.receive()
        await agent.subscribe("things/lights/lamp/property/level", noLocal=True, retainHandling=2)
        await agent.publish("agents/lights/property/lamp/level", 5)
        assert await agent.settle() == []

    assert (latest.retain, latest.subscription_ids) == (True, (8,))
    assert (both.value, sorted(both.subscription_ids)) == (4, [7, 8])


async def test_a_resumed_session_gets_the_statuses_after_the_last_it_confirmed(lamp_5: House) -> None:
    kept: dict[str, Any] = {"v5": True, "clean": False, "connect_properties": {"SessionExpiryInterval": 60}}
    async with lamp_5.client("operator1", "kept", **kept) as caller:
        await caller.subscribe("inbox/operator1/status/+")
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
        first = (await caller.receive()).value
        await caller.settle()
    async with lamp_5.client("operator1", "other") as other:
        await other.publish("req/operator1/cancel/r1", raw=b"")
    async with lamp_5.client("operator1", "kept", **kept) as caller:
        assert caller.session_present
        missed = (await caller.receive()).value

    assert (first["state"], missed["state"]) == ("pending", "cancelled")
    assert missed["seq"] > first["seq"]


async def test_a_resumed_agent_gets_its_requests_without_subscribing_again(lamp_5: House) -> None:
    kept: dict[str, Any] = {"v5": True, "clean": False, "connect_properties": {"SessionExpiryInterval": 60}}
    async with lamp_5.client("lights", "kept", **kept) as agent:
        await agent.subscribe("inbox/lights/#")
    async with lamp_5.client("operator1") as caller:
        await caller.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")
    async with lamp_5.client("lights", "kept", **kept) as agent:
        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")


async def test_a_token_opens_a_connection_by_enhanced_authentication_too(lamp_5: House) -> None:
    async def admitted(**given: Any) -> str | None:
        found = await lamp_5.binding.admit(
            Hello(client_id="c", password=None, protocol_level=5, **{"user_name": None, **given})
        )
        return found.account if isinstance(found, Principal) else None

    token = lamp_5.tokens["lights"].encode()
    assert await admitted(auth_method="token", auth_data=token) == "lights"
    assert await admitted(auth_method="token", auth_data=token, user_name="lights") == "lights"
    assert await admitted(auth_method="token", auth_data=token, user_name="viewer1") is None
    assert await admitted(auth_method="token", auth_data=b"\xff") is None
    assert await admitted(auth_method="SCRAM-SHA-1", auth_data=token) is None
    assert await admitted(user_name="lights") is None
    assert await admitted() is None


async def test_both_versions_meet_at_one_runtime(lamp_5: House) -> None:
    async with lamp_5.client("lights") as agent, lamp_5.client("viewer1", v5=True) as viewer:
        await viewer.subscribe("things/#")
        await viewer.settle()
        await agent.publish("agents/lights/event/lamp/touched", 1)

        assert (await viewer.receive()).value == 1
