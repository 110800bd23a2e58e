"""An agent: the program that speaks for Things, over MQTT.

It keeps one connection up (jittered back-off between attempts), announces its Thing Descriptions at each connect, keeps
what the runtime has not acknowledged and sends it in batches with its source times, and hands requests to handlers.
A request that is delivered again has its effect once: its id is remembered and its outcome reported again.
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from skep.backoff import Backoff
from skep.handling import MAX_REMEMBERED, ActionHandler, AgentRequest, Report, RequestMemory, carried_out
from skep.mqtt_client import Incoming, MQTTConnection, MQTTVersion, VersionRefused
from skep.outbox import Outbox, Signal
from skep.tls import client_context
from things.addresses import checked_thing, decode_segment
from things.delivery import Reason, State
from things.errors import Forbidden, SkepError, TimedOut, TooLarge, Unauthenticated, Unavailable
from things.identity import checked_account
from things.jsontext import decode, encode
from things.messages import JSONValue, Operation
from things.td import ThingDescription
from things.times import rfc3339

log = logging.getLogger(__name__)

MAX_OUTBOX_ITEMS = 10_000
MAX_OUTBOX_BYTES = 16 * 1_048_576
MAX_BATCH_ITEMS = 500
MAX_BATCH_BYTES = 200_000
"""Below the runtime's 256 KiB a packet, with room for the envelope."""
BATCHES_UNDER_WAY = 8
MAX_RECENT = 2 * BATCHES_UNDER_WAY * MAX_BATCH_ITEMS
"""Readings sent lately, kept in case the report of their batch asks for them again."""
PAUSE_S = 1.0
"""After the runtime said that it cannot take more now."""
MAX_RUNNING_REQUESTS = 100
"""Handlers at work; a further request waits unacknowledged, so the runtime holds back the rest."""

LAST_WORDS_S = 5.0
"""How long a connected agent that is left in peace waits for its last acknowledgements."""

_TRY_AGAIN = frozenset({"rate-limited", "storage-full", "storage-failed", "unavailable"})
_OPERATIONS = {
    "action": Operation.INVOKE_ACTION,
    "rpc": Operation.CALL_RPC,
    "property": Operation.WRITE_PROPERTY,
}


@dataclass(frozen=True, slots=True)
class _Reading:
    message_id: str
    text: bytes
    """Its envelope in a batch, as JSON."""


@dataclass(frozen=True, slots=True)
class _Said:
    request_id: str
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something the runtime did not accept: which message (topic or message id), and the stable code."""

    subject: str
    code: str
    detail: str = ""


class Agent:
    """Speaks for Things: declare them and their handlers, then enter it.

        agent = Agent("mqtts://gateway:8883", "pumps", TOKEN, ca="ca.pem")
        agent.expose("pump-1", TD)

        @agent.action("pump-1", "setSpeed")
        async def set_speed(speed, request):
            await agent.publish("pump-1", "speed", speed)
            return speed

        async with agent:
            await agent.publish("pump-1", "flow", 12.5)

    Entering waits for the first attempt: refused credentials raise Unauthenticated; a runtime that cannot be reached
    does not, the agent goes on trying and keeps what it has to say. `mqtt_version` None asks for MQTT 5 and falls back
    to 3.1.1 where the server does not speak it.
    """

    def __init__(
        self,
        url: str,
        account: str,
        secret: str,
        *,
        ca: str | Path | None = None,
        mqtt_version: MQTTVersion | None = None,
        client_id: str | None = None,
        connect_timeout_s: float = 10.0,
        max_outbox_items: int = MAX_OUTBOX_ITEMS,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
            raise Unavailable(f"{url!r} is not an MQTT address; expected mqtts://HOST:PORT or mqtt://HOST:PORT")
        self.account = checked_account(account)
        self._host = parts.hostname
        self._port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
        self._tls = client_context(ca) if parts.scheme == "mqtts" else None
        self._secret = secret
        self._client_id = client_id or f"{account}-{uuid.uuid4().hex[:12]}"
        self._wanted_version, self._version = mqtt_version, mqtt_version or MQTTVersion.V5
        self._connect_timeout_s = connect_timeout_s
        self._on_problem = on_problem
        self._tds: dict[str, bytes] = {}
        self._unsaid_tds: set[str] = set()
        self._handlers: dict[tuple[Operation, str, str], ActionHandler] = {}
        self._memory = RequestMemory()
        self._running: dict[str, anyio.CancelScope] = {}
        self._recent: OrderedDict[str, _Reading] = OrderedDict()
        self._signal = Signal()
        self._readings: Outbox[_Reading] = Outbox(
            self._signal, max_items=max_outbox_items, max_bytes=MAX_OUTBOX_BYTES, size=lambda item: len(item.text)
        )
        self._reports: Outbox[_Said] = Outbox(
            self._signal, max_items=MAX_REMEMBERED, max_bytes=MAX_OUTBOX_BYTES, size=lambda item: len(item.text)
        )
        self._batches = self._deferred = 0
        self._paused_until = 0.0
        self._connection: MQTTConnection | None = None
        self._up = asyncio.Event()
        self._first_attempt = asyncio.Event()
        self._refusal: SkepError | None = None
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None

    # ------------------------------------------------------------ what it speaks for

    def expose(self, thing: str, td: Mapping[str, Any] | str | bytes) -> None:
        """Speak for a Thing from now on; its description is announced at each connect. Raises TDInvalid."""
        text = td if isinstance(td, str | bytes) else encode(dict(td))
        self._tds[checked_thing(thing)] = ThingDescription.parse(text, agent=True).text
        self._unsaid_tds.add(thing)
        self._signal.notify()

    def withdraw(self, thing: str) -> None:
        """Stop speaking for a Thing: its twin is removed."""
        self._tds.pop(thing, None)
        self._unsaid_tds.add(checked_thing(thing))
        self._signal.notify()

    def action(self, thing: str, name: str) -> Callable[[ActionHandler], ActionHandler]:
        """Declare the handler of an action; RPC calls of that name come to it too."""

        def declared(handler: ActionHandler) -> ActionHandler:
            self._handlers[Operation.INVOKE_ACTION, thing, name] = handler
            self._handlers[Operation.CALL_RPC, thing, name] = handler
            return handler

        return declared

    def write(self, thing: str, name: str) -> Callable[[ActionHandler], ActionHandler]:
        """Declare the handler of writes to a property. The twin changes when the agent publishes the new value."""

        def declared(handler: ActionHandler) -> ActionHandler:
            self._handlers[Operation.WRITE_PROPERTY, thing, name] = handler
            return handler

        return declared

    # ------------------------------------------------------------ what it says

    async def publish(self, thing: str, name: str, value: JsonValue, *, created: int | None = None) -> None:
        """Publish a property value; kept until the runtime has it. `created` is µs UTC, default now. Waits for room
        while connected; while offline the oldest reading is dropped and counted when the outbox is full."""
        await self._put(Operation.PUBLISH_PROPERTY, thing, name, value, created)

    async def event(self, thing: str, name: str, data: JsonValue = None, *, created: int | None = None) -> None:
        """Publish an event; like `publish`."""
        await self._put(Operation.PUBLISH_EVENT, thing, name, data, created)

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Returns once the runtime has acknowledged everything said so far; raises TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._unsaid_tds or self._deferred or len(self._readings) or len(self._reports):
                    await self._signal.wait()
        except TimeoutError as error:
            raise TimedOut(f"{len(self._readings)} readings are not acknowledged after {timeout_s:g} s") from error

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def dropped(self) -> int:
        """Readings dropped because the outbox was full."""
        return self._readings.dropped

    async def connected(self, timeout_s: float = 30.0) -> None:
        """Returns once connected and announced; raises TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError as error:
            raise TimedOut(f"not connected to {self._host}:{self._port} after {timeout_s:g} s") from error

    # ------------------------------------------------------------ its life

    async def __aenter__(self) -> "Agent":
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._tasks.start_soon(self._stay_connected)
        await self._first_attempt.wait()
        if self._refusal is not None:
            self._tasks.cancel_scope.cancel()
            await self._stack.aclose()
            raise self._refusal
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is None and self._up.is_set():
            try:
                await self.flush(LAST_WORDS_S)
            except TimedOut as left:
                log.warning("closing with unacknowledged messages: %s", left.detail, extra={"agent": self.account})
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, traceback)

    async def run(self) -> None:
        """Enter, and speak for the Things until cancelled."""
        async with self:
            await asyncio.Event().wait()

    # ------------------------------------------------------------ connection

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while True:
            try:
                connection = await self._connect()
            except Unauthenticated as error:
                if not self._first_attempt.is_set():
                    self._refusal = error
                    self._first_attempt.set()
                    return
                log.warning("connection refused: %s", error.detail, extra={"agent": self.account})
            except Unavailable as error:
                log.warning("not connected, trying again: %s", error.detail, extra={"agent": self.account})
            else:
                try:
                    await self._use(connection, backoff)
                finally:
                    self._up.clear()
                    self._connection = None
                    with anyio.CancelScope(shield=True):
                        await connection.close()
                    self._readings.recall()
                    self._reports.recall()
            self._first_attempt.set()
            await anyio.sleep(backoff.delay_s())

    async def _connect(self) -> MQTTConnection:
        try:
            connection = self._new_connection(self._version)
            await connection.connect(self._connect_timeout_s)
        except VersionRefused:
            if self._wanted_version is not None:
                raise
            connection = self._new_connection(MQTTVersion.V311)
            await connection.connect(self._connect_timeout_s)
        self._version = connection.version
        return connection

    def _new_connection(self, version: MQTTVersion) -> MQTTConnection:
        return MQTTConnection(
            host=self._host,
            port=self._port,
            account=self.account,
            secret=self._secret,
            client_id=self._client_id,
            version=version,
            tls=self._tls,
        )

    async def _use(self, connection: MQTTConnection, backoff: Backoff) -> None:
        """Announce, then send and receive until the connection ends."""
        inbox = f"inbox/{self.account}"
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive, connection)
                await connection.subscribe(f"{inbox}/refused", f"{inbox}/batch")
                self._unsaid_tds.update(self._tds)
                await self._say_tds(connection)
                # Requests flow from here on, so the Things must be known by now.
                await connection.subscribe(*(f"{inbox}/{kind}/#" for kind in ("action", "rpc", "property", "cancel")))
                self._connection = connection
                backoff.reset()
                self._up.set()
                self._first_attempt.set()
                tasks.start_soon(self._send, connection)
                await connection.closed.wait()
                tasks.cancel_scope.cancel()
        except* SkepError as group:
            log.warning("connection given up: %s", group.exceptions[0], extra={"agent": self.account})
        else:
            log.info("connection ended", extra={"agent": self.account})

    # ------------------------------------------------------------ sending

    async def _put(self, operation: Operation, thing: str, name: str, data: JsonValue, created: int | None) -> None:
        message_id = uuid.uuid4().hex
        envelope = {
            "v": 1,
            "operation": operation.value,
            "thingID": checked_thing(thing),
            "name": name,
            "data": data,
            "created": rfc3339(time.time_ns() // 1_000 if created is None else created),
            "messageID": message_id,
        }
        text = encode(envelope)
        if len(text) > MAX_BATCH_BYTES:
            raise TooLarge(MAX_BATCH_BYTES, f"value of {name!r}")
        while self._up.is_set() and self._readings.is_full:
            await self._signal.wait()
        self._readings.put(_Reading(message_id, text))

    async def _say_tds(self, connection: MQTTConnection) -> None:
        for thing in sorted(self._unsaid_tds):
            try:
                await connection.publish(f"agents/{self.account}/td/{thing}", self._tds.get(thing, b""))
            except Forbidden as error:
                self._problem(Problem(subject=f"td/{thing}", code=error.code, detail=error.detail))
            self._unsaid_tds.discard(thing)
        self._signal.notify()

    async def _send(self, connection: MQTTConnection) -> None:
        """Everything there is to say, in order of what depends on what: TDs, readings, reports."""
        while True:
            if self._unsaid_tds:
                await self._say_tds(connection)
            pause_s = max(0.0, self._paused_until - time.monotonic())
            room = 0 if pause_s else BATCHES_UNDER_WAY
            while self._batches < room and (batch := self._readings.take(MAX_BATCH_ITEMS, MAX_BATCH_BYTES)):
                payload = b"[" + b",".join(item.text for _, item in batch) + b"]"
                self._batches += 1
                self._remember(batch)
                connection.send(f"agents/{self.account}/batch", payload).add_done_callback(
                    partial(self._batch_answered, connection, batch)
                )
            for number, said in self._reports.take(MAX_REMEMBERED, MAX_OUTBOX_BYTES):
                topic = f"agents/{self.account}/status/{said.request_id}"
                connection.send(topic, said.text).add_done_callback(
                    partial(self._report_answered, connection, number, said.request_id)
                )
            with anyio.move_on_after(pause_s or None):
                await self._signal.wait()

    def _remember(self, batch: Sequence[tuple[int, _Reading]]) -> None:
        """Keep what the batch's report may ask for again; the report can come before the acknowledgement."""
        for _, item in batch:
            self._recent[item.message_id] = item
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)

    def _batch_answered(
        self, connection: MQTTConnection, batch: Sequence[tuple[int, _Reading]], answer: "asyncio.Future[None]"
    ) -> None:
        self._batches -= 1
        error = answer.exception()
        if error is None or not _is_temporary(error):
            self._readings.confirm([number for number, _ in batch])
        else:
            # Kept: whatever is under way is recalled when the connection ends, and comes again in order.
            connection.give_up()
        if error is not None and not _is_temporary(error):
            self._problem(Problem(subject="batch", code=getattr(error, "code", "internal"), detail=str(error)))

    def _report_answered(
        self, connection: MQTTConnection, number: int, request_id: str, answer: "asyncio.Future[None]"
    ) -> None:
        error = answer.exception()
        if error is not None and _is_temporary(error):
            connection.give_up()
            return
        self._reports.confirm([number])
        if error is not None:
            code = getattr(error, "code", "internal")
            self._problem(Problem(subject=f"status/{request_id}", code=code, detail=str(error)))

    # ------------------------------------------------------------ receiving

    async def _receive(self, connection: MQTTConnection) -> None:
        while (message := await connection.receive()) is not None:
            try:
                await self._take(message)
            except SkepError as error:
                log.warning("message not understood: %s", error.detail, extra={"topic": message.topic})
                message.ack()

    async def _take(self, message: Incoming) -> None:
        match message.topic.split("/")[2:]:
            case ["action" | "rpc" | "property" as kind, thing, name, request_id]:
                while len(self._running) >= MAX_RUNNING_REQUESTS:
                    await self._signal.wait()
                self._begin(_OPERATIONS[kind], thing, decode_segment(name), request_id, message.payload)
            case ["cancel", request_id]:
                if request_id in self._running:
                    self._running[request_id].cancel()
            case ["batch"]:
                self._batch_reported(decode(message.payload))
            case ["refused"]:
                self._refused(decode(message.payload))
            case _:
                log.debug("unknown topic", extra={"topic": message.topic})
        message.ack()

    def _begin(self, operation: Operation, thing: str, name: str, request_id: str, payload: bytes) -> None:
        if not self._memory.begin(request_id):
            outcome = self._memory.outcome(request_id)
            if outcome is not None:
                self._say(outcome)
            return
        data = decode(payload) if payload else None
        request = AgentRequest(
            request_id=request_id,
            operation=operation,
            thing=thing,
            name=name,
            has_input=bool(payload),
            report=self._report,
        )
        assert self._tasks is not None
        self._running[request_id] = anyio.CancelScope()
        self._tasks.start_soon(self._carry_out, data, request)

    async def _carry_out(self, data: JSONValue, request: AgentRequest) -> None:
        handler = self._handlers.get((request.operation, request.thing, request.name))
        report = Report(request_id=request.id, state=State.CANCELLED)
        try:
            with self._running[request.id]:
                report = await carried_out(handler, data, request)
        finally:
            del self._running[request.id]
            self._signal.notify()
        if report.reason is Reason.AGENT_ERROR:
            log.warning("handler failed: %s", report.error, extra={"request": request.id})
        self._memory.end(report)
        self._say(report)

    async def _report(self, report: Report) -> None:
        self._say(report)

    def _say(self, report: Report) -> None:
        self._reports.put(_Said(report.request_id, encode(report.document())))

    def _batch_reported(self, answer: JSONValue) -> None:
        rejected = answer.get("rejected") if isinstance(answer, dict) else None
        for item in rejected if isinstance(rejected, list) else ():
            if not isinstance(item, dict):
                continue
            code, message_id = str(item.get("code")), str(item.get("messageID"))
            reading = self._recent.pop(message_id, None)
            if code in _TRY_AGAIN and reading is not None and self._tasks is not None:
                self._deferred += 1
                self._paused_until = time.monotonic() + PAUSE_S
                self._tasks.start_soon(self._put_later, reading)
            else:
                self._problem(Problem(subject=message_id, code=code))

    async def _put_later(self, reading: _Reading) -> None:
        await anyio.sleep(PAUSE_S)
        self._deferred -= 1
        self._readings.put(reading)

    def _refused(self, problem: JSONValue) -> None:
        if isinstance(problem, dict):
            subject = next((str(problem[key]) for key in ("topic", "messageID", "callerRef") if problem.get(key)), "")
            detail = str(problem.get("detail", ""))
            self._problem(Problem(subject=subject, code=str(problem.get("code", "invalid")), detail=detail))

    def _problem(self, problem: Problem) -> None:
        log.warning("refused: %s %s %s", problem.subject, problem.code, problem.detail, extra={"agent": self.account})
        if self._on_problem is not None:
            self._on_problem(problem)


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, SkepError) and error.code in _TRY_AGAIN
