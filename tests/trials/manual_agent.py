"""An agent by MQTT that does nothing by itself: it acknowledges, answers and hangs up when it is told to.

A client library would acknowledge at once and say goodbye; misfortune does neither.
"""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from tests.bindings.mqtt.wire import (
    CONNACK,
    PUBACK,
    PUBLISH,
    SUBACK,
    RawClient,
    connect,
    puback,
    publish,
    raw,
    subscribe,
)
from tests.support import Account

WITHIN_S = 10.0


@dataclass(slots=True)
class Handed:
    """A request as this session got it."""

    request_id: str
    thing: str
    packet_id: int
    is_acknowledged: bool = False


@dataclass(slots=True)
class ManualAgent:
    """One session; made by `arrived`, ended by `hang_up`."""

    account: Account
    client: RawClient
    handed: dict[str, Handed] = field(default_factory=dict)
    """What this session got, by request id, in its order."""
    cancels: list[str] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _answers: dict[int, "asyncio.Future[None]"] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _listening: "asyncio.Task[None] | None" = None
    _last_id: int = 0

    @staticmethod
    async def arrived(address: tuple[str, int], account: Account) -> "ManualAgent":
        """Connect and subscribe; requests flow from then on."""
        stack = AsyncExitStack()
        agent = ManualAgent(account, await stack.enter_async_context(raw(address)), _stack=stack)
        agent.client.send(connect(f"{account.name}-by-hand", account.name, account.token, keep_alive=0))
        await agent.client.expect(CONNACK)
        agent._listening = asyncio.create_task(agent._listen())
        packet_id, answer = agent._expected()
        agent.client.send(subscribe(packet_id, (f"inbox/{account.name}/#", 1)))
        await agent._answered(answer)
        return agent

    def acknowledge(self, request_id: str) -> None:
        """Send the PUBACK of a request."""
        handed = self.handed[request_id]
        handed.is_acknowledged = True
        self.client.send(puback(handed.packet_id))

    async def say(self, request_id: str, state: str) -> bool:
        """Report a state; False if it was refused."""
        packet_id, answer = self._expected()
        topic = self._status(packet_id, request_id, state)
        await self._answered(answer)
        # The problem comes before the acknowledgement of what it is about.
        was_refused = topic in self._refused
        self._refused.discard(topic)
        return not was_refused

    async def hang_up(self, *last_words: tuple[str, str]) -> None:
        """End the connection without a goodbye, straight after some reports nobody waits for."""
        for request_id, state in last_words:
            self._status(self._expected()[0], request_id, state)
        with suppress(ConnectionError):
            await self.client.writer.drain()
        if self._listening is not None:
            self._listening.cancel()
        await self._stack.aclose()

    # ------------------------------------------------------------ private

    def _status(self, packet_id: int, request_id: str, state: str) -> str:
        topic = f"agents/{self.account.name}/status/{request_id}"
        self.client.send(publish(topic, json.dumps({"state": state}).encode(), qos=1, packet_id=packet_id))
        return topic

    def _expected(self) -> tuple[int, "asyncio.Future[None]"]:
        self._last_id = self._last_id % 65_535 + 1
        answer = self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        return self._last_id, answer

    @staticmethod
    async def _answered(answer: "asyncio.Future[None]") -> None:
        async with asyncio.timeout(WITHIN_S):
            await answer

    async def _listen(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                packet = await self.client.receive(within_s=None)
                if packet.kind in (PUBACK, SUBACK):
                    self._answers.pop(packet.packet_id).set_result(None)
                elif packet.kind == PUBLISH:
                    self._take(packet.topic, packet.payload, packet.delivery_id)

    def _take(self, topic: str, payload: bytes, packet_id: int) -> None:
        match topic.split("/")[2:]:
            case ["action" | "property", thing, _, request_id]:
                self.handed[request_id] = Handed(request_id, thing, packet_id)
            case ["cancel", request_id]:
                self.cancels.append(request_id)
                self.client.send(puback(packet_id))
            case ["refused"]:
                self._refused.add(json.loads(payload)["topic"])
                self.client.send(puback(packet_id))
            case _:
                raise AssertionError(f"{topic} is nothing for an agent")
