"""Handing single requests over to the sessions of their agents.

Nothing leaves the process before the ledger counts its hand-over, so that a runtime that was killed knows afterwards
what may have been done. For a request that goes at once the commit that stores it says so; a queue takes one more
commit a page. What was counted and did not take place is taken back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from runtime.ports import Ledger, LedgerRow
from runtime.requests.reachable_agents import Agent, Lane, Offer, Offered, OrderPolicy, request_of
from things.addresses import TwinID
from things.delivery import Reason, State
from things.errors import IllegalStatus, UnknownRequest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HandOver:
    """Offers requests to agents, and knows which of them can have left the process."""

    ledger: Ledger
    clock: Callable[[], int]
    start: Callable[[Awaitable[None]], None]
    order_of: Callable[[str], OrderPolicy]
    """The order policy of a Thing."""
    permits: Callable[[LedgerRow], bool]
    """Whether the caller of a row may still ask for it."""
    advance: "Callable[..., asyncio.Future[LedgerRow]]"
    """As `Deliveries.advance`."""
    agents: Mapping[str, Agent]
    """Those that are reachable."""

    def goes_at_once(self, thing_id: str) -> bool:
        """Whether a request for this Thing would be handed over as soon as it is stored; it is then to be stored with
        that hand-over counted."""
        agent = self.agents.get(TwinID.parse(thing_id).account)
        return agent is not None and agent.is_direct and agent.is_free(thing_id) and agent.taker(thing_id) is not None

    def offer(self, agent: Agent, row: LedgerRow) -> Offered:
        """Hand over one request, unless it may not go now."""
        session = agent.taker(row.thing_id)
        if session is None or row.request_id in agent.offers or self.is_over(agent, row):
            return Offered.HANDLED
        order = self.order_of(row.thing_id)
        lane: Lane | None = None
        if order is not OrderPolicy.BURST:
            lane = agent.lanes.setdefault(row.thing_id, Lane())
            if lane.busy is not None:
                lane.behind = True
                return Offered.HANDLED
        if not self.permits(row):
            if lane is not None:
                lane.busy = row.request_id
            self.start(self._refused(row))
            return Offered.HANDLED
        if row.request_id not in agent.counted:
            return Offered.UNCOUNTED
        offer = Offer(row.request_id, row.thing_id, session)
        agent.offers[row.request_id] = offer
        agent.counted.remove(row.request_id)
        if lane is not None:
            lane.busy = row.request_id
        if session.request(request_of(row), lambda: self._acknowledged(offer)):
            return Offered.HANDLED
        agent.offers.pop(row.request_id, None)
        agent.counted.add(row.request_id)
        if lane is not None:
            lane.busy = None
        agent.full = True
        if self.agents.get(row.agent) is not agent:  # it closed
            self.forget_counted(agent)
        return Offered.FULL

    async def count(self, account: str, agent: Agent, rows: Sequence[LedgerRow]) -> Sequence[LedgerRow]:
        """Let the ledger count the hand-over of those that can go now; all of them as they stand then, but those that
        have ended. Within a reading of its queue."""
        going = self._going(agent, rows)
        if not going:
            return rows
        counted = await self.ledger.count_hand_over(going)
        if self.agents.get(account) is not agent:
            self.take_back(counted)
            return ()
        agent.counted.update(one for one in counted if one not in agent.ended)
        gone = set(going).difference(counted)
        return [
            replace(row, attempts=row.attempts + 1) if row.request_id in counted else row
            for row in rows
            if row.request_id not in gone
        ]

    def _going(self, agent: Agent, rows: Sequence[LedgerRow]) -> Sequence[str]:
        """Requests that can be handed over now and are not counted: one of each Thing whose order is not burst."""
        going, taken = [], set()
        for row in rows:
            if row.request_id in agent.offers or self.is_over(agent, row) or not self.permits(row):
                continue
            if self.order_of(row.thing_id) is not OrderPolicy.BURST:
                if row.thing_id in taken or not agent.is_free(row.thing_id):
                    continue
                taken.add(row.thing_id)
            if row.request_id not in agent.counted:
                going.append(row.request_id)
        return going

    def take_back(self, request_ids: Collection[str]) -> None:
        """Hand-overs that were counted and did not take place."""
        if request_ids:
            self.ledger.count_hand_over(tuple(request_ids), by=-1).add_done_callback(_taken_back)

    def forget_counted(self, agent: Agent) -> None:
        """Take back every hand-over to this agent that was counted and has not taken place."""
        self.take_back(agent.counted)
        agent.counted.clear()

    def has_been_handed(self, row: LedgerRow) -> bool:
        """Whether anything of a request that waits can have left the process. What was counted and did not take place
        is taken back, before whatever is asked of the ledger next."""
        agent = self.agents.get(row.agent)
        if agent is None:
            return row.attempts > 0
        has_been = agent.has_been_handed(row)
        if row.request_id in agent.counted:
            agent.counted.remove(row.request_id)
            self.take_back([row.request_id])
        return has_been

    def is_over(self, agent: Agent, row: LedgerRow) -> bool:
        """Whether there can be no delivery any more: it has ended since it was read, or expiry is about to end it."""
        if row.request_id in agent.ended:
            return True
        return row.expires is not None and row.expires <= self.clock() and not agent.has_been_handed(row)

    async def _refused(self, row: LedgerRow) -> None:
        """End a request that its caller may not ask for any more; it holds its lane until it has ended."""
        error = "its caller may not ask for this any more"
        try:
            await self.advance(row.request_id, State.FAILED, reason=Reason.FORBIDDEN, error=error)
        except (IllegalStatus, UnknownRequest):
            return  # it ended meanwhile
        log.info("request dropped", extra={"request": row.request_id, "caller": row.caller, "thing": row.thing_id})

    def _acknowledged(self, offer: Offer) -> None:
        offer.delivered = True
        self.advance(offer.request_id, State.DELIVERED).add_done_callback(partial(_delivered, offer))


def _delivered(offer: Offer, done: "asyncio.Future[LedgerRow]") -> None:
    error = None if done.cancelled() else done.exception()
    # Else its first status was faster than its acknowledgement, or it was cancelled meanwhile.
    if error is not None and not isinstance(error, IllegalStatus | UnknownRequest):
        log.error("delivery not recorded", extra={"request": offer.request_id}, exc_info=error)


def _taken_back(done: "asyncio.Future[Collection[str]]") -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:  # what then expires is said to have been handed over, which is the careful mistake
        log.warning("a hand-over that did not take place stays counted", extra={"reason": str(error)})
