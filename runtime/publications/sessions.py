"""The live sessions, what they subscribe to, and how publications and statuses reach them.

The register knows accounts, never roles: whether a session may see something is asked of the authorizer at every
delivery. Requests for agents are `runtime.requests.deliveries`' work; it listens here for agents that come and go.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.metrics import Metrics
from runtime.ports import Authorizer, Directory, Ledger, LedgerRow, Missed, Pattern, Publication, Session, ValueStore
from runtime.publications.audiences import Audiences
from runtime.publications.missed import MissedRows
from runtime.publications.subscriptions import Subscriptions
from runtime.publications.visibility import SEEN_AS, could_see, may_read, may_subscribe
from things.addresses import Address, Kind, TwinID, is_twin
from things.callbacks import ignore
from things.decisions import Context
from things.delivery import DeliveryStatus
from things.errors import Forbidden, QueueFull
from things.identity import Principal
from things.messages import Operation
from things.places import Place
from things.refusals import REFUSALS

log = logging.getLogger(__name__)

_TD = Kind.TD
"""Looked at for every publication, and enum attribute access is slow."""
_REPLAY_PAGE = 200


@dataclass(slots=True, eq=False)
class Live:
    """What the register keeps of one session. `reporting` is None while it takes no statuses."""

    session: Session
    principal: Principal
    since: int
    """When it was opened (µs UTC)."""
    takes_requests: bool = False
    speaks_for: dict[str, None] | None = None
    """Single Things it takes requests for; made for the first, since few sessions speak for any."""
    reporting: "Reporting | None" = None
    is_away: bool = False

    def takes(self, thing_id: str | None) -> bool:
        """Whether it takes requests for a single Thing, or for all of its account (None)."""
        if thing_id is None:
            return self.takes_requests
        return self.speaks_for is not None and thing_id in self.speaks_for


@dataclass(slots=True)
class Reporting:
    """Where a session stands in its account's inbox: live, or being replayed up to what the ledger has."""

    replayed: int = 0
    replaying: bool = False
    again: bool = False
    """More came in, or the session drained, while a replay was under way."""
    running: bool = False
    """A replay of this session is running; another would repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Called by the register as agents come and go; set by `runtime.requests.deliveries` before bindings start."""

    reachable: Callable[[Session, str | None], None]
    """With the one Thing the session speaks for, None if for all of its account."""
    unreachable: Callable[[Session, str | None], None]
    drained: Callable[[Session], None]


Describe = Callable[[str, Principal, Place | None], Publication | None]
"""The twin TD of a Thing as this principal may see it, with the addresses that hold at this place."""


@dataclass(slots=True)
class LiveSessions:
    """The register that bindings are given (`runtime.ports.Sessions`)."""

    authorizer: Authorizer
    directory: Directory
    values: ValueStore
    ledger: Ledger
    describe: Describe
    presence: Callable[[str], Iterable[Publication]]
    """Values of a Thing's properties that are computed, and so have no row."""
    start: Callable[[Awaitable[None]], None]
    """Runs a coroutine in the runtime's task group."""
    metrics: Metrics
    rows: MissedRows
    clock: Callable[[], int]
    max_per_account: int = 100
    max_subscriptions: int = 1_000
    watch: Watch | None = None
    _live: dict[Session, Live] = field(default_factory=dict)
    _accounts: dict[str, dict[Session, Live]] = field(default_factory=dict)
    _away: Counter[str] = field(default_factory=Counter)
    """How many sessions of an account wait for their clients."""
    _subscriptions: Subscriptions = field(default_factory=Subscriptions)
    _withheld: int = 0
    """How often Things were described with other write-only properties than before."""
    _audiences: Audiences = field(init=False)

    def __post_init__(self) -> None:
        self._audiences = Audiences(self._subscriptions, self.authorizer, self.principal_of)

    # ------------------------------------------------------------ coming and going

    def opened(self, session: Session) -> None:
        account = session.principal.account
        mine = self._accounts.setdefault(account, {})
        if len(mine) - self._away[account] >= self.max_per_account:
            raise QueueFull(f"account {account!r}", self.max_per_account, "sessions")
        standing = self._live.get(session)
        if standing is not None:
            self._is_back(standing)
            return
        live = Live(session, session.principal, self.clock())
        self._live[session] = mine[session] = live
        self.metrics.sessions[session.binding] += 1

    def away(self, session: Session) -> None:
        live = self._live.get(session)
        if live is not None and not live.is_away:
            live.is_away = True
            self._away[live.principal.account] += 1

    def _is_back(self, live: Live) -> None:
        if live.is_away:
            live.is_away = False
            account = live.principal.account
            self._away[account] -= 1
            if not self._away[account]:
                del self._away[account]

    def closed(self, session: Session) -> None:
        live = self._live.pop(session, None)
        if live is None:
            return
        self._is_back(live)
        account = live.principal.account
        mine = self._accounts[account]
        del mine[session]
        if not mine:
            del self._accounts[account]
        if self._subscriptions.count(session):
            self._subscriptions.remove_all(session)
            self._audiences.forget()
        self.metrics.sessions[session.binding] -= 1
        if (live.takes_requests or live.speaks_for) and self.watch:
            live.takes_requests = False
            live.speaks_for = None
            self.watch.unreachable(session, None)

    def renewed(self, session: Session, principal: Principal) -> None:
        live = self._live[session]
        if principal.account != live.principal.account:
            raise Forbidden("a session cannot change its account")
        live.principal = principal
        self._audiences.forget()

    def of_account(self, account: str) -> Sequence[Session]:
        """Sessions of an account, oldest first."""
        return tuple(self._accounts.get(account, ()))

    def everyone(self) -> Sequence[Session]:
        """All live sessions."""
        return tuple(self._live)

    def principal_of(self, session: Session) -> Principal | None:
        """The principal a live session now has; None once it is closed."""
        live = self._live.get(session)
        return live.principal if live else None

    def since(self, session: Session) -> int | None:
        """When a live session was opened (µs UTC)."""
        live = self._live.get(session)
        return None if live is None else live.since

    # ------------------------------------------------------------ publications

    def subscribe(self, session: Session, pattern: Pattern, tag: object) -> None:
        live = self._live[session]
        if self._subscriptions.count(session) >= self.max_subscriptions:
            raise QueueFull("this session", self.max_subscriptions, "subscriptions")
        if not may_subscribe(self.authorizer, live.principal, pattern):
            raise Forbidden("nothing that matches may be seen")
        self._subscriptions.add(session, pattern, tag)
        self._audiences.forget()

    def unsubscribe(self, session: Session, pattern: Pattern, tag: object) -> bool:
        self._audiences.forget()
        return self._subscriptions.remove(session, pattern, tag)

    def publish(self, publication: Publication) -> None:
        """Hand one publication to every session that asked for it and may see it; a failing one affects itself only."""
        audience, rows = self._audiences.of((publication.thing_id, publication.kind, publication.name)), self.rows
        if not audience:
            rows.published_row = publication.row_id or rows.published_row
            return
        is_td = publication.kind is _TD and bool(publication.payload)
        live, delivered = self._live, 0
        for session, tags in audience:
            # One delivery may end other sessions.
            if session not in live:
                continue
            shown = publication
            if is_td:
                trimmed = self.describe(publication.thing_id, live[session].principal, session.place)
                if trimmed is None:
                    continue
                shown = trimmed
            try:
                session.publish(shown, tags)
                delivered += 1
            except Exception:
                log.exception("delivery failed", extra={"session": session.session_id, "binding": session.binding})
        self.metrics.delivered += delivered
        # Not before: a session that ends meanwhile may not have it yet.
        rows.published_row = publication.row_id or rows.published_row

    @property
    def rights(self) -> int | None:
        return None if self.authorizer.is_conditional else self.authorizer.version + self._withheld

    def withheld_changed(self) -> None:
        """Other properties are write-only than before: what waits is judged anew."""
        self._withheld += 1

    @property
    def version(self) -> int:
        return self.authorizer.version

    def may_see(self, principal: Principal, thing_id: str, kind: Kind, name: str) -> bool:
        return may_read(self.authorizer, self.directory, principal, SEEN_AS[kind], Address(thing_id, kind, name))

    def may_listen(self, principal: Principal, address: str, context: Context | None) -> bool:
        """Decided as the message by which it subscribes, so that policies for those hold for what they bring."""
        return self.authorizer.decide(principal, Operation.SEND, Address(address, None, "subscribe"), context).is_free

    def may_send(self, principal: Principal, address: str, type_: str, context: Context) -> bool:
        return self.authorizer.decide(principal, Operation.SEND, Address(address, None, type_), context).allowed

    def is_watched(self, thing_id: str, kind: Kind, name: str) -> bool:
        """Whether anybody asked for publications of this series and may see them."""
        return bool(self._audiences.of((thing_id, kind, name)))

    def latest(
        self, principal: Principal, pattern: Pattern, place: Place | None = None
    ) -> Iterator[Publication | None]:
        for thing_id in self._candidates(pattern):
            yield None
            if not is_twin(thing_id):
                continue
            twin = TwinID.parse(thing_id)
            if pattern.thing is not None and twin.thing != pattern.thing:
                continue
            if pattern.kind in (None, Kind.PROPERTY):
                yield from self._latest_values(principal, thing_id, twin, pattern.name)
            if pattern.kind in (None, Kind.TD) and pattern.name in (None, ""):
                td = self.describe(thing_id, principal, place)
                if td is not None:
                    yield td

    def _latest_values(
        self, principal: Principal, thing_id: str, twin: TwinID, name: str | None
    ) -> Iterator[Publication]:
        values = self.values.of_thing(thing_id)
        for (kind, series), value in values.items():
            if kind is not Kind.PROPERTY or (name is not None and series != name):
                continue
            if not self.may_see(principal, thing_id, kind, series):
                continue
            yield Publication(
                twin=twin,
                thing_id=thing_id,
                kind=kind,
                name=series,
                value=value.value,
                payload=value.payload,
                created=value.created,
                row_id=value.row_id,
            )
        for publication in self.presence(thing_id):
            if (
                name in (None, publication.name)
                and (Kind.PROPERTY, publication.name) not in values
                and self.may_see(principal, thing_id, Kind.PROPERTY, publication.name)
            ):
                yield publication

    def _candidates(self, pattern: Pattern) -> Iterable[str]:
        """Things of which some may match."""
        if pattern.agent is not None and pattern.thing is not None:
            thing_id = f"dtw:{pattern.agent}:{pattern.thing}"
            return (thing_id,) if self.directory.get(thing_id) else ()
        if pattern.agent is not None:
            return self.directory.things_of(pattern.agent)
        return self.directory.ids()

    @property
    def published_row(self) -> int:
        return self.rows.published_row

    async def missed(
        self,
        principal: Principal,
        patterns: Sequence[Pattern],
        after: int,
        limit: int,
        *,
        max_bytes: int | None = None,
    ) -> Missed:
        may_see = partial(self.may_see, principal)
        return await self.rows.after(patterns, after, limit=limit, max_bytes=max_bytes, may_see=may_see)

    async def horizon(self, patterns: Sequence[Pattern], after: int, *, max_bytes: int, received: int) -> int:
        return await self.rows.horizon(patterns, after, max_bytes=max_bytes, received=received)

    def could_see(self, principal: Principal, pattern: Pattern) -> bool:
        return could_see(self.authorizer, principal, pattern)

    # ------------------------------------------------------------ requests for agents

    def take_requests(self, session: Session, thing_id: str | None = None) -> None:
        live = self._live.get(session)
        if live is None or live.takes(thing_id):
            return
        if thing_id is None:
            live.takes_requests = True
        elif live.speaks_for is None:
            live.speaks_for = {thing_id: None}
        else:
            live.speaks_for[thing_id] = None
        if self.watch:
            self.watch.reachable(session, thing_id)

    def stop_requests(self, session: Session, thing_id: str | None = None) -> None:
        live = self._live.get(session)
        if live is None or not live.takes(thing_id):
            return
        if thing_id is None:
            live.takes_requests = False
        elif live.speaks_for is not None:
            live.speaks_for.pop(thing_id, None)
        if self.watch:
            self.watch.unreachable(session, thing_id)

    def takes_any(self, session: Session) -> bool:
        """Whether a session takes requests, for a single Thing at least."""
        live = self._live.get(session)
        return live is not None and (live.takes_requests or bool(live.speaks_for))

    def newest_taker(self, account: str) -> Session | None:
        """The session through which requests for an account's Things go now."""
        for session, live in reversed(self._accounts.get(account, {}).items()):
            if live.takes_requests:
                return session
        return None

    def drained(self, session: Session) -> None:
        live = self._live.get(session)
        if live is None:
            return
        if live.takes_requests and self.watch:
            self.watch.drained(session)
        if live.reporting is not None and live.reporting.replaying:
            live.reporting.again = True
            self.start(self._replay(live, live.reporting))

    def dropped(self, session: Session, kind: str, reason: str) -> None:
        self.metrics.dropped[session.binding, kind, reason] += 1
        REFUSALS.note(
            log, "deliveries dropped", who=session.principal.account, code=reason, binding=session.binding, kind=kind
        )

    # ------------------------------------------------------------ statuses for callers

    def take_reports(self, session: Session, after: int | None = None) -> None:
        live = self._live.get(session)
        if live is None:
            return
        live.reporting = Reporting()
        if after is not None:
            live.reporting.replayed = after
            live.reporting.replaying = True
            self.start(self._replay(live, live.reporting))

    def stop_reports(self, session: Session) -> None:
        live = self._live.get(session)
        if live is not None:
            live.reporting = None

    def report(self, row: LedgerRow) -> None:
        """Pass a committed status to every session of its caller; one without room catches up from the ledger."""
        status = row.status()
        for live in tuple(self._accounts.get(row.caller, {}).values()):
            reporting = live.reporting
            if reporting is None or not row.is_asked_by(live.principal):
                continue
            if reporting.replaying:
                reporting.again = True
            elif status.seq > reporting.replayed and not live.session.report(status, ignore):
                reporting.replaying = True
                reporting.replayed = status.seq - 1

    def report_to(self, caller: str, session_id: str, status: DeliveryStatus) -> None:
        """Pass a status that has no ledger row (RPC) to the one session that asked."""
        for live in self._accounts.get(caller, {}).values():
            if live.session.session_id == session_id:
                live.session.report(status, ignore)

    async def _replay(self, live: Live, reporting: Reporting) -> None:
        if reporting.running:
            return
        reporting.running = True
        try:
            while live.reporting is reporting and live.session in self._live:
                reporting.again = False
                page = await self.ledger.inbox(
                    live.principal.account, after=reporting.replayed, limit=_REPLAY_PAGE, since=live.principal.since
                )
                for status in page:
                    if not live.session.report(status, ignore):
                        return  # `drained` starts the next round from here
                    reporting.replayed = status.seq
                if not page and not reporting.again:
                    reporting.replaying = False
                    return
                await asyncio.sleep(0)
        finally:
            reporting.running = False
