"""The queues of reachable agents, read from the ledger oldest first.

Per agent one *pump* reads whenever the agent becomes reachable or drains; while it is under way, new requests wait in
the ledger for it. Per Thing a *lane* holds back the next request as the Thing's order policy says.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from runtime.ports import Ledger, LedgerRow
from runtime.requests.hand_over import HandOver
from runtime.requests.reachable_agents import LEAST_AHEAD, Agent, Lane, Offered
from things.errors import SkepError

log = logging.getLogger(__name__)

_PAGE = 200
_LANE_PAGE = 4
"""Mostly the next one is wanted, and whether there are more."""
_RETRY_S = 1.0
"""After the ledger could not be read or written."""


@dataclass(slots=True)
class Queues:
    """Hands over what waits in the ledger, in its order."""

    ledger: Ledger
    hand_over: HandOver
    start: Callable[[Awaitable[None]], None]
    agents: Mapping[str, Agent]
    """Those that are reachable."""

    def pump(self, account: str, agent: Agent) -> None:
        """Read the agent's queue, from its beginning once more if it is being read."""
        if agent.pumping:
            agent.again = True
            return
        agent.pumping = True
        self.start(self._pumped(account, agent))

    async def _pumped(self, account: str, agent: Agent) -> None:
        try:
            after, seen, agent.again, agent.more = "", 0, False, False
            while self.agents.get(account) is agent:
                with self._reading(agent):
                    page = await self.ledger.waiting(account, limit=_PAGE, after=after)
                    if not await self._handed_over(account, agent, page):
                        return  # the agent left, or its session is full: `drained` starts the next round
                if page:
                    after, seen = page[-1].request_id, max(seen, max(row.seq for row in page))
                agent.cursor = max(agent.cursor, seen)
                if len(page) < _PAGE:
                    if agent.again:
                        after = ""
                    elif not agent.more:
                        return
                    agent.again = agent.more = False
                await asyncio.sleep(0)
        except SkepError as error:
            self._unread(account, agent, error)
        finally:
            agent.pumping = False

    async def _handed_over(self, account: str, agent: Agent, page: Sequence[LedgerRow]) -> bool:
        """Hand over a page in its order; False if that came to an end before the page did."""
        rows = page
        while rows:
            if self.agents.get(account) is not agent or agent.full:
                return False
            some = await self.hand_over.count(account, agent, rows[: agent.ahead])
            rows = rows[agent.ahead :]
            for place, row in enumerate(some):
                offered = self.hand_over.offer(agent, row)
                if self.agents.get(account) is not agent:
                    return False
                if offered is Offered.FULL:
                    agent.ahead = max(place, LEAST_AHEAD)
                    self.hand_over.forget_counted(agent)
                    return False
                if offered is Offered.UNCOUNTED:  # its lane was freed meanwhile
                    rows = [*some[place:], *rows]
                    break
            else:
                agent.ahead = min(2 * agent.ahead, _PAGE)
        return True

    def _unread(self, account: str, agent: Agent, error: SkepError) -> None:
        """The ledger could not be read or written: again in a while."""
        log.error("queue not read", extra={"agent": account, "code": error.code})
        asyncio.get_running_loop().call_later(_RETRY_S, self._pump_unless_full, account, agent)

    def _pump_unless_full(self, account: str, agent: Agent) -> None:
        if self.agents.get(account) is agent and not agent.full:
            self.pump(account, agent)

    def free(self, account: str, agent: Agent, row: LedgerRow) -> None:
        """A request holds its lane no longer: the next one for that Thing may go."""
        lane = agent.lanes.get(row.thing_id)
        if lane is None or lane.busy != row.request_id:
            return
        if lane.behind:
            # The lane stays busy with the request that has just ended until the next one is found, so that none that
            # comes meanwhile overtakes those held back.
            self.start(self._next_in_lane(account, agent, lane, row))
        else:
            del agent.lanes[row.thing_id]

    async def _next_in_lane(self, account: str, agent: Agent, lane: Lane, ended: LedgerRow) -> None:
        lane.behind = False
        rows: Sequence[LedgerRow] = ()
        with self._reading(agent):
            try:
                rows = await self._held_back(account, agent, ended)
            except SkepError as error:
                self._unread(account, agent, error)
            if lane.busy != ended.request_id or self.agents.get(account) is not agent:
                return  # the session was lost meanwhile
            lane.busy = None
            lane.behind = lane.behind or len(rows) > 1
            if rows and self.hand_over.offer(agent, rows[0]) is not Offered.HANDLED:
                lane.behind = True
                self._pump_unless_full(account, agent)

    async def _held_back(self, account: str, agent: Agent, ended: LedgerRow) -> Sequence[LedgerRow]:
        """The next request for the Thing of one that has ended, counted, and whatever of the same page comes after
        it."""
        after = ""
        while page := await self.ledger.waiting(account, thing_id=ended.thing_id, limit=_LANE_PAGE, after=after):
            rows = [
                row for row in page if row.request_id != ended.request_id and not self.hand_over.is_over(agent, row)
            ]
            while rows:
                first, *rest = rows
                if first.request_id in agent.counted or not self.hand_over.permits(first):
                    return rows
                counted = await self.ledger.count_hand_over([first.request_id])
                if self.agents.get(account) is not agent:
                    self.hand_over.take_back(counted)
                    return ()
                if counted and not self.hand_over.is_over(agent, first):
                    agent.counted.update(counted)
                    return [replace(first, attempts=first.attempts + 1), *rest]
                rows = rest
            after = page[-1].request_id
        return ()

    @contextmanager
    def _reading(self, agent: Agent) -> Iterator[None]:
        """While a page of an agent's queue is read and handed over, `ended` says what of it has ended meanwhile."""
        if not agent.reads:
            agent.ended.clear()
        agent.reads += 1
        try:
            yield
        finally:
            agent.reads -= 1
