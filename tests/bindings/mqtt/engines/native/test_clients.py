"""Independent clients against the native engine: paho, aiomqtt and mosquitto's programs."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from typing import Any

import aiomqtt
import anyio
import anyio.to_thread
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from bindings.mqtt.engines.seam import Flow, Outcome, Publish
from skep.mqtt_client import stop_thread
from tests.bindings.mqtt.engines.native.peer import RecordingGate, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


WAIT_S = 30.0
VERSIONS = [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]


class Paho:
    """A paho client whose callbacks are collected; its methods block, so they run in a thread."""

    def __init__(self, version: MQTTProtocolVersion, client_id: str = "paho") -> None:
        self.messages: list[paho.MQTTMessage] = []
        self.codes: list[Any] = []
        self._changed = threading.Condition()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version)
        self.client.username_pw_set("alice", "secret")
        self.client.on_message = lambda _c, _u, message: self._note(self.messages, message)
        self.client.on_connect = lambda _c, _u, _f, code, _p: self._note(self.codes, ("connect", str(code)))
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self._note(self.codes, ("subscribe", codes))
        self.client.on_publish = lambda _c, _u, _m, code, _p: self._note(self.codes, ("publish", str(code)))
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self._note(self.codes, ("disconnect", str(code)))

    def _note(self, where: list[Any], what: Any) -> None:
        with self._changed:
            where.append(what)
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), (self.codes, len(self.messages))

    def start(self, port: int) -> None:
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.until(lambda: bool(self.codes))

    def stop(self) -> None:
        self.client.disconnect()
        stop_thread(self.client)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_paho_publishes_and_receives(version: MQTTProtocolVersion, qos: int) -> None:
    def talk() -> list[bytes]:
        peer = Paho(version)
        peer.start(served.port)
        assert peer.codes == [("connect", "Success")]
        peer.client.subscribe("t", qos)
        peer.until(lambda: any(name == "subscribe" for name, _ in peer.codes))
        for number in range(100):
            peer.client.publish("t", b"%d" % number, qos)
        peer.until(lambda: len(peer.messages) == 100)
        if qos:
            peer.until(lambda: sum(name == "publish" for name, _ in peer.codes) == 100)
        peer.stop()
        return [bytes(message.payload) for message in peer.messages]

    async with serving() as served:
        payloads = await anyio.to_thread.run_sync(talk)

        assert payloads == [b"%d" % number for number in range(100)]
        assert served.gate.events[-1] == "closed alice/paho disconnect"


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_with_a_wrong_password_is_refused(version: MQTTProtocolVersion) -> None:
    def talk() -> Any:
        peer = Paho(version)
        peer.client.username_pw_set("alice", "wrong")
        peer.start(served.port)
        peer.stop()
        return peer.codes[0]

    async with serving() as served:
        assert await anyio.to_thread.run_sync(talk) == ("connect", "Not authorized")


async def test_paho_5_sees_properties_reason_codes_and_retained_values() -> None:
    gate = RecordingGate()
    gate.latest = [
        Publish(topic="p", payload=b"1", flow=Flow.PROPERTY, user_properties=[("messageID", "m")], content_type="json")
    ]
    gate.refused_topics["no"] = Outcome(reason_code=0x87, reason="not yours")

    def talk() -> Paho:
        peer = Paho(MQTTProtocolVersion.MQTTv5)
        peer.start(served.port)
        peer.client.subscribe([("p", SubscribeOptions(qos=1, noLocal=True))])
        peer.until(lambda: len(peer.messages) == 1)
        peer.client.publish("no", b"", 1)
        peer.until(lambda: any(name == "publish" for name, _ in peer.codes))
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = "inbox/x"
        properties.CorrelationData = b"\1"
        properties.MessageExpiryInterval = 5
        peer.client.publish("t", b"", 1, properties=properties).wait_for_publish(WAIT_S)
        peer.stop()
        return peer

    async with serving(gate=gate) as served:
        peer = await anyio.to_thread.run_sync(talk)

        assert peer.messages[0].retain
        received: Any = peer.messages[0].properties
        assert received.UserProperty == [("messageID", "m")]
        assert received.ContentType == "json"
        assert ("publish", "Not authorized") in peer.codes
        got = gate.messages[-1]
        assert (got.response_topic, got.correlation, got.expiry_s) == ("inbox/x", b"\1", 5)


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_resumes_its_session(version: MQTTProtocolVersion) -> None:
    def first() -> None:
        peer = persistent(version)
        peer.client.subscribe("t", 1)
        peer.until(lambda: any(name == "subscribe" for name, _ in peer.codes))
        peer.stop()

    def second() -> list[bytes]:
        peer = persistent(version)
        peer.client.publish("t", b"back", 1)
        peer.until(lambda: len(peer.messages) == 1)
        peer.stop()
        return [bytes(message.payload) for message in peer.messages]

    def persistent(version: MQTTProtocolVersion) -> Paho:
        peer = Paho(version)
        if version == MQTTProtocolVersion.MQTTv5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 60
            peer.client.connect("127.0.0.1", served.port, clean_start=False, properties=properties)
        else:
            peer.client = paho.Client(
                CallbackAPIVersion.VERSION2, "paho", clean_session=False, protocol=MQTTProtocolVersion.MQTTv311
            )
            peer.client.username_pw_set("alice", "secret")
            peer.client.on_message = lambda _c, _u, message: peer._note(peer.messages, message)
            peer.client.on_connect = lambda _c, _u, _f, code, _p: peer._note(peer.codes, ("connect", str(code)))
            peer.client.on_subscribe = lambda _c, _u, _m, codes, _p: peer._note(peer.codes, ("subscribe", codes))
            peer.client.connect("127.0.0.1", served.port)
        peer.client.loop_start()
        peer.until(lambda: bool(peer.codes))
        return peer

    async with serving() as served:
        await anyio.to_thread.run_sync(first)

        assert await anyio.to_thread.run_sync(second) == [b"back"]

        assert "opened alice/paho resumed" in served.gate.events


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_aiomqtt_publishes_and_receives(version: aiomqtt.ProtocolVersion) -> None:
    async with serving() as served:
        client = aiomqtt.Client(
            "127.0.0.1", served.port, username="alice", password="secret", identifier="aio", protocol=version
        )
        async with client:
            await client.subscribe("t", qos=2)
            await asyncio.gather(*(client.publish("t", b"%d" % number, qos=2) for number in range(50)))
            with anyio.fail_after(WAIT_S):
                got = [(await anext(client.messages)).payload for _ in range(50)]

        assert sorted(got) == sorted(b"%d" % number for number in range(50))
        await served.gate.until(lambda: "closed alice/aio disconnect" in served.gate.events)


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto's command-line clients are not installed")
@pytest.mark.parametrize("version", ["311", "5"])
async def test_mosquitto_programs_publish_and_receive(version: str) -> None:
    async with serving() as served:
        common = ["-h", "127.0.0.1", "-p", str(served.port), "-u", "alice", "-P", "secret", "-V", version, "-q", "1"]
        receiver = await asyncio.create_subprocess_exec(
            "mosquitto_sub", *common, "-t", "t", "-C", "3", stdout=asyncio.subprocess.PIPE
        )
        await served.gate.until(lambda: "subscribe t" in served.gate.events)
        sender = await asyncio.create_subprocess_exec(
            "mosquitto_pub", *common, "-t", "t", "-l", stdin=asyncio.subprocess.PIPE
        )

        with anyio.fail_after(WAIT_S):
            await sender.communicate(b"one\ntwo\nthree\n")
            output, _ = await receiver.communicate()

        assert output.split() == [b"one", b"two", b"three"]
        assert (sender.returncode, receiver.returncode) == (0, 0)
