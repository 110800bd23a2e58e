"""A gateway's MQTT side in the process of a test: the real MQTT server, without accounts, stores and rules.

It takes what agents announce, publish and report, keeps it in memory for the test to look at, and asks them to act. It
judges requests by the Thing Descriptions that it was given, as a runtime does; it never refuses what is published
unless the test says so.
"""

import asyncio
import uuid
from asyncio import Task
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

import anyio
from pydantic import JsonValue

from bindings.mqtt.engines.native import NativeEngine
from bindings.mqtt.engines.seam import (
    ACCEPTED,
    Closed,
    Engine,
    Flow,
    Grant,
    Hello,
    Limits,
    Link,
    Listener,
    Listening,
    Missed,
    Outcome,
    Publish,
    SubscribeOptions,
)
from skep.requested import Status
from things.addresses import encode_segment
from things.errors import TimedOut, Unavailable, UnknownThing
from things.identity import AccountType, Principal, Role
from things.jsontext import decode, encode
from things.td import ThingDescription

SECRET = "secret"
PATIENCE_S = 10.0

EngineOf = Callable[[list[Listener], Limits], Engine]


class Gateway:
    """Enter it, then connect an agent to its `url` with any account and the password `secret`:

        async with Gateway() as gateway, Agent(gateway.url, "pumps", gateway.secret) as agent:
            ...
            assert await gateway.invoke("pump-1", "setSpeed", 42) == 42

    What came is in `tds`, `values`, `events` and `readings`. `outcome` decides what becomes of a publish, `hold` keeps
    its acknowledgement back, `drop` breaks the connection.
    """

    secret = SECRET

    def __init__(self, engine: EngineOf = NativeEngine) -> None:
        self.engine = engine
        """The MQTT server; `bindings.mqtt.engines` has two."""
        self._serving: Task[None] | None = None
        self._port: int | None = None
        self.links: list[Link] = []
        """Connections that are open, the newest last."""
        self.published: list[Publish] = []
        """Every message that came, in order."""
        self.outcome: Callable[[Publish], Outcome] = lambda message: ACCEPTED
        """What a message is answered with."""
        self.hold: asyncio.Event | None = None
        """While set and not fired, nothing is acknowledged."""
        self.acknowledged: list[str] = []
        """Topics of the deliveries that agents have acknowledged."""
        self._subscribed: dict[int, set[str]] = {}
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ its life

    @property
    def url(self) -> str:
        """Where it serves; raises Unavailable before it is entered."""
        if self._port is None:
            raise Unavailable("this gateway serves while it is entered: async with gateway")
        return f"mqtt://127.0.0.1:{self._port}"

    async def __aenter__(self) -> "Gateway":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Serve on loopback; port 0 picks a free one."""
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # A task of its own and no task group of the caller's: fixtures may be left in another task than entered.
        self._serving = asyncio.create_task(self._serve(port, ready))
        await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._serving
        self._port = ready.result()

    async def stop(self) -> None:
        """Break all connections and serve no longer; what came stays."""
        serving, self._serving, self._port = self._serving, None, None
        if serving is not None:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _serve(self, port: int, ready: "asyncio.Future[int]") -> None:
        async with anyio.create_task_group() as tasks:
            server = self.engine([Listener(host="127.0.0.1", port=port)], Limits())
            listening: Listening = await tasks.start(lambda *, task_status: server.serve(self, task_status=task_status))
            ready.set_result(listening.addresses[0][1])

    # ------------------------------------------------------------ what came

    @property
    def tds(self) -> Mapping[str, ThingDescription]:
        """The descriptions that stand, by Thing. Raises TDInvalid for one that a runtime would refuse."""
        found: dict[str, ThingDescription] = {}
        for message in self.published:
            match message.topic.split("/"):
                case ["agents", _, "td", thing] if message.payload:
                    found[thing] = ThingDescription.parse(bytes(message.payload), agent=True)
                case ["agents", _, "td", thing]:
                    found.pop(thing, None)
        return found

    def readings(self) -> list[dict[str, JsonValue]]:
        """Every value and event that came, in order, as in batches on the wire."""
        items: list[dict[str, JsonValue]] = []
        for message in self.published:
            if message.topic.endswith("/batch"):
                found = decode(message.payload)
                assert isinstance(found, list)
                items += [item for item in found if isinstance(item, dict)]
        return items

    def values(self, thing: str, name: str) -> list[JsonValue]:
        """Every value of a property that came, in order; one that was sent again after a lost connection once."""
        return self._data("publish_property", thing, name)

    def events(self, thing: str, name: str) -> list[JsonValue]:
        """The data of every event of a name that came, in order."""
        return self._data("publish_event", thing, name)

    def topics(self) -> list[str]:
        """The topic of every message that came."""
        return [message.topic for message in self.published]

    def statuses(self, request_id: str) -> list[dict[str, JsonValue]]:
        """What was reported of a request, in order."""
        found = [decode(m.payload) for m in self.published if m.topic.endswith(f"/status/{request_id}")]
        return [item for item in found if isinstance(item, dict)]

    def _data(self, operation: str, thing: str, name: str) -> list[JsonValue]:
        wanted = (operation, thing, name)
        return list(
            {
                str(one.get("messageID")): one.get("data")
                for one in self.readings()
                if (one.get("operation"), one.get("thingID"), one.get("name")) == wanted
            }.values()
        )

    # ------------------------------------------------------------ waiting

    async def until(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Wait for something to become true of what came; raises TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimedOut(f"it did not come about within {timeout_s:g} s") from error

    async def takes_requests(self) -> None:
        """Returns when an agent is connected and listens for requests."""
        await self.until(
            lambda: bool(self.links) and any(f.endswith("/action/#") for f in self._subscribed[id(self.links[-1])])
        )

    async def final(self, request_id: str, timeout_s: float = PATIENCE_S) -> dict[str, JsonValue]:
        """The final status of a request, when it comes; raises TimedOut."""
        await self.until(lambda: any(s["state"] in _FINAL for s in self.statuses(request_id)), timeout_s)
        return self.statuses(request_id)[-1]

    # ------------------------------------------------------------ asking

    async def invoke(self, thing: str, action: str, *data: JsonValue, timeout_s: float = PATIENCE_S) -> JsonValue:
        """Have the newest agent act, with one input or none; its output. Raises UnknownThing, UnknownName and Invalid
        as a runtime does, AgentFailed for the device's no, else what the request ended with."""
        self._td(thing).check_action_input(action, data[0] if data else None, bool(data))
        return await self._asked("action", thing, action, data, timeout_s)

    async def call(self, thing: str, method: str, *data: JsonValue, timeout_s: float = PATIENCE_S) -> JsonValue:
        """The same as an RPC."""
        self._td(thing).check_action_input(method, data[0] if data else None, bool(data))
        return await self._asked("rpc", thing, method, data, timeout_s)

    async def write(self, thing: str, name: str, value: JsonValue, timeout_s: float = PATIENCE_S) -> JsonValue:
        """Have the newest agent take a new value of a property; raises as `invoke` does."""
        self._td(thing).check_property_write(name, value)
        return await self._asked("property", thing, name, (value,), timeout_s)

    def send(self, topic: str, value: JsonValue = None, *, empty: bool = False) -> None:
        """Deliver one message to the newest connection; `acknowledged` notes its topic at the acknowledgement."""
        message = Publish(topic=topic, payload=b"" if empty else encode(value), qos=1, flow=Flow.LEDGER)

        def acknowledged() -> None:
            self.acknowledged.append(topic)
            self._notify()

        assert self.links[-1].push(message, acknowledged)

    def drop(self) -> None:
        """Break the newest connection."""
        self.links[-1].close(Closed.LOST)

    async def _asked(self, kind: str, thing: str, name: str, data: Sequence[JsonValue], timeout_s: float) -> JsonValue:
        await self.takes_requests()
        request_id = uuid.uuid4().hex
        account = self.links[-1].principal.account
        topic = f"inbox/{account}/{kind}/{thing}/{encode_segment(name)}/{request_id}"
        self.send(topic, data[0] if data else None, empty=not data)
        status = Status.of({**await self.final(request_id, timeout_s), "requestID": request_id})
        failure = status.failure()
        if failure is not None:
            raise failure
        return status.output

    def _td(self, thing: str) -> ThingDescription:
        tds = self.tds
        if thing not in tds:
            raise UnknownThing(thing, tds)
        return tds[thing]

    # ------------------------------------------------------------ what the MQTT server asks

    async def admit(self, hello: Hello) -> Principal | None:
        if hello.password != SECRET.encode() or hello.user_name is None:
            return None
        return Principal(account=hello.user_name, type=AccountType.AGENT, role=Role.AGENT)

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        return None

    def opened(self, link: Link, *, resumed: bool) -> None:
        self.links.append(link)
        self._subscribed[id(link)] = set()
        self._notify()

    def owed_s(self, link: Link) -> float:
        return 0.0

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        self.published.append(message)
        self._notify()
        return self._stored(message)

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        raise error

    def will(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        return self.received(link, message)

    @property
    def rights(self) -> int | None:
        return 0

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        return message

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        self._subscribed[id(link)].add(topic_filter)
        self._notify()
        return Grant(qos=1)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        return True

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        return True

    @property
    def published_row(self) -> int:
        return 0

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        return Missed(deliveries=(), last_row=after, has_more=False)

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        pass

    def closed(self, link: Link, reason: Closed) -> None:
        if link in self.links:
            self.links.remove(link)
        self._notify()

    async def _stored(self, message: Publish) -> Outcome:
        if self.hold is not None:
            await self.hold.wait()
        return self.outcome(message)

    def _notify(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


_FINAL = frozenset({"completed", "failed", "cancelled"})
