"""One MQTT connection as asyncio sees it: the only file in which paho's thread enters the event loop.

paho runs its network loop in a thread of its own; every callback crosses over through `_Portal.send` and nothing else
does. A connection is made once and never revived: when it ends, `closed` is set and its owner makes another. Delivered
messages are acknowledged by hand, so that what was not taken over is delivered again.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from things.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RateLimited,
    SkepError,
    StorageFull,
    Unauthenticated,
    Unavailable,
    error_named,
)

log = logging.getLogger(__name__)

MAX_WAITING_MESSAGES = 1_000
"""Messages that wait to be taken; one more closes the connection: what was not acknowledged comes again."""

_CLOSED = object()


class MQTTVersion(IntEnum):
    """Protocol levels as CONNECT spells them."""

    V311 = 4
    V5 = 5


def stop_thread(client: paho.Client) -> None:
    """Wait until paho's thread has ended, which a goodbye makes it do."""
    # The thread forgets itself as its last act; `loop_stop` may look at it before that and join it after.
    with suppress(AttributeError):
        client.loop_stop()


class VersionRefused(SkepError):
    """The server does not speak this version of MQTT."""

    code = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One message of the server; `ack` tells it that the message was taken over."""

    topic: str
    payload: bytes
    ack: Callable[[], None]


class _Portal:
    """The way from paho's thread into the loop; shut when the loop goes away first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def send(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("event loop is gone; a late MQTT callback was dropped")


class MQTTConnection:
    """A connection from CONNECT to its end. Use `connect`, then publish, subscribe and take messages."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        account: str,
        secret: str,
        client_id: str,
        version: MQTTVersion = MQTTVersion.V311,
        tls: ssl.SSLContext | None = None,
        keep_alive_s: int = 30,
    ) -> None:
        self._host, self._port, self._keep_alive_s = host, port, keep_alive_s
        self.version = version
        self.closed = asyncio.Event()
        self._portal = _Portal(asyncio.get_running_loop())
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._grants: dict[int, asyncio.Future[None]] = {}
        self._messages: asyncio.Queue[Delivered | object] = asyncio.Queue(MAX_WAITING_MESSAGES + 1)
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=True if version is MQTTVersion.V311 else None,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._client.username_pw_set(account, secret)
        # The owner bounds what is under way; paho's own window would only hide messages from it.
        self._client.max_inflight_messages_set(0)
        if tls is not None:
            self._client.tls_set_context(tls)
        self._client.on_socket_open = _set_no_delay
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    async def connect(self, timeout_s: float = 10.0) -> None:
        """Raises Unavailable (unreachable), VersionRefused, Unauthenticated."""
        self._client.connect_timeout = timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._client.connect, self._host, self._port, self._keep_alive_s)
                self._client.loop_start()
                await asyncio.shield(self._connected)
        except TimeoutError as error:
            await self.close()
            raise Unavailable(f"no answer from {self._host}:{self._port} within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            await self.close()
            raise Unavailable(f"cannot reach {self._host}:{self._port}: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def publish(self, topic: str, payload: bytes, *, user_properties: Sequence[tuple[str, str]] = ()) -> None:
        """Publish with QoS 1; returns at the acknowledgement. Raises what a MQTT 5 reason code stands for, and
        Unavailable if the connection ends first."""
        await self.send(topic, payload, user_properties=user_properties)

    def send(
        self, topic: str, payload: bytes, *, user_properties: Sequence[tuple[str, str]] = ()
    ) -> "asyncio.Future[None]":
        """Like `publish`, but the order is fixed at the call, while waiting for acknowledgements may overlap."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed.is_set():
            future.set_exception(Unavailable("the connection has ended"))
            return future
        properties = None
        if user_properties and self.version is MQTTVersion.V5:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = list(user_properties)
        info = self._client.publish(topic, payload, qos=1, properties=properties)
        if info.rc is not MQTTErrorCode.MQTT_ERR_SUCCESS:
            future.set_exception(Unavailable(f"cannot publish: {paho.error_string(info.rc)}"))
            return future
        self._acks[info.mid] = future
        return future

    async def subscribe(self, *filters: str) -> None:
        """Subscribe with QoS 1; returns at SUBACK. Raises Forbidden if one filter is refused."""
        result, mid = self._client.subscribe([(text, 1) for text in filters])
        if result is not MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise Unavailable(f"cannot subscribe: {paho.error_string(result)}")
        future = self._grants[mid] = asyncio.get_running_loop().create_future()
        await future

    async def receive(self) -> Delivered | None:
        """The next message; None when the connection has ended and all were taken."""
        message = await self._messages.get()
        if isinstance(message, Delivered):
            return message
        self._messages.put_nowait(_CLOSED)
        return None

    async def close(self) -> None:
        """Say goodbye and stop paho's thread; calling it twice is harmless."""
        self._client.disconnect()
        await asyncio.shield(asyncio.to_thread(stop_thread, self._client))
        self._ended("closed here")

    def give_up(self) -> None:
        """End the connection without waiting; the owner sees `closed`."""
        self._client.disconnect()
        self._ended("given up here")

    # ------------------------------------------------------------ in paho's thread

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._portal.send(self._answered, reason.getName(), reason.is_failure)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._portal.send(self._ended, reason.getName())

    def _on_publish(self, client: Any, data: Any, mid: int, reason: ReasonCode, properties: Any) -> None:
        words = getattr(properties, "ReasonString", None) or reason.getName().lower()
        code = dict(getattr(properties, "UserProperty", ())).get("code")
        self._portal.send(self._acknowledged, mid, reason.value, words, code)

    def _on_subscribe(self, client: Any, data: Any, mid: int, reasons: list[ReasonCode], properties: Any) -> None:
        self._portal.send(self._granted, mid, any(reason.is_failure for reason in reasons))

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        ack = partial(_acknowledge, client, message.mid, message.qos)
        self._portal.send(self._received, message.topic, bytes(message.payload), ack)

    # ------------------------------------------------------------ in the loop

    def _answered(self, reason: str, refused: bool) -> None:
        if self._connected.done():
            return
        if not refused:
            self._connected.set_result(None)
        elif "version" in reason.lower():
            self._connected.set_exception(VersionRefused(f"the server does not speak MQTT {self.version.name}"))
        else:
            self._connected.set_exception(Unauthenticated(f"the server refused the connection: {reason.lower()}"))

    def _acknowledged(self, mid: int, reason: int, words: str, code: str | None) -> None:
        future = self._acks.pop(mid, None)
        if future is None or future.done():
            return
        if reason < 0x80:
            future.set_result(None)
        else:
            future.set_exception(_refusal(reason, words) if code is None else error_named(code, words))

    def _granted(self, mid: int, refused: bool) -> None:
        future = self._grants.pop(mid, None)
        if future is None or future.done():
            return
        if refused:
            future.set_exception(Forbidden("the server refused a subscription"))
        else:
            future.set_result(None)

    def _received(self, topic: str, payload: bytes, ack: Callable[[], None]) -> None:
        if self.closed.is_set():
            return
        if self._messages.qsize() >= MAX_WAITING_MESSAGES:
            log.warning("messages are not taken fast enough; reconnecting", extra={"waiting": self._messages.qsize()})
            self.give_up()
            return
        self._messages.put_nowait(Delivered(topic=topic, payload=payload, ack=ack))

    def _ended(self, reason: str) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        self._messages.put_nowait(_CLOSED)
        error = Unavailable(f"the connection has ended: {reason}")
        if not self._connected.done():
            # MQTT 3.1.1 servers answer a CONNECT of another version by closing, without a word.
            silent = VersionRefused if self.version is MQTTVersion.V5 else Unavailable
            self._connected.set_exception(silent(error.detail))
            self._connected.exception()  # seen: nobody may be waiting any more
        for future in [*self._acks.values(), *self._grants.values()]:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._acks.clear()
        self._grants.clear()


def _acknowledge(client: paho.Client, mid: int, qos: int) -> None:
    client.ack(mid, qos)


def _set_no_delay(client: Any, data: Any, sock: Any) -> None:
    # Without it a status right after a PUBACK waits for the peer's delayed acknowledgement (40 ms).
    if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _refusal(code: int, words: str) -> SkepError:
    """What a reason code stands for; a status that comes too late is a conflict."""
    detail = f"the server refused it: {words}"
    match code:
        case 0x83:
            return Conflict(detail)
        case 0x87:
            return Forbidden(detail)
        case 0x90:
            return NotFound(detail)
        case 0x96:
            return RateLimited(1.0)
        case 0x97:
            return StorageFull("the server has no room for data now")
        case 0x99:
            return Invalid(detail)
        case _:
            return SkepError(detail)
