"""A gate that records what a wire engine asks of it, and answers as a test tells it to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from bindings.mqtt.engines.amqtt.engine import AmqttEngine
from bindings.mqtt.engines.native import NativeEngine
from bindings.mqtt.engines.seam import (
    ACCEPTED,
    Closed,
    Engine,
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
from things.identity import AccountType, Principal, Role

DEADLINE_S = 30.0

EngineType = Callable[[Sequence[Listener], Limits], Engine]

ENGINES: dict[str, EngineType] = {"amqtt": AmqttEngine, "native": NativeEngine}

COMMIT_S = 0.05


class Recording:
    """Lets in any account whose password is `{account}-secret`; `agent-` and others alike may do anything but what
    starts with `no/`. Publishes commit at once, in groups of everything that waits (`slow`), or fail (`bad/`)."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.links: list[Link] = []
        self.log: list[tuple[str, str]] = []
        self.messages: list[tuple[Link, Publish]] = []
        self.closings: list[tuple[Link, Closed]] = []
        self.filters: list[tuple[Link, str]] = []
        self.latest: Sequence[Publish] = ()
        self.on_subscribe: Callable[[Link, str], object] = lambda link, topic_filter: None
        self.parked: list[tuple[Link, Sequence[str]]] = []
        """Links that stand in for clients that are away, and their filters; how they end is in the log alone."""
        self.keeps = True
        """What `away` answers."""
        self.drops: Counter[tuple[str, str]] = Counter()
        self.slow = False
        self.commits = 0
        self._waiting: list[asyncio.Future[Outcome]] = []
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ the gate

    async def admit(self, hello: Hello) -> Principal | None:
        self.hellos.append(hello)
        await asyncio.sleep(0)
        account = hello.certificate_name or hello.user_name or ""
        if hello.certificate_name is None and hello.password != f"{account}-secret".encode():
            return None
        if hello.will is not None and hello.will.topic.startswith("no/"):
            return None
        return Principal(account=account, type=AccountType.AGENT, role=Role.AGENT)

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        return None

    def opened(self, link: Link, *, resumed: bool) -> None:
        self.links.append(link)
        self._note("opened", link)

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        self.messages.append((link, message))
        self._note("received", link)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if message.topic.startswith("bad/"):
            future.set_exception(OSError("no space left"))
        elif message.topic.startswith("no/"):
            future.set_result(Outcome(reason_code=0x87, reason="not yours"))
        elif not self.slow:
            future.set_result(ACCEPTED)
        else:
            if not self._waiting:
                asyncio.get_running_loop().call_later(COMMIT_S, self.commit)
            self._waiting.append(future)
        return future

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        raise error

    def will(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        return self.received(link, message)

    def owed_s(self, link: Link) -> float:
        return 0.0

    @property
    def rights(self) -> int | None:
        return 0

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        return message

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        if topic_filter.startswith("no/"):
            return 0x87
        self.filters.append((link, topic_filter))
        self._note("subscribe", link)
        latest = self.latest
        self.on_subscribe(link, topic_filter)
        return Grant(qos=options.qos, latest=latest)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        self._note("unsubscribe", link)
        if (link, topic_filter) in self.filters:
            self.filters.remove((link, topic_filter))
            return True
        return False

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        self.parked.append((link, tuple(filters)))
        self._note("away", link)
        return self.keeps

    @property
    def published_row(self) -> int:
        return 0

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        return Missed(deliveries=(), last_row=after, has_more=False)

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        self.drops[message.flow, reason] += 1

    def closed(self, link: Link, reason: Closed) -> None:
        if any(link is parked for parked, _ in self.parked):
            self._note("back", link)
            return
        self.closings.append((link, reason))
        self._note("closed", link)

    # ------------------------------------------------------------ the test's side

    def commit(self) -> None:
        """One group commit: everything that waits is done."""
        self.commits += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(ACCEPTED)

    @property
    def payloads(self) -> Sequence[bytes]:
        return [message.payload for _, message in self.messages]

    @property
    def reasons(self) -> Sequence[Closed]:
        return [reason for _, reason in self.closings]

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when the condition holds; it is looked at after each thing the engine does."""
        with anyio.fail_after(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _note(self, what: str, link: Link) -> None:
        self.log.append((what, link.client_id))
        self._changed.set()


@asynccontextmanager
async def serving(
    engine: Engine, gate: Recording
) -> AsyncIterator[tuple[Sequence[tuple[str, int]], Callable[[], None]]]:
    """A running engine: its addresses, and what stops it."""
    scope = anyio.CancelScope()

    async def serve(*, task_status: anyio.abc.TaskStatus[Listening]) -> None:
        with scope:
            await engine.serve(gate, task_status=task_status)

    async with anyio.create_task_group() as tasks:
        listening: Listening = await tasks.start(serve)
        try:
            yield listening.addresses, scope.cancel
        finally:
            scope.cancel()
