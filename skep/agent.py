"""An agent: the program that speaks for Things, over MQTT.

It keeps one connection up (jittered back-off between attempts), announces its Thing Descriptions at each connect, says
what is in `skep.outgoing` and hands what it is asked to `skep.running_requests`.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from skep.backoff import Backoff
from skep.exposed import Exposed
from skep.handlers import ActionHandler
from skep.memory import FileMemory, RequestMemory
from skep.mqtt_client import Delivered, MQTTConnection, MQTTVersion, VersionRefused
from skep.outbox import Signal
from skep.outgoing import MAX_OUTBOX_ITEMS, Outgoing, Problem, is_temporary
from skep.running_requests import Work
from skep.tls import client_context
from skep.urls import split_url
from things.addresses import Kind, decode_segment
from things.errors import BadAddress, SkepError, TimedOut, Unauthenticated, Unavailable
from things.jsontext import decode
from things.messages import JSONValue, Operation
from things.names import checked_account
from things.times import from_datetime

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""How long a connected agent that is left in peace waits for its last acknowledgements."""

_OPERATIONS = {
    "action": Operation.INVOKE_ACTION,
    "rpc": Operation.CALL_RPC,
    "property": Operation.WRITE_PROPERTY,
}


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

    Making one raises BadAddress for a `url` or `account` that cannot be one.
    Entering waits for the first attempt: refused credentials raise Unauthenticated; a runtime that cannot be reached
    does not, the agent goes on trying and keeps what it has to say. `mqtt_version` None asks for MQTT 5 and falls back
    to 3.1.1 where the server does not speak it. `memory` names a file in which requests are remembered across the end
    of the program, so that one that was begun is not begun again.
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
        memory: str | Path | None = None,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        parts, port = split_url(url)
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
            raise BadAddress(f"{url!r} is not an MQTT address; expected mqtts://HOST:PORT or mqtt://HOST:PORT")
        self.account = checked_account(account)
        self._host = parts.hostname
        self._port = port or (8883 if parts.scheme == "mqtts" else 1883)
        self._tls = client_context(ca) if parts.scheme == "mqtts" else None
        self._secret = secret
        self._client_id = client_id or f"{account}-{uuid.uuid4().hex[:12]}"
        self._wanted_version, self._version = mqtt_version, mqtt_version or MQTTVersion.V5
        self._connect_timeout_s = connect_timeout_s
        self._on_problem = on_problem
        self._exposed = Exposed()
        self._unsaid_tds: set[str] = set()
        self._signal = Signal()
        self._outgoing = Outgoing(self.account, self._signal, max_items=max_outbox_items, problem=self._problem)
        self._memory = RequestMemory() if memory is None else FileMemory(Path(memory))
        self._work = Work(self._memory, self._outgoing.say, self._is_repeatable)
        self._connection: MQTTConnection | None = None
        self._up = asyncio.Event()
        self._first_attempt = asyncio.Event()
        self._refusal: SkepError | None = None
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None

    # ------------------------------------------------------------ what it speaks for

    def expose(self, thing: str, td: Mapping[str, Any] | str | bytes) -> None:
        """Speak for a Thing from now on; its description is announced at each connect. Raises TDInvalid, BadAddress."""
        self._exposed.add(thing, td)
        self._unsaid_tds.add(thing)
        self._signal.notify()

    def withdraw(self, thing: str) -> None:
        """Stop speaking for a Thing: its twin is removed."""
        self._exposed.remove(thing)
        self._unsaid_tds.add(thing)
        self._signal.notify()

    def action(self, thing: str, name: str) -> Callable[[ActionHandler], ActionHandler]:
        """Declare the handler of an action; RPC calls of that name come to it too. Raises UnknownThing unless the Thing
        is exposed by now, UnknownName if its description has no such action."""
        self._exposed.check_handled(Kind.ACTION, thing, name)

        def declared(handler: ActionHandler) -> ActionHandler:
            self._work.declare(Operation.INVOKE_ACTION, thing, name, handler)
            self._work.declare(Operation.CALL_RPC, thing, name, handler)
            return handler

        return declared

    def write(self, thing: str, name: str) -> Callable[[ActionHandler], ActionHandler]:
        """Declare the handler of writes to a property. The twin changes when the agent publishes the new value. Raises
        UnknownThing, UnknownName, or Invalid for a property that is read-only."""
        self._exposed.check_handled(Kind.PROPERTY, thing, name)

        def declared(handler: ActionHandler) -> ActionHandler:
            self._work.declare(Operation.WRITE_PROPERTY, thing, name, handler)
            return handler

        return declared

    # ------------------------------------------------------------ what it says

    async def publish(
        self,
        thing: str,
        name: str,
        value: JsonValue,
        *,
        created: datetime | None = None,
        undeclared: bool = False,
    ) -> None:
        """Publish a property value; kept until the runtime has it. `created` is when it was so, default now. Waits for
        room while connected; while offline the oldest reading is dropped and counted when the outbox is full.

        Raises what the Thing's own description rules out: UnknownThing, UnknownName, Invalid (of another type than
        declared, or no JSON); TooLarge. `undeclared` lets a name pass that the description lacks: the runtime stores
        such values with a flag."""
        self._exposed.check_published(Kind.PROPERTY, thing, name, value, undeclared=undeclared)
        await self._put(Operation.PUBLISH_PROPERTY, thing, name, value, created)

    async def event(
        self,
        thing: str,
        name: str,
        data: JsonValue = None,
        *,
        created: datetime | None = None,
        undeclared: bool = False,
    ) -> None:
        """Publish an event; like `publish`."""
        self._exposed.check_published(Kind.EVENT, thing, name, data, undeclared=undeclared)
        await self._put(Operation.PUBLISH_EVENT, thing, name, data, created)

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Returns once the runtime has acknowledged everything said so far; raises TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._unsaid_tds or not self._outgoing.is_empty:
                    await self._signal.wait()
        except TimeoutError as error:
            left = len(self._outgoing.readings)
            raise TimedOut(f"{left} readings are not acknowledged after {timeout_s:g} s") from error

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def dropped(self) -> int:
        """Readings dropped because the outbox was full."""
        return self._outgoing.readings.dropped

    async def connected(self, timeout_s: float = 30.0) -> None:
        """Returns once connected and announced; raises TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError as error:
            raise TimedOut(f"not connected to {self._host}:{self._port} after {timeout_s:g} s") from error

    # ------------------------------------------------------------ its life

    async def __aenter__(self) -> "Agent":
        await self._memory.open()
        self._stack.push_async_callback(self._memory.close)
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
                    self._outgoing.recall()
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
                self._unsaid_tds.update(self._exposed)
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

    async def _put(
        self, operation: Operation, thing: str, name: str, data: JsonValue, created: datetime | None
    ) -> None:
        at = None if created is None else from_datetime(created)
        while self._up.is_set() and self._outgoing.readings.is_full:
            await self._signal.wait()
        self._outgoing.put(operation, thing, name, data, at)

    async def _say_tds(self, connection: MQTTConnection) -> None:
        for thing in sorted(self._unsaid_tds):
            try:
                td = self._exposed.get(thing)
                await connection.publish(f"agents/{self.account}/td/{thing}", td.text if td is not None else b"")
            except SkepError as error:
                if is_temporary(error):
                    raise
                # Announced again, it would be refused again.
                self._problem(Problem(thing=thing, code=error.code, detail=error.detail, subject=f"td/{thing}"))
            self._unsaid_tds.discard(thing)
        self._signal.notify()

    async def _send(self, connection: MQTTConnection) -> None:
        """Everything there is to say, in order of what depends on what: TDs, readings, reports."""
        while True:
            if self._unsaid_tds:
                await self._say_tds(connection)
            pause_s = self._outgoing.send(connection)
            with anyio.move_on_after(pause_s):
                await self._signal.wait()

    # ------------------------------------------------------------ receiving

    async def _receive(self, connection: MQTTConnection) -> None:
        while (message := await connection.receive()) is not None:
            try:
                self._take(message)
            except SkepError as error:
                log.warning("message not understood: %s", error.detail, extra={"topic": message.topic})
                message.ack()

    def _take(self, message: Delivered) -> None:
        assert self._tasks is not None
        match message.topic.split("/")[2:]:
            case ["action" | "rpc" | "property" as kind, thing, name, request_id]:
                operation, name = _OPERATIONS[kind], decode_segment(name)
                self._work.take(self._tasks, operation, thing, name, request_id, message.payload, message.ack)
                return  # acknowledged when there is room to begin it
            case ["cancel", request_id]:
                self._work.cancel(request_id)
            case ["batch"]:
                self._outgoing.batch_reported(decode(message.payload), self._tasks)
            case ["refused"]:
                self._refused(decode(message.payload))
            case _:
                log.debug("unknown topic", extra={"topic": message.topic})
        message.ack()

    def _is_repeatable(self, operation: Operation, thing: str, name: str) -> bool:
        """Whether doing it twice is the same as doing it once."""
        if operation is not Operation.INVOKE_ACTION:
            return operation is Operation.WRITE_PROPERTY
        td = self._exposed.get(thing)
        action = td.document.get("actions", {}).get(name) if td is not None else None
        return isinstance(action, dict) and action.get("idempotent") is True

    def _refused(self, problem: JSONValue) -> None:
        if isinstance(problem, dict):
            subject = next((str(problem[key]) for key in ("topic", "messageID", "callerRef") if problem.get(key)), "")
            code, detail = str(problem.get("code", "invalid")), str(problem.get("detail", ""))
            # The Thing stands in the topics of descriptions, and of values and events published one by one.
            thing, name = _named(subject)
            self._problem(Problem(thing=thing, name=name, code=code, detail=detail, subject=subject))

    def _problem(self, problem: Problem) -> None:
        log.warning("refused by the runtime: %s", problem, extra={"agent": self.account})
        if self._on_problem is not None:
            self._on_problem(problem)


def _named(topic: str) -> tuple[str, str]:
    """Thing and name of a topic on which agents publish; empty where it has none."""
    match topic.split("/"):
        case ["agents", _, "td" | "properties", thing]:
            return thing, ""
        case ["agents", _, "event" | "property", thing, name]:
            return thing, decode_segment(name)
        case _:
            return "", ""
