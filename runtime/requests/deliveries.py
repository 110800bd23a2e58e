"""Requests on their way to agents: handed over in order, kept for absent ones, redelivered after a lost session.

The ledger is the queue. In memory there is only what a connected agent has been offered and not answered, so pending
requests of absent agents cost nothing here. Per agent one *pump* reads the ledger oldest first whenever the agent
becomes reachable or drains; while it is under way, new requests wait in the ledger for it, and otherwise they are
offered at once. Per Thing a *lane* holds back the next request as the Thing's order policy says.

Nothing leaves the process before the ledger counts its hand-over, so that a runtime that was killed knows afterwards
what may have been done. For a request that goes at once the commit that stores it says so; a queue takes one more
commit a page.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from runtime.after_commit import followed
from runtime.metrics import Metrics
from runtime.ports import Ledger, LedgerRow, Session
from runtime.publications.sessions import LiveSessions
from runtime.requests.reachable_agents import LEAST_AHEAD, Agent, Lane, Offer, Offered, Order, cancel_of, request_of
from things.addresses import TwinID
from things.callbacks import ignore
from things.delivery import Reason, State
from things.errors import IllegalStatus, SkepError, UnknownRequest
from things.messages import JSONValue

log = logging.getLogger(__name__)

_PAGE = 200
_LANE_PAGE = 4
"""Mostly the next one is wanted, and whether there are more."""
_RETRY_S = 1.0
"""After the ledger could not be read or written."""


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
    permits: Callable[[LedgerRow], bool] = lambda row: True
    """Whether the caller of a row may still ask for it."""
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
            self._forget_counted(agent)
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

    def goes_at_once(self, thing_id: str) -> bool:
        """Whether a request for this Thing would be handed over as soon as it is stored; it is then to be stored with
        that hand-over counted."""
        agent = self._agents.get(TwinID.parse(thing_id).account)
        return agent is not None and agent.is_direct and agent.is_free(thing_id) and agent.taker(thing_id) is not None

    def offer_new(self, row: LedgerRow) -> bool:
        """Hand over a row that was just committed, unless older ones have to go first; whether it is on offer."""
        agent = self._agents.get(row.agent)
        if agent is None:
            if row.attempts:
                self._take_back_counts([row.request_id])
            return False
        if row.attempts:
            agent.counted.add(row.request_id)
        if agent.is_direct and row.seq > agent.cursor:
            if row.attempts or not agent.is_free(row.thing_id):
                self._offer(agent, row)
            elif agent.taker(row.thing_id) is not None:  # it could not go when it was stored, and can now
                self._pump(row.agent, agent)
        elif agent.pumping:
            agent.more = True
        # Otherwise the pump has seen it already, or will when the session drains.
        if agent.full:
            self._forget_counted(agent)
        return row.request_id in agent.offers

    def _offer(self, agent: Agent, row: LedgerRow) -> Offered:
        """Hand over one request, unless it may not go now."""
        session = agent.taker(row.thing_id)
        if session is None or row.request_id in agent.offers or self._is_over(agent, row):
            return Offered.HANDLED
        order = self.order_of(row.thing_id)
        lane: Lane | None = None
        if order is not Order.BURST:
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
        if self._agents.get(row.agent) is not agent:  # it closed
            self._forget_counted(agent)
        return Offered.FULL

    async def _count(self, account: str, agent: Agent, rows: Sequence[LedgerRow]) -> Sequence[LedgerRow]:
        """Let the ledger count the hand-over of those that can go now; all of them as they stand then, but those that
        have ended. Within `_reading`."""
        going = self._going(agent, rows)
        if not going:
            return rows
        counted = await self.ledger.count_hand_over(going)
        if self._agents.get(account) is not agent:
            self._take_back_counts(counted)
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
            if row.request_id in agent.offers or self._is_over(agent, row) or not self.permits(row):
                continue
            if self.order_of(row.thing_id) is not Order.BURST:
                if row.thing_id in taken or not agent.is_free(row.thing_id):
                    continue
                taken.add(row.thing_id)
            if row.request_id not in agent.counted:
                going.append(row.request_id)
        return going

    def _take_back_counts(self, request_ids: Collection[str]) -> None:
        """Hand-overs that were counted and did not take place."""
        if request_ids:
            self.ledger.count_hand_over(tuple(request_ids), by=-1).add_done_callback(_taken_back)

    def _forget_counted(self, agent: Agent) -> None:
        self._take_back_counts(agent.counted)
        agent.counted.clear()

    def has_been_handed(self, row: LedgerRow) -> bool:
        """Whether anything of a request that waits can have left the process. What was counted and did not take place
        is taken back, before whatever is asked of the ledger next."""
        agent = self._agents.get(row.agent)
        if agent is None:
            return row.attempts > 0
        has_been = agent.has_been_handed(row)
        if row.request_id in agent.counted:
            agent.counted.remove(row.request_id)
            self._take_back_counts([row.request_id])
        return has_been

    async def _refused(self, row: LedgerRow) -> None:
        """End a request that its caller may not ask for any more; it holds its lane until it has ended."""
        error = "its caller may not ask for this any more"
        try:
            await self.advance(row.request_id, State.FAILED, reason=Reason.FORBIDDEN, error=error)
        except (IllegalStatus, UnknownRequest):
            return  # it ended meanwhile
        log.info("request dropped", extra={"request": row.request_id, "caller": row.caller, "thing": row.thing_id})

    def _is_over(self, agent: Agent, row: LedgerRow) -> bool:
        """Whether there can be no delivery any more: it has ended since it was read, or expiry is about to end it."""
        if row.request_id in agent.ended:
            return True
        return row.expires is not None and row.expires <= self.clock() and not agent.has_been_handed(row)

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
        with self._reading(agent):
            try:
                rows = await self._held_back(account, agent, ended)
            except SkepError as error:
                self._unread(account, agent, error)
            if lane.busy != ended.request_id or self._agents.get(account) is not agent:
                return  # the session was lost meanwhile
            lane.busy = None
            lane.behind = lane.behind or len(rows) > 1
            if rows and self._offer(agent, rows[0]) is not Offered.HANDLED:
                lane.behind = True
                self._pump_unless_full(account, agent)

    async def _held_back(self, account: str, agent: Agent, ended: LedgerRow) -> Sequence[LedgerRow]:
        """The next request for the Thing of one that has ended, counted, and whatever of the same page comes after
        it."""
        after = ""
        while page := await self.ledger.waiting(account, thing_id=ended.thing_id, limit=_LANE_PAGE, after=after):
            rows = [row for row in page if row.request_id != ended.request_id and not self._is_over(agent, row)]
            while rows:
                first, *others = rows
                if first.request_id in agent.counted or not self.permits(first):
                    return rows
                counted = await self.ledger.count_hand_over([first.request_id])
                if self._agents.get(account) is not agent:
                    self._take_back_counts(counted)
                    return ()
                if counted and not self._is_over(agent, first):
                    agent.counted.update(counted)
                    return [replace(first, attempts=first.attempts + 1), *others]
                rows = others
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
            if self._agents.get(account) is not agent or agent.full:
                return False
            some = await self._count(account, agent, rows[: agent.ahead])
            rows = rows[agent.ahead :]
            for place, row in enumerate(some):
                offered = self._offer(agent, row)
                if self._agents.get(account) is not agent:
                    return False
                if offered is Offered.FULL:
                    agent.ahead = max(place, LEAST_AHEAD)
                    self._forget_counted(agent)
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
        if self._agents.get(account) is agent and not agent.full:
            self._pump(account, agent)

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
        if agent is not None and row.state is not State.PENDING:
            agent.counted.discard(row.request_id)
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
        # It needs no acknowledgement: the agent's next status is the answer.
        return offer.session.request(cancel_of(row), ignore)


def _delivered(offer: Offer, done: "asyncio.Future[LedgerRow]") -> None:
    error = None if done.cancelled() else done.exception()
    # Else its first status was faster than its acknowledgement, or it was cancelled meanwhile.
    if error is not None and not isinstance(error, IllegalStatus | UnknownRequest):
        log.error("delivery not recorded", extra={"request": offer.request_id}, exc_info=error)


def _taken_back(done: "asyncio.Future[Collection[str]]") -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:  # what then expires is said to have been handed over, which is the careful mistake
        log.warning("a hand-over that did not take place stays counted", extra={"reason": str(error)})
