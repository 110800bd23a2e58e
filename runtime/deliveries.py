"""Requests on their way to agents: handed over in order, kept for absent ones, redelivered after a lost session.

The ledger is the queue. In memory there is only what a connected agent has been offered and not answered, so pending
requests of absent agents cost nothing here. Per agent one *pump* reads the ledger oldest first whenever the agent
becomes reachable or drains; while it is under way, new requests wait in the ledger for it, and otherwise they are
offered at once. Per Thing a *lane* holds back the next request as the Thing's order policy says.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.followups import followed
from runtime.metrics import Metrics
from runtime.offers import Agent, Lane, Offer, Order, cancel_of, request_of
from runtime.ports import Ledger, LedgerRow, Session
from runtime.sessions import LiveSessions
from things.delivery import Reason, State
from things.errors import IllegalStatus, SkepError, UnknownRequest
from things.messages import JSONValue

log = logging.getLogger(__name__)

_PAGE = 200
_LANE_PAGE = 4
"""Mostly the next one is wanted, and whether there are more."""


@dataclass(slots=True)
class Deliveries:
    """Hands ledger rows to agents and passes every committed step on to the caller."""

    ledger: Ledger
    sessions: LiveSessions
    clock: Callable[[], int]
    start: Callable[[Awaitable[None]], None]
    order_of: Callable[[str], Order]
    """The order policy of a Thing."""
    settled: Callable[[LedgerRow], None]
    """Called soon after each committed step, in their order: reports, replies, publications."""
    due_changed: Callable[[int | None], None]
    """Called with a time at which something may expire."""
    metrics: Metrics
    _agents: dict[str, Agent] = field(default_factory=dict)

    # ------------------------------------------------------------ agents come and go

    def reachable(self, session: Session, thing_id: str | None = None) -> None:
        """An agent takes requests through this session now, for one Thing or all; the newest one gets what comes
        next."""
        account = session.principal.account
        agent = self._agents.setdefault(account, Agent())
        if thing_id is None:
            agent.session = session
            agent.full = False
        else:
            speakers = agent.speakers.setdefault(thing_id, {})
            speakers.pop(session, None)
            speakers[session] = None
        self._pump(account, agent)

    def unreachable(self, session: Session, thing_id: str | None = None) -> None:
        """The session takes no more requests, for one Thing or at all: what it did not answer goes back, and to
        another session if there is."""
        account = session.principal.account
        agent = self._agents.get(account)
        if agent is None:
            return
        lost = [
            offer for offer in agent.offers.values() if offer.session is session and thing_id in (None, offer.thing_id)
        ]
        for offer in lost:
            agent.take_back(offer)
        for one in tuple(agent.speakers) if thing_id is None else (thing_id,):
            speakers = agent.speakers.get(one, {})
            speakers.pop(session, None)
            if not speakers:
                agent.speakers.pop(one, None)
        if agent.session is session and thing_id is None:
            agent.session = self.sessions.newest_taker(account)
            agent.full = False
        is_gone = agent.session is None and not agent.speakers
        if is_gone:
            del self._agents[account]
        if lost or not is_gone:
            self.start(self._return(account, lost))

    def drained(self, session: Session) -> None:
        """The session has room again."""
        account = session.principal.account
        agent = self._agents.get(account)
        if agent is not None and agent.session is session and agent.full:
            agent.full = False
            self._pump(account, agent)

    def is_reachable(self, account: str) -> bool:
        """Whether an agent can be handed a request now."""
        return account in self._agents

    def session_of(self, account: str, thing_id: str) -> Session | None:
        """The session that gets an agent's requests for one of its Things."""
        agent = self._agents.get(account)
        return agent.taker(thing_id) if agent else None

    # ------------------------------------------------------------ handing over

    def offer_new(self, row: LedgerRow) -> bool:
        """Hand over a row that was just committed, unless older ones have to go first; whether it is on offer."""
        agent = self._agents.get(row.agent)
        if agent is None:
            return False
        if agent.is_direct and row.seq > agent.cursor:
            self._offer(agent, row)
        elif agent.pumping:
            agent.more = True
        # Otherwise the pump has seen it already, or will when the session drains.
        return row.request_id in agent.offers

    def _offer(self, agent: Agent, row: LedgerRow) -> bool:
        """False: the session is full. Held back or already offered rows count as handled."""
        session = agent.taker(row.thing_id)
        if session is None or row.request_id in agent.offers or self._is_over(agent, row):
            return True
        order = self.order_of(row.thing_id)
        lane: Lane | None = None
        if order is not Order.BURST:
            lane = agent.lanes.setdefault(row.thing_id, Lane())
            if lane.busy is not None:
                lane.behind = True
                return True
        offer = Offer(row.request_id, row.thing_id, session)
        agent.offers[row.request_id] = offer
        if lane is not None:
            lane.busy = row.request_id
        if session.request(request_of(row), lambda: self._acknowledged(offer)):
            return True
        del agent.offers[row.request_id]
        if lane is not None:
            lane.busy = None
        agent.full = True
        return False

    def _is_over(self, agent: Agent, row: LedgerRow) -> bool:
        """Whether there can be no delivery any more: it has ended since it was read, or expiry is about to end it."""
        if row.request_id in agent.ended:
            return True
        return row.attempts == 0 and row.expires is not None and row.expires <= self.clock()

    async def _waiting(
        self, account: str, agent: Agent, *, limit: int, after: str, thing_id: str | None = None
    ) -> Sequence[LedgerRow]:
        """A page of an agent's queue; use it before anything else is awaited: until then `ended` belongs to it."""
        if not agent.reads:
            agent.ended.clear()
        agent.reads += 1
        try:
            return await self.ledger.waiting(account, thing_id=thing_id, limit=limit, after=after)
        finally:
            agent.reads -= 1

    def _acknowledged(self, offer: Offer) -> None:
        offer.delivered = True
        self.advance(offer.request_id, State.DELIVERED).add_done_callback(partial(_delivered, offer))

    def _free(self, account: str, agent: Agent, row: LedgerRow) -> None:
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
        try:
            rows = await self._held_back(account, agent, ended)
        except SkepError as error:
            log.error("queue not read", extra={"agent": account, "code": error.code})
        if lane.busy != ended.request_id or self._agents.get(account) is not agent:
            return  # the session was lost meanwhile
        lane.busy = None
        lane.behind = lane.behind or len(rows) > 1
        if rows and not self._offer(agent, rows[0]):
            lane.behind = True

    async def _held_back(self, account: str, agent: Agent, ended: LedgerRow) -> Sequence[LedgerRow]:
        """The next request for the Thing of one that has ended, and whatever of the same page comes after it."""
        after = ""
        while page := await self._waiting(account, agent, thing_id=ended.thing_id, limit=_LANE_PAGE, after=after):
            rows = [row for row in page if row.request_id != ended.request_id and not self._is_over(agent, row)]
            if rows:
                return rows
            after = page[-1].request_id
        return ()

    def _pump(self, account: str, agent: Agent) -> None:
        if agent.pumping:
            agent.again = True
            return
        agent.pumping = True
        self.start(self._pumped(account, agent))

    async def _pumped(self, account: str, agent: Agent) -> None:
        try:
            after, seen, agent.again, agent.more = "", 0, False, False
            while self._agents.get(account) is agent:
                page = await self._waiting(account, agent, limit=_PAGE, after=after)
                for row in page:
                    if self._agents.get(account) is not agent:
                        return
                    if not self._offer(agent, row):
                        return  # full: `drained` starts the next round
                    after = row.request_id
                    seen = max(seen, row.seq)
                agent.cursor = max(agent.cursor, seen)
                if len(page) < _PAGE:
                    if agent.again:
                        after = ""
                    elif not agent.more:
                        return
                    agent.again = agent.more = False
                await asyncio.sleep(0)
        except SkepError as error:
            log.error("queue not read", extra={"agent": account, "code": error.code})
        finally:
            agent.pumping = False

    async def _return(self, account: str, lost: Sequence[Offer]) -> None:
        # Together, so that they share a commit.
        await asyncio.gather(*map(self._returned, lost))
        agent = self._agents.get(account)
        if agent is not None:
            self._pump(account, agent)

    async def _returned(self, offer: Offer) -> None:
        try:
            await self.advance(offer.request_id, State.PENDING)
        except (IllegalStatus, UnknownRequest):
            return  # never acknowledged (still pending), or final meanwhile
        except SkepError as error:
            log.error("request not returned", extra={"request": offer.request_id, "code": error.code})

    async def recover(self) -> int:
        """At start no session lives: everything agents had not answered goes back to pending. Returns how many."""
        returned, after = 0, ""
        while page := await self.ledger.unanswered(limit=_PAGE, after=after):
            await asyncio.gather(*(self.advance(row.request_id, State.PENDING) for row in page))
            returned += len(page)
            after = page[-1].request_id
        return returned

    # ------------------------------------------------------------ steps

    def advance(
        self,
        request_id: str,
        state: State,
        *,
        agent: str | None = None,
        reason: Reason | None = None,
        error: str | None = None,
        output: JSONValue = None,
        progress: float | None = None,
    ) -> "asyncio.Future[LedgerRow]":
        """Commit one step and pass it on, with the hand-over that an agent's first word implies. Raises as
        `Ledger.advance`."""
        advanced = self.ledger.advance(
            request_id,
            state,
            now=self.clock(),
            agent=agent,
            reason=reason,
            error=error,
            output=output,
            progress=progress,
        )
        return followed(advanced, self._advanced)

    def _advanced(self, rows: Sequence[LedgerRow]) -> LedgerRow:
        *implied, row = rows
        for earlier in implied:
            self.metrics.requests[earlier.state] += 1
            self._tell(earlier)
        self.metrics.requests[row.state] += 1
        if row.deadline is not None:
            self.due_changed(row.deadline)
        self._settle(row)
        return row

    def _settle(self, row: LedgerRow) -> None:
        account = row.agent
        agent = self._agents.get(account)
        if agent is not None and row.state.is_final:
            agent.offers.pop(row.request_id, None)
            if agent.reads:
                agent.ended.add(row.request_id)
            self._free(account, agent, row)
        elif agent is not None and row.state is State.PENDING:
            if row.request_id in agent.offers:
                agent.take_back(agent.offers[row.request_id])
        elif agent is not None:
            self._held(account, agent, row)
        self._tell(row)

    def _held(self, account: str, agent: Agent, row: LedgerRow) -> None:
        """The agent has it: by its acknowledgement, or by a word, which may come before it was offered again."""
        order, session = self.order_of(row.thing_id), agent.taker(row.thing_id)
        if row.request_id not in agent.offers and session is not None:
            # Lost with this session like all that was handed over by it.
            agent.offers[row.request_id] = Offer(row.request_id, row.thing_id, session, delivered=True)
            if order is Order.UNTIL_RESPONSE and agent.lanes.setdefault(row.thing_id, Lane()).busy is None:
                agent.lanes[row.thing_id].busy = row.request_id
        if order is Order.UNTIL_ACK:
            self._free(account, agent, row)

    def recorded(self, row: LedgerRow) -> None:
        """A new row was committed: pass its first status on."""
        self.metrics.requests[row.state] += 1
        self._tell(row)

    def _tell(self, row: LedgerRow) -> None:
        # In the next turn, all in their order, so that what was offered to an agent is on its way before.
        asyncio.get_running_loop().call_soon(self.settled, row)

    def withdrawn(self, row: LedgerRow) -> None:
        """A row ended by another step than `advance` (superseded): pass it on, to the agent as well if it was handed
        over just then."""
        self.metrics.requests[row.state] += 1
        self.pass_cancel(row)
        self._settle(row)

    def on_offer(self, account: str) -> Collection[str]:
        """Ids of what a connected agent has been handed and has not answered."""
        agent = self._agents.get(account)
        return frozenset(agent.offers) if agent else ()

    def pass_cancel(self, row: LedgerRow) -> bool:
        """Tell the agent that a request it has is to be cancelled; False if it cannot be told now."""
        agent = self._agents.get(row.agent)
        offer = agent.offers.get(row.request_id) if agent else None
        if offer is None:
            return False
        return offer.session.request(cancel_of(row), _nothing)


def _delivered(offer: Offer, done: "asyncio.Future[LedgerRow]") -> None:
    error = None if done.cancelled() else done.exception()
    # Else its first status was faster than its acknowledgement, or it was cancelled meanwhile.
    if error is not None and not isinstance(error, IllegalStatus | UnknownRequest):
        log.error("delivery not recorded", extra={"request": offer.request_id}, exc_info=error)


def _nothing() -> None:
    """A cancel needs no acknowledgement: the agent's next status is the answer."""
