"""Who waits for which response, and until when.

Every request waits equally long, so the oldest is always the next to end: one table in that order and one timer serve
any number of them. A provisional response begins the wait anew. What a request that timed out is answered later is
known as late for as long again, so that nobody hears two final answers.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bindings.messaging_node.sessions import NodeSession, Pending
from things.envelopes import Envelope
from things.errors import Conflict, QueueFull

_TURN = 500
"""Time-outs told before others have a turn."""


@dataclass(slots=True)
class Asked:
    """One request whose response is routed back."""

    session: NodeSession
    due: float
    expects: bool
    """Whether silence is answered by a time-out."""
    sender: str | None = None
    """What the asker calls itself, where its receivers know it by another address."""
    is_answered: bool = False
    is_over: bool = False
    """It timed out and its sender was told; an answer now is late."""


class PendingResponses:
    """The table. `timed_out` is told of each request that nobody answered in time."""

    def __init__(
        self,
        *,
        wait_s: float,
        most: int,
        most_of_session: int,
        compatible: bool,
        timed_out: Callable[[Pending, Asked], None],
    ) -> None:
        self._wait_s = wait_s
        self._most = most
        self._most_of_session = most_of_session
        self._compatible = compatible
        self._timed_out = timed_out
        self._asked: OrderedDict[Pending, Asked] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, envelope: Envelope, session: NodeSession, *, expects: bool, sender: str | None = None) -> None:
        """Remember where the response to a message goes, and to which `sender` there. Raises QueueFull, and Conflict
        where it would go to somebody else: two sessions that speak as one unowned address must not get each other's
        answers."""
        key = (envelope.to, envelope.sender, envelope.id)
        standing = self._asked.get(key)
        if standing is not None and standing.session is not session:
            other = standing.session.principal.account != session.principal.account
            if other and not self._compatible and not standing.is_over:
                raise Conflict("somebody else waits for an answer to this id from this address")
            standing.session.pending.discard(key)
        if len(session.pending) >= self._most_of_session and key not in session.pending:
            raise QueueFull("this session", self._most_of_session, "requests without a response")
        loop = asyncio.get_running_loop()
        self._asked[key] = Asked(session, loop.time() + self._wait_s, expects, sender)
        self._asked.move_to_end(key)
        session.pending.add(key)
        if len(self._asked) > self._most:
            self._end(*self._asked.popitem(last=False))
        if self._timer is None:
            self._timer = loop.call_at(loop.time() + self._wait_s, self._tick)

    def answered(self, envelope: Envelope, *, by_many: bool) -> Asked | None:
        """The request that this response answers, None if nobody is known to wait for it. A final response is the
        last, unless many were asked."""
        key = (envelope.sender, envelope.to, envelope.id)
        found = self._asked.get(key)
        if found is None or found.is_over:
            return found
        if envelope.body.get("code") == 100:
            found.due = asyncio.get_running_loop().time() + self._wait_s
            self._asked.move_to_end(key)
        elif by_many:
            found.is_answered = True
        else:
            del self._asked[key]
            found.session.pending.discard(key)
        return found

    def forget(self, session: NodeSession) -> None:
        """The session has ended: nobody waits there any more."""
        for key in session.pending:
            self._asked.pop(key, None)
        session.pending.clear()

    def close(self) -> None:
        """Forget everything."""
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for _ in range(_TURN):
            key, asked = next(iter(self._asked.items()), (None, None))
            if key is None or asked is None:
                return
            if asked.due > now:
                self._timer = loop.call_at(asked.due, self._tick)
                return
            del self._asked[key]
            self._end(key, asked)
        self._timer = loop.call_later(0, self._tick)

    def _end(self, key: Pending, asked: Asked) -> None:
        """The time of a request that was taken from the table is over, for the first or the last time."""
        if asked.is_over or asked.is_answered or not asked.expects:
            asked.session.pending.discard(key)
            return
        asked.is_over = True
        if len(self._asked) < self._most:
            asked.due = asyncio.get_running_loop().time() + self._wait_s
            self._asked[key] = asked
        else:
            asked.session.pending.discard(key)
        self._timed_out(key, asked)
