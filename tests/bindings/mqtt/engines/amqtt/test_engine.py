"""What amqtt itself is left with: nothing that outlives a client, and no way around the gate."""

from typing import Any

import amqtt
import pytest
from amqtt.broker import Broker

from bindings.mqtt.engines.amqtt import engine
from bindings.mqtt.engines.amqtt.engine import AmqttEngine, HardenedBroker
from bindings.mqtt.engines.seam import Limits, Listener
from tests.bindings.mqtt import wire
from tests.bindings.mqtt.engines.contract import Recording, serving
from tests.bindings.mqtt.wire import connected, publish, subscribe
from things.errors import ConfigInvalid

pytestmark = pytest.mark.anyio


async def test_the_broker_keeps_no_session_subscription_or_retained_message(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HardenedBroker] = []

    class Noted(HardenedBroker):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(engine, "HardenedBroker", Noted)
    gate = Recording()
    async with serving(AmqttEngine([Listener(host="127.0.0.1", port=0)], Limits()), gate) as (addresses, _):
        (broker,) = made
        async with connected(addresses[0], "ann", "c", clean=False) as client:
            client.send(subscribe(1, ("a/#", 1)), wire.packet(0x33, wire.text("a/b") + b"\x00\x01x"))
            await client.receive_many(2)
            (session_id,) = broker.sessions
            session = broker.sessions[session_id][0]

            assert session_id.startswith("ann/c#")
            assert (session.clean_session, session.will_flag, session.keep_alive) == (True, False, 0)
            assert not broker.subscriptions
            assert not broker.retained_messages
        async with connected(addresses[0], "ann", "c", clean=False) as client:
            assert session_id not in broker.sessions
            await client.ping()
    assert not broker.sessions


async def test_qos_2_is_taken_from_clients_and_granted_to_none() -> None:
    gate = Recording()
    async with (
        serving(AmqttEngine([Listener(host="127.0.0.1", port=0)], Limits()), gate) as (addresses, _),
        connected(addresses[0], "ann") as client,
    ):
        client.send(subscribe(1, ("a", 2)), publish("a", b"x", qos=2, packet_id=3))
        suback, pubrec = await client.receive_many(2)

    assert suback.body[2] == 1
    assert (pubrec.kind, pubrec.packet_id) == (wire.PUBREC, 3)


def test_the_release_is_the_one_whose_private_name_is_overridden() -> None:
    assert amqtt.__version__ == "0.12.1"
    assert callable(Broker._initialize_client_session)


def test_a_proxy_header_it_would_not_read_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigInvalid, match="PROXY"):
        AmqttEngine([Listener(host="127.0.0.1", port=0, proxy_protocol=True)], Limits())
