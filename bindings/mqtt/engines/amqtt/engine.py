"""The embedded amqtt broker as a wire engine: MQTT 3.1.1, deliveries at QoS 0 and 1, no session outlives its link.

amqtt decodes checked packets and drives each connection; it keeps no retained message, subscription, queue or will,
and every session it sees has an id of its own that never repeats: whose session is whose is decided in `front`. One
private name is overridden (`Broker._initialize_client_session`), which is why the version is pinned exactly.
"""

import logging
import ssl
from collections.abc import Sequence
from io import BytesIO
from typing import Any, cast

import anyio
from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import MQTTError
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session
from anyio.abc import TaskStatus

from bindings.mqtt.engines.amqtt.listener import Client, Front
from bindings.mqtt.engines.seam import Closed, Gate, Limits, Listener, Listening, Publish, SubscribeOptions

MAX_QOS = 1
"""Deliveries at QoS 2 are left to engines that keep sessions; without one they promise nothing more than QoS 1."""

_LISTENER = "default"
_ADMITTED = "skep.admitted"


class AmqttConnection(ReaderAdapter, WriterAdapter):  # type: ignore[misc]
    """One client as amqtt sees it: packets that `front` has checked, writes that never wait."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._packet = BytesIO()

    async def read(self, n: int = -1) -> bytes:
        if not (data := self._packet.read(n)):
            self._packet = BytesIO(await self.client.packet())
            data = self._packet.read(n)
        return data

    def feed_eof(self) -> None:
        self.client.out.close()

    def write(self, data: bytes) -> None:
        self.client.out.write(data)

    async def drain(self) -> None:
        """No packet task waits behind a slow client: the link's queue and `Client.packet` bound what is unread."""

    def get_peer_info(self) -> tuple[str, int]:
        return self.client.peer

    def get_ssl_info(self) -> ssl.SSLObject | None:
        return self.client.tls

    async def close(self) -> None:
        self.client.out.close()


class Handler(BrokerProtocolHandler):  # type: ignore[misc]
    """amqtt's packet handler; it runs each of these in a task of its own, started in order of arrival."""

    client: Client

    async def start(self) -> None:
        await super().start()
        self.client.open()

    async def handle_disconnect(self, disconnect: Any) -> None:
        if disconnect is not None:
            self.client.link.close(Closed.DISCONNECT)
        await super().handle_disconnect(None)

    async def handle_publish(self, publish: Any) -> None:
        message = Publish(
            topic=publish.topic_name,
            payload=publish.data,
            qos=publish.qos,
            retain=publish.retain_flag,
            duplicate=publish.dup_flag,
        )
        self.client.link.received(message, publish.packet_id or 0)

    async def handle_puback(self, puback: Any) -> None:
        self.client.link.acknowledged(puback.packet_id)

    async def handle_pubrel(self, pubrel: Any) -> None:
        self.client.link.released(pubrel.packet_id)

    async def handle_subscribe(self, subscribe: Any) -> None:
        filters = [(text, SubscribeOptions(qos=qos)) for text, qos in subscribe.payload.topics]
        self.client.link.subscribe(subscribe.variable_header.packet_id, filters)

    async def handle_unsubscribe(self, unsubscribe: Any) -> None:
        self.client.link.unsubscribe(unsubscribe.variable_header.packet_id, unsubscribe.payload.topics)


class Admitted(BaseAuthPlugin):  # type: ignore[misc]
    """The second lock: only sessions that the gate has admitted."""

    async def authenticate(self, *, session: Session) -> bool:
        return _ADMITTED in session.attributes


class HardenedBroker(Broker):  # type: ignore[misc]
    """amqtt's broker behind our listeners, with our way into a session."""

    front: Front

    async def serve_client(self, client: Client) -> None:
        """Serve one client to its end, and leave nothing of it."""
        connection = AmqttConnection(client)
        try:
            await self.external_connected(connection, connection, _LISTENER)
        finally:
            self.sessions.pop(client.session_id, None)

    async def _initialize_client_session(
        self, reader: ReaderAdapter, writer: WriterAdapter, remote_address: str, remote_port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        client = cast("AmqttConnection", reader).client
        if not await self.front.admit(client):
            raise MQTTError("refused")
        session = Session()
        session.client_id = client.session_id
        session.clean_session, session.keep_alive = True, 0
        session.attributes[_ADMITTED] = True
        handler = Handler(self.plugins_manager)
        handler.client = client
        return handler, session


class AmqttEngine:
    """Serves MQTT 3.1.1 over TCP and TLS (`bindings.mqtt.engines.seam.Engine`)."""

    name = "amqtt"

    def __init__(self, listeners: Sequence[Listener], limits: Limits) -> None:
        self._front = Front(listeners, limits, max_qos=MAX_QOS)

    async def serve(self, gate: Gate, *, task_status: TaskStatus[Listening]) -> None:
        """Serve until cancelled (`Front.serve`)."""
        logging.getLogger("amqtt").setLevel(logging.ERROR)  # it warns of every client that goes wrong
        listener = ListenerConfig(type=ListenerType.EXTERNAL, bind="external")
        plugins: dict[str, Any] = {f"{__name__}.{Admitted.__name__}": {}}
        broker = HardenedBroker(BrokerConfig(listeners={_LISTENER: listener}, plugins=plugins))
        broker.front = self._front
        await broker.start()
        try:
            await self._front.serve(gate, broker.serve_client, task_status=task_status)
        finally:
            with anyio.CancelScope(shield=True):
                await broker.shutdown()
