"""Agents that poll for their requests: one session each, living from poll to poll.

A poll within the prescribed interval keeps the agent reachable; between polls its requests stay in the ledger, where a
newer session of the agent finds them, and only calls and cancels wait here. What was handed over stays here until the
agent answers it or polls with a later `after`, so that a reply lost on the way is given again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bindings.http.channels import Channel
from runtime.ports import Request, Sessions
from things.identity import Principal
from things.messages import Operation

READING_S = 0.2


@dataclass(slots=True)
class Held:
    """One request in the agent's small queue; `delivered` is None once a reply with it has been written."""

    request: Request
    delivered: Callable[[], None] | None


class PollChannel(Channel):
    """The session of a polling agent."""

    def __init__(
        self, sessions: Sessions, principal: Principal, *, session_id: str, source: str | None, limit: int
    ) -> None:
        super().__init__(sessions, principal, session_id=session_id, source=source)
        self.turn = 0
        """The poll that is under way: a later one takes over, since a client that polls again has left the former."""
        self.expiry: asyncio.TimerHandle | None = None
        self.is_idle = False
        """No poll waits for requests."""
        self._limit = limit
        self._held: dict[tuple[str, Operation], Held] = {}
        self._refused = False
        self._expects = True
        """What waits in the ledger is on its way, if there is any."""

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        if self.closed_because is not None:
            return False
        if len(self._held) >= self._limit or (self.is_idle and _is_in_ledger(request)):
            self._refused = True
            return False
        self._held[request.request_id, request.operation] = Held(request, delivered)
        self.wake.set()
        return True

    def close(self, reason: str) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
        self._held.clear()
        super().close(reason)

    def began(self) -> None:
        """A poll is under way: it takes over from one that still waits, and gets what has been kept from it."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        self.turn += 1
        self.is_idle = False
        self.wake.set()
        self._expects = self._expects or self._refused
        self._drain()

    def left(self, turn: int) -> None:
        """The client of this poll is gone: nothing more is given to it."""
        if self.turn == turn:
            self.is_idle = True
            self.wake.set()

    def ended(self) -> None:
        """The poll was answered, or its client left: what it was given and did not get goes back to the ledger."""
        self.is_idle = True
        if any(held.delivered is not None and _is_in_ledger(held.request) for held in self._held.values()):
            self.close("its client left before it was answered")

    async def collect(self, after: int | None, wait_s: float) -> Sequence[Held]:
        """What the agent is to be given now: what it never got, and with `after` also what it got with a higher seq
        and has not answered. Waits for the first; nothing for a poll that a later one took over, or whose client
        left."""
        turn = self.turn
        if after is not None:
            self._forget_until(after)
        loop = asyncio.get_running_loop()
        # Reading the ledger takes a moment, also for those who do not want to wait.
        until = loop.time() + (max(wait_s, READING_S) if self._expects else wait_s)
        self._expects = False
        while self.closed_because is None and self.turn == turn and not self.is_idle:
            found = [held for held in self._held.values() if held.delivered is not None or after is not None]
            if found or loop.time() >= until:
                # What comes while the reply is written waits for the next poll.
                self.is_idle = True
                return found
            self.wake.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self.wake.wait()
            except TimeoutError:
                continue
        return ()

    def written(self, given: Sequence[Held]) -> None:
        """A reply with these has been written: they are delivered."""
        for held in given:
            if held.delivered is not None:
                delivered, held.delivered = held.delivered, None
                delivered()
            if held.request.seq == 0 or held.request.operation is Operation.CANCEL:
                # A call is never given twice, and a repeated cancel would say nothing new.
                self._held.pop((held.request.request_id, held.request.operation), None)
        self._drain()

    def answered(self, request_id: str) -> None:
        """The agent has reported on this request: it need not be given again."""
        for operation in (Operation.INVOKE_ACTION, Operation.WRITE_PROPERTY, Operation.CALL_RPC):
            self._held.pop((request_id, operation), None)
        self._drain()

    def _forget_until(self, seq: int) -> None:
        self._held = {
            key: held for key, held in self._held.items() if held.delivered is not None or held.request.seq > seq
        }
        self._drain()

    def _drain(self) -> None:
        if self._refused and len(self._held) < self._limit:
            self._refused = False
            self._sessions.drained(self)


class Pollers:
    """The polling agents' sessions by account."""

    def __init__(self, sessions: Sessions, *, interval_s: float, limit: int, new_id: Callable[[], str]) -> None:
        self._sessions = sessions
        self._interval_s = interval_s
        self._limit = limit
        self._new_id = new_id
        self._channels: dict[str, PollChannel] = {}

    def attach(self, principal: Principal, source: str | None) -> PollChannel:
        """The account's session, opened if there is none; it does not expire while a poll is under way. A former poll
        that is still waiting ends empty."""
        channel = self._channels.get(principal.account)
        if channel is not None and channel.closed_because is None:
            if channel.principal != principal:
                self._sessions.renewed(channel, principal)
                channel.principal = principal
        else:
            channel = PollChannel(
                self._sessions, principal, session_id=self._new_id(), source=source, limit=self._limit
            )
            self._sessions.opened(channel)
            self._channels[principal.account] = channel
            self._sessions.take_requests(channel)
        channel.began()
        return channel

    def detach(self, channel: PollChannel, turn: int) -> None:
        """The poll is answered: from now on the agent has the interval to come back."""
        if channel.turn != turn:
            return
        channel.ended()
        if channel.closed_because is not None:
            self._forget(channel)
            return
        loop = asyncio.get_running_loop()
        channel.expiry = loop.call_later(self._interval_s, self._expired, channel)

    def answered(self, account: str, request_id: str) -> None:
        channel = self._channels.get(account)
        if channel is not None:
            channel.answered(request_id)

    def close(self) -> None:
        for channel in tuple(self._channels.values()):
            channel.close("shut-down")
        self._channels.clear()

    def _expired(self, channel: PollChannel) -> None:
        channel.close("no poll within the interval")
        self._forget(channel)

    def _forget(self, channel: PollChannel) -> None:
        if self._channels.get(channel.principal.account) is channel:
            del self._channels[channel.principal.account]


def _is_in_ledger(request: Request) -> bool:
    """Whether it waits in the ledger if it is refused; a call does not, and a cancel is said once."""
    return request.seq != 0 and request.operation is not Operation.CANCEL
