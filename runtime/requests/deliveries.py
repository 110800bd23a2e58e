"""Requests on their way to agents: handed over in order, kept for absent ones, redelivered after a lost session.

The ledger is the queue. In memory there is only what a connected agent has been offered and not answered, so pending
requests of absent agents cost nothing here. Here agents come and go, new requests are offered or left to the queue, and
every committed step is passed on; `queues` reads what waits, `hand_over` gives single requests to sessions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from runtime.after_commit import followed
from runtime.metrics import Metrics
from runtime.ports import Ledger, LedgerRow, Session
from runtime.publications.sessions import LiveSessions
from runtime.requests.hand_over import HandOver
from runtime.requests.queues import Queues
from runtime.requests.reachable_agents import Agent, Lane, Offer, OrderPolicy, cancel_of
from things.callbacks import ignore
from things.delivery import Reason, State
from things.errors import IllegalStatus, SkepError, UnknownRequest
from things.messages import JSONValue

log = logging.getLogger(__name__)

_PAGE = 200


@dataclass(slots=True)
class Deliveries:
    """Hands ledger rows to agents and passes every committed step on to the caller."""

    ledger: Ledger
    sessions: LiveSessions
    clock: Callable[[], int]
    start: Callable[[Awaitable[None]], None]
    order_of: Callable[[str], OrderPolicy]
    """The order policy of a Thing."""
    settled: Callable[[LedgerRow], None]
    """Called soon after each committed step, in their order: reports, replies, publications."""
    due_changed: Callable[[int | None], None]
    """Called with a time at which something may expire."""
    metrics: Metrics
    permits: Callable[[LedgerRow], bool] = lambda row: True
    """Whether the caller of a row may still ask for it."""
    _agents: dict[str, Agent] = field(default_factory=dict)
    _hand_over: HandOver = field(init=False)
    _queues: Queues = field(init=False)

    def __post_init__(self) -> None:
        self._hand_over = HandOver(
            ledger=self.ledger,
            clock=self.clock,
            start=self.start,
            order_of=self.order_of,
            permits=self.permits,
            advance=self.advance,
            agents=self._agents,
        )
        self._queues = Queues(ledger=self.ledger, hand_over=self._hand_over, start=self.start, agents=self._agents)

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
        self._queues.pump(account, agent)

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
            self._hand_over.forget_counted(agent)
        if lost or not is_gone:
            self.start(self._return(account, lost))

    def drained(self, session: Session) -> None:
        """The session has room again."""
        account = session.principal.account
        agent = self._agents.get(account)
        if agent is not None and agent.session is session and agent.full:
            agent.full = False
            self._queues.pump(account, agent)

    def is_reachable(self, account: str) -> bool:
        """Whether an agent can be handed a request now."""
        return account in self._agents

    def session_of(self, account: str, thing_id: str) -> Session | None:
        """The session that gets an agent's requests for one of its Things."""
        agent = self._agents.get(account)
        return agent.taker(thing_id) if agent else None

    # ------------------------------------------------------------ new requests

    def goes_at_once(self, thing_id: str) -> bool:
        """Whether a request for this Thing would be handed over as soon as it is stored; it is then to be stored with
        that hand-over counted."""
        return self._hand_over.goes_at_once(thing_id)

    def has_been_handed(self, row: LedgerRow) -> bool:
        """Whether anything of a request that waits can have left the process."""
        return self._hand_over.has_been_handed(row)

    def offer_new(self, row: LedgerRow) -> bool:
        """Hand over a row that was just committed, unless older ones have to go first; whether it is on offer."""
        agent = self._agents.get(row.agent)
        if agent is None:
            if row.attempts:
                self._hand_over.take_back([row.request_id])
            return False
        if row.attempts:
            agent.counted.add(row.request_id)
        if agent.is_direct and row.seq > agent.cursor:
            if row.attempts or not agent.is_free(row.thing_id):
                self._hand_over.offer(agent, row)
            elif agent.taker(row.thing_id) is not None:  # it could not go when it was stored, and can now
                self._queues.pump(row.agent, agent)
        elif agent.pumping:
            agent.more = True
        # Otherwise the pump has seen it already, or will when the session drains.
        if agent.full:
            self._hand_over.forget_counted(agent)
        return row.request_id in agent.offers

    async def _return(self, account: str, lost: Sequence[Offer]) -> None:
        # Together, so that they share a commit.
        await asyncio.gather(*map(self._returned, lost))
        agent = self._agents.get(account)
        if agent is not None:
            self._queues.pump(account, agent)

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
        if agent is not None and row.state is not State.PENDING:
            agent.counted.discard(row.request_id)
        if row.state.is_final:
            self.metrics.request_s.note((row.updated - row.created) / 1e6)
        if agent is not None and row.state.is_final:
            agent.offers.pop(row.request_id, None)
            if agent.reads:
                agent.ended.add(row.request_id)
            self._queues.free(account, agent, row)
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
            if order is OrderPolicy.UNTIL_RESPONSE and agent.lanes.setdefault(row.thing_id, Lane()).busy is None:
                agent.lanes[row.thing_id].busy = row.request_id
        if order is OrderPolicy.UNTIL_ACK:
            self._queues.free(account, agent, row)

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
        """Notify the agent that a request it has is to be cancelled; False if it cannot be reached now."""
        agent = self._agents.get(row.agent)
        offer = agent.offers.get(row.request_id) if agent else None
        if offer is None:
            return False
        # It needs no acknowledgement: the agent's next status is the answer.
        return offer.session.request(cancel_of(row), ignore)
