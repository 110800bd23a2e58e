"""A runtime's MQTT side as an agent sees it, over the real engines: it notes what comes and hands out requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
from pydantic import JsonValue

from bindings.mqtt.amqtt_engine import AmqttEngine
from bindings.mqtt.seam import (
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
    Outcome,
    Publish,
    SubscribeOptions,
)
from bindings.mqtt.server import NativeEngine
from things.identity import AccountType, Principal, Role
from things.jsontext import decode, encode

ENGINES: dict[str, Callable[[list[Listener], Limits], Engine]] = {"amqtt": AmqttEngine, "native": NativeEngine}


class Gateway:
    """Lets in who has the password `secret`; stores every publish unless told otherwise."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.published: list[Publish] = []
        self.outcome: Callable[[Publish], Outcome] = lambda message: ACCEPTED
        self.hold: asyncio.Event | None = None
        """While set and not fired, nothing is acknowledged."""
        self.acknowledged: list[str] = []
        self._subscribed: dict[int, set[str]] = {}
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ what the engine asks

    async def admit(self, hello: Hello) -> Principal | None:
        if hello.password != b"secret" or hello.user_name is None:
            return None
        return Principal(account=hello.user_name, type=AccountType.AGENT, role=Role.AGENT)

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        return None

    def opened(self, link: Link, *, resumed: bool) -> None:
        self.links.append(link)
        self._subscribed[id(link)] = set()
        self._notify()

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        self.published.append(message)
        self._notify()
        return self._stored(message)

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        self._subscribed[id(link)].add(topic_filter)
        self._notify()
        return Grant(qos=1)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        return True

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        return True

    def closed(self, link: Link, reason: Closed) -> None:
        if link in self.links:
            self.links.remove(link)
        self._notify()

    # ------------------------------------------------------------ what a test asks

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to become true of what was noted."""
        with anyio.fail_after(10):
            while not condition():
                await self._changed.wait()

    async def takes_requests(self) -> None:
        """An agent is connected and its inbox subscription stands."""
        await self.until(
            lambda: bool(self.links) and any(f.endswith("/action/#") for f in self._subscribed[id(self.links[-1])])
        )

    def send(self, topic: str, value: JsonValue = None, *, empty: bool = False) -> None:
        """Deliver one message to the newest link; `acknowledged` notes the topic at its PUBACK."""
        message = Publish(topic=topic, payload=b"" if empty else encode(value), qos=1, flow=Flow.LEDGER)

        def acknowledged() -> None:
            self.acknowledged.append(topic)
            self._notify()

        assert self.links[-1].push(message, acknowledged)

    def drop(self) -> None:
        """Break the newest connection."""
        self.links[-1].close(Closed.LOST)

    def readings(self) -> list[dict[str, JsonValue]]:
        """Every batch item that came, in order."""
        items: list[dict[str, JsonValue]] = []
        for message in self.published:
            if message.topic.endswith("/batch"):
                found = decode(message.payload)
                assert isinstance(found, list)
                items += [item for item in found if isinstance(item, dict)]
        return items

    def statuses(self, request_id: str) -> list[dict[str, JsonValue]]:
        """What was reported of a request, in order."""
        found = [decode(m.payload) for m in self.published if m.topic.endswith(f"/status/{request_id}")]
        return [item for item in found if isinstance(item, dict)]

    async def final(self, request_id: str) -> dict[str, JsonValue]:
        """The final status of a request, when it comes."""
        await self.until(
            lambda: any(s["state"] in ("completed", "failed", "cancelled") for s in self.statuses(request_id))
        )
        return self.statuses(request_id)[-1]

    def topics(self) -> list[str]:
        return [message.topic for message in self.published]

    async def _stored(self, message: Publish) -> Outcome:
        if self.hold is not None:
            await self.hold.wait()
        return self.outcome(message)

    def _notify(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


@asynccontextmanager
async def served(engine: str, gateway: Gateway, *, port: int = 0) -> AsyncIterator[int]:
    """Serve it on loopback; the port."""
    async with anyio.create_task_group() as tasks:
        server = ENGINES[engine]([Listener(host="127.0.0.1", port=port)], Limits())
        listening: Listening = await tasks.start(lambda *, task_status: server.serve(gateway, task_status=task_status))
        yield listening.addresses[0][1]
        tasks.cancel_scope.cancel()
