"""A runtime with real stores, accounts and rights behind the MQTT binding, and paho clients for it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from authn.authenticator import LocalAuthenticator
from authz.authorizer import LocalAuthorizer
from bindings.mqtt.binding import MqttBinding
from bindings.mqtt.engines.seam import Limits, Listener
from bindings.mqtt.missed import DEFAULT_DEPTH, Depth
from gateway.config import Config
from gateway.core_settings import core_settings
from runtime.clocks import IDs, SteadyClock, wall_clock
from runtime.core import Clocks, Runtime, Storage
from runtime.ports import History
from runtime.publications.twins import TwinViews
from runtime.services.requests import RequestsService
from skep.mqtt_client import stop_thread
from tests.bindings.mqtt.engines.contract import EngineType
from tests.runtime.doubles import Recorded
from things.identity import AccountType, Role
from twin.store import Twin, open_twin

PASSWORD = "correct horse battery staple"
DEADLINE_S = 30.0

LAMP: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Lamp",
    "properties": {
        "level": {"type": "integer", "minimum": 0, "maximum": 100},
        "temperature": {"type": "number", "readOnly": True},
    },
    "actions": {
        "fade": {"input": {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]}},
        "blink": {},
    },
    "events": {"overheated": {"data": {"type": "number"}}, "touched": {}},
}


@dataclass(slots=True)
class House:
    """One running runtime and its MQTT binding."""

    runtime: Runtime
    binding: MqttBinding
    authenticator: LocalAuthenticator
    authorizer: LocalAuthorizer
    twin: Twin
    tokens: dict[str, str] = field(default_factory=dict)

    async def account(self, name: str, type_: AccountType, role: Role, password: str | None = None) -> str:
        """Make an account; its long-lived token."""
        _, token = await self.authenticator.administration.add(name, type_, role, password=password, by="test")
        assert token is not None
        self.tokens[name] = token
        return token

    def client(self, account: str, client_id: str = "", **options: Any) -> "Client":
        """A client that speaks as an account."""
        return Client(self.binding.addresses[0], account, self.tokens[account], client_id, **options)


@asynccontextmanager
async def house(
    home: Path,
    engine_type: EngineType,
    *,
    limits: Limits | None = None,
    history: Callable[[History], History] = lambda it: it,
    depth: Depth = DEFAULT_DEPTH,
) -> AsyncIterator[House]:
    """Open a home and serve it over MQTT."""
    home.mkdir(exist_ok=True, mode=0o700)  # noqa: ASYNC240 - once, before anything runs
    clocks = Clocks(now=wall_clock, steady=SteadyClock(), new_id=IDs())
    authenticator = LocalAuthenticator.open(home, clock=clocks.now)
    async with AsyncExitStack() as stack:
        stack.callback(authenticator.close)
        authorizer = LocalAuthorizer.open(home, account_type=authenticator.type_of, clock=clocks.now)
        twin = await stack.enter_async_context(open_twin(home, clock=clocks.now))
        binding = MqttBinding(engine_type([Listener(host="127.0.0.1", port=0)], limits or Limits()), depth=depth)
        views = TwinViews(
            twin.directory,
            authorizer,
            forms_of=lambda urls: {"mqtt": partial(binding.forms, urls=urls)},
            urls=binding.places.urls,
        )
        runtime = Runtime(
            settings=core_settings(Config()),
            storage=Storage(
                directory=twin.directory, values=twin.values, history=history(twin.history), ledger=twin.ledger
            ),
            authenticator=authenticator,
            authorizer=authorizer,
            clocks=clocks,
            audit=Recorded(),
            assess=lambda reading, message, entry: 0,
            record_presence=lambda agent, seen: None,
            describe=views.publication,
        )
        views.presence = runtime.presence
        runtime.services.add(RequestsService(twin.ledger, authorizer))
        authenticator.on_revoked(lambda revoked: _note(runtime.revoke(revoked.covers)))
        async with anyio.create_task_group() as tasks:
            await tasks.start(_served, runtime.serve)
            async with anyio.create_task_group() as servers:
                await servers.start(_served, binding.serve, runtime)
                try:
                    yield House(runtime, binding, authenticator, authorizer, twin)
                finally:
                    servers.cancel_scope.cancel()
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def lamp_house(home: Path, engine_type: EngineType, **options: Any) -> AsyncIterator[House]:
    """A house with an agent `lights` that has published `lamp`, and a consumer of every role."""
    async with house(home, engine_type, **options) as opened:
        await opened.account("lights", AccountType.AGENT, Role.AGENT)
        for role in (Role.NONE, Role.VIEWER, Role.OPERATOR, Role.MANAGER, Role.ADMIN):
            await opened.account(role.value + "1", AccountType.CONSUMER, role, PASSWORD)
        async with opened.client("lights") as lights:
            await lights.publish("agents/lights/td/lamp", LAMP)
        yield opened


def _note(ended: int) -> None:
    """How many sessions a revocation ended is nobody's business here."""


async def _served(
    serve: Callable[..., Any],
    *given: object,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    await serve(*given, task_status=task_status)


class Refused(Exception):
    """The server refused a CONNECT, filter or publish; the argument is its reason.

    `value` is the reason code, `detail` the reason string and `told` the user properties of an acknowledgement.
    """

    def __init__(self, reason: str, value: int = 0, detail: str = "", told: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.value = value
        self.detail = detail
        self.told = dict(told)


@dataclass(frozen=True, slots=True)
class Received:
    """One message that came in."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    correlation: bytes | None = None
    user_properties: Sequence[tuple[str, str]] = ()
    subscription_ids: Sequence[int] = ()

    @property
    def value(self) -> Any:
        return json.loads(self.payload)


class Client:
    """paho in its own thread, awaited from the loop; everything crosses over in `_told`."""

    def __init__(
        self,
        address: tuple[str, int],
        account: str,
        secret: str | None,
        client_id: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        v5: bool = False,
        clean: bool = True,
        will: tuple[str, bytes] | None = None,
        will_delay_s: int | None = None,
        connect_properties: dict[str, Any] | None = None,
    ) -> None:
        self._address = address
        self._v5 = v5
        self._clean = clean
        self._connect_properties = connect_properties
        options: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5} if v5 else {"clean_session": clean}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id or account, reconnect_on_failure=False, **options
        )
        self.paho.username_pw_set(account, secret)
        if tls is not None:
            self.paho.tls_set_context(tls)
        self.paho.max_inflight_messages_set(1_000)
        if will is not None:
            delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will_delay_s) if will_delay_s else None
            self.paho.will_set(*will, qos=1, properties=delay)
        self.inbox: asyncio.Queue[Received] = asyncio.Queue()
        self.lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[Any] = self._loop.create_future()
        self._waiting: dict[tuple[str, int | None], asyncio.Future[Any]] = {}
        self._early: dict[tuple[str, int | None], Any] = {}
        self.session_present = False

    async def __aenter__(self) -> Self:
        client = self.paho

        def on_connect(_c: Any, _u: Any, flags: Any, code: Any, _p: Any) -> None:
            self._told(self._on_connect, flags.session_present, code)

        def on_message(_c: Any, _u: Any, message: Any) -> None:
            self._told(self.inbox.put_nowait, _received(message))

        client.on_connect = on_connect
        client.on_message = on_message
        client.on_disconnect = lambda *_: self._told(self.lost.set)
        client.on_publish = lambda _c, _u, mid, code, said: self._told(self._answered, ("publish", mid), (code, said))
        client.on_subscribe = lambda _c, _u, mid, codes, _p: self._told(self._answered, ("subscribe", mid), codes)
        client.on_unsubscribe = lambda _c, _u, mid, codes, _p: self._told(self._answered, ("unsubscribe", mid), codes)
        more: dict[str, Any] = {}
        if self._v5:
            more["clean_start"] = self._clean
            if self._connect_properties:
                more["properties"] = properties(PacketTypes.CONNECT, **self._connect_properties)
        await anyio.to_thread.run_sync(lambda: client.connect(*self._address, **more))
        client.loop_start()
        try:
            with anyio.fail_after(DEADLINE_S):
                code = await self._connected
            if code.is_failure:
                raise Refused(str(code))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            self.paho.disconnect()
            await self._stop()

    async def break_off(self) -> None:
        """Lose the connection without a word."""
        sock: Any = self.paho.socket()
        self.paho.on_disconnect = None
        sock.shutdown(2)
        await self._stop()

    async def publish(
        self, topic: str, value: Any = None, *, raw: bytes | None = None, qos: int = 1, **more: Any
    ) -> None:
        """Publish JSON (or bytes) and wait for the acknowledgement; raises Refused with its reason."""
        payload = raw if raw is not None else json.dumps(value).encode()
        given = properties(PacketTypes.PUBLISH, **more) if more else None
        info = self.paho.publish(topic, payload, qos, properties=given)
        if qos:
            code, said = await self._answer(("publish", info.mid))
            if code.is_failure:
                detail, told = getattr(said, "ReasonString", ""), getattr(said, "UserProperty", ())
                raise Refused(str(code), code.value, detail, told)

    def send(self, topic: str, value: Any = None, *, raw: bytes | None = None, qos: int = 1) -> int:
        """Publish without waiting."""
        return self.paho.publish(topic, raw if raw is not None else json.dumps(value).encode(), qos).mid

    async def subscribe(self, topic_filter: str, qos: int = 1, **options: Any) -> int:
        """Subscribe to one filter; the granted QoS, or Refused."""
        if options:
            subscription_id = options.pop("subscription_id", None)
            given = (
                properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=subscription_id) if subscription_id else None
            )
            result, mid = self.paho.subscribe(
                topic_filter, options=SubscribeOptions(qos=qos, **options), properties=given
            )
        else:
            result, mid = self.paho.subscribe(topic_filter, qos)
        assert result == 0
        (code,) = await self._answer(("subscribe", mid))
        if code.is_failure:
            raise Refused(str(code))
        return int(code.value)

    async def unsubscribe(self, topic_filter: str) -> None:
        result, mid = self.paho.unsubscribe(topic_filter)
        assert result == 0
        await self._answer(("unsubscribe", mid))

    async def receive(self) -> Received:
        """The next message."""
        with anyio.fail_after(DEADLINE_S):
            return await self.inbox.get()

    async def receive_on(self, topic: str) -> Received:
        """The next message on a topic; others before it are passed over."""
        while (message := await self.receive()).topic != topic:
            pass
        return message

    async def final(self, topic: str) -> dict[str, Any]:
        """The final status on a topic."""
        while True:
            status: dict[str, Any] = (await self.receive_on(topic)).value
            if status["state"] in ("completed", "failed", "cancelled"):
                return status

    async def settle(self) -> Sequence[Received]:
        """What has come in by the time the server has answered one more packet."""
        await self.unsubscribe("inbox/nothing")
        found = []
        while not self.inbox.empty():
            found.append(self.inbox.get_nowait())
        return found

    async def is_lost(self) -> bool:
        with anyio.fail_after(DEADLINE_S):
            await self.lost.wait()
        return True

    # ------------------------------------------------------------ private

    def _told(self, what: Callable[..., object], *given: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *given)

    def _on_connect(self, session_present: bool, code: Any) -> None:
        self.session_present = session_present
        if not self._connected.done():
            self._connected.set_result(code)

    def _answered(self, key: tuple[str, int | None], code: Any) -> None:
        future = self._waiting.pop(key, None)
        if future is None:
            self._early[key] = code
        elif not future.done():
            future.set_result(code)

    async def _answer(self, key: tuple[str, int | None]) -> Any:
        if key in self._early:
            return self._early.pop(key)
        future = self._waiting[key] = self._loop.create_future()
        with anyio.fail_after(DEADLINE_S):
            return await future

    async def _stop(self) -> None:
        await anyio.to_thread.run_sync(stop_thread, self.paho)


def properties(kind: int, **given: Any) -> Properties:
    """MQTT 5 properties by paho's names."""
    found = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in given.items():
        if value is not None:
            setattr(found, name, value)
    return found


def _received(message: Any) -> Received:
    given = getattr(message, "properties", None)
    return Received(
        topic=message.topic,
        payload=message.payload,
        qos=message.qos,
        retain=message.retain,
        correlation=getattr(given, "CorrelationData", None),
        user_properties=tuple(getattr(given, "UserProperty", ())),
        subscription_ids=tuple(getattr(given, "SubscriptionIdentifier", ())),
    )
