"""The runtime put together from its parts and given stores: what protocol bindings see as their sink.

This module wires; it holds no rule of its own. Which concrete stores are used is decided in `gateway`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anyio.abc import TaskStatus

from runtime.admission.checks import DescriptionCheck, RateCheck, RightsCheck
from runtime.admission.confirmations import Confirmations
from runtime.admission.quotas import Quotas, SeriesCheck
from runtime.admission.rate import Rates
from runtime.admission.router import Router
from runtime.admission.trace import Trace
from runtime.admission.verdicts import Verdicts
from runtime.background import Background
from runtime.metrics import Metrics
from runtime.ports import (
    Audit,
    Authenticator,
    Authorizer,
    BatchResult,
    Directory,
    Handler,
    History,
    Ledger,
    LedgerRow,
    Publication,
    Session,
    ValueStore,
)
from runtime.publications.descriptions import Descriptions
from runtime.publications.missed import MissedRows
from runtime.publications.presence import Presence, Seen
from runtime.publications.sessions import Describe, LiveSessions, Watch
from runtime.publications.telemetry import Assess, Telemetry
from runtime.registry import Services
from runtime.requests.calls import Call, Calls
from runtime.requests.deliveries import Deliveries
from runtime.requests.expiry import Expiry
from runtime.requests.handler import Requests, Waiting
from runtime.requests.reachable_agents import OrderPolicy
from runtime.requests.replies import Replies
from runtime.requests.rpc import RPC
from runtime.requests.standing import Standing
from runtime.settings import Settings
from things.addresses import Kind, TwinID
from things.delivery import DeliveryStatus
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin
from things.times import rfc3339

log = logging.getLogger(__name__)

MAX_WAIT_S = 60.0

_ORDERS = frozenset(OrderPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where the runtime keeps what it acknowledges."""

    directory: Directory
    values: ValueStore
    history: History
    ledger: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Time and ids; tests pass their own."""

    now: Callable[[], int]
    steady: Callable[[], int]
    new_id: Callable[[], str]


class Runtime:
    """One running digital-twin runtime; satisfies `runtime.ports.Sink`."""

    def __init__(
        self,
        *,
        settings: Settings,
        storage: Storage,
        authenticator: Authenticator,
        authorizer: Authorizer,
        clocks: Clocks,
        describe: Describe,
        audit: Audit,
        assess: Assess,
        record_presence: Callable[[str, Seen], None],
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._authenticator = authenticator
        self._clocks = clocks
        self.clock = clocks.now
        self.new_id = clocks.new_id
        self._background = Background()
        self.start = self._background.start
        self.metrics = Metrics()
        self.services = Services()
        self.presence = Presence(
            directory=storage.directory, publish=self.publish, clock=clocks.now, recorded=record_presence
        )
        self.sessions = LiveSessions(
            authorizer=authorizer,
            directory=storage.directory,
            values=storage.values,
            ledger=storage.ledger,
            describe=describe,
            presence=self.presence.publications,
            start=self.start,
            metrics=self.metrics,
            rows=MissedRows(storage.history, storage.history.last_row),
            clock=clocks.now,
            max_per_account=settings.max_sessions_per_account,
            max_subscriptions=settings.max_subscriptions_per_session,
        )
        self._rates = Rates(clock=clocks.steady, budget=self._settings.budget, by_role=self._settings.role_budgets)
        standing = Standing(
            authenticator=authenticator,
            authorizer=authorizer,
            directory=storage.directory,
            rates=self._rates,
            clock=clocks.now,
        )
        self.deliveries = Deliveries(
            ledger=storage.ledger,
            sessions=self.sessions,
            clock=clocks.steady,
            start=self.start,
            order_of=self._order_of,
            settled=self._settled,
            due_changed=self._due_changed,
            metrics=self.metrics,
            permits=standing.permits,
        )
        self.sessions.watch = Watch(
            reachable=self._reachable, unreachable=self._unreachable, drained=self.deliveries.drained
        )
        self._calls = Calls(self._call_ended, clocks.now)
        self._replies = Replies(self._known)
        self._expiry = Expiry(
            ledger=storage.ledger,
            deliveries=self.deliveries,
            steady=clocks.steady,
            keep_s=settings.keep_requests_s,
        )
        self._requests = Requests(
            ledger=storage.ledger,
            deliveries=self.deliveries,
            calls=self._calls,
            directory=storage.directory,
            authorizer=authorizer,
            clock=clocks.steady,
            new_id=clocks.new_id,
            due_changed=self._due_changed,
            limits=settings.requests,
            audit=audit,
        )
        self._telemetry = Telemetry(
            directory=storage.directory,
            values=storage.values,
            history=storage.history,
            publish=self.sessions.publish,
            assess=assess,
            metrics=self.metrics,
            resend_unchanged=settings.resend_unchanged,
            is_durable=settings.is_durable,
        )
        storage.history.on_lost(self._telemetry.lost)
        self._confirmations = Confirmations(clocks.steady, audit)
        self._router = self._routed(authorizer, audit)
        self._verdicts = Verdicts(self._router, authorizer, storage.directory)

    @property
    def waiting_requests(self) -> int:
        """Actions and property writes that wait for their agents."""
        return sum(self._requests.waiting.by_agent.values())

    def take_limits(self, settings: Settings) -> None:
        """Go on with other budgets of senders and limits of requests; everything else of `settings` is not looked at.
        What an account has used up stays so."""
        self._rates.budget, self._rates.by_role = settings.budget, settings.role_budgets
        self._requests.limits = settings.requests

    def _routed(self, authorizer: Authorizer, audit: Audit) -> Router:
        storage, clocks = self._storage, self._clocks
        quotas = Quotas(storage.directory, storage.values, self._settings.quotas)
        descriptions = Descriptions(
            directory=storage.directory,
            values=storage.values,
            quotas=quotas,
            publish=self.publish,
            clock=clocks.now,
            withheld_changed=self.sessions.withheld_changed,
        )
        rpc = RPC(
            services=self.services,
            directory=storage.directory,
            deliveries=self.deliveries,
            calls=self._calls,
            clock=clocks.now,
            new_id=clocks.new_id,
            deadline_s=self._settings.rpc_deadline_s,
            audit=audit,
        )
        called, request = self._background.detached(rpc), self._background.refused_when_stopped(self._requests.request)

        def invoke(message: Message) -> Awaitable[DeliveryStatus]:
            return (request if self.services.get(message.thing_id) is None else called)(message)

        return Router(
            {
                Operation.PUBLISH_EVENT: self._telemetry,
                Operation.PUBLISH_PROPERTY: self._telemetry,
                Operation.PUBLISH_TD: self._background.detached(descriptions.put),
                Operation.REMOVE_TD: self._background.detached(descriptions.remove),
                Operation.REPORT_STATUS: self._background.refused_when_stopped(self._requests.report),
                Operation.INVOKE_ACTION: invoke,
                Operation.WRITE_PROPERTY: request,
                Operation.CALL_RPC: rpc,
                Operation.CANCEL: self._background.detached(self._requests.cancel),
            },
            [
                RateCheck(self._rates),
                RightsCheck(
                    authorizer=authorizer,
                    directory=storage.directory,
                    services=self.services,
                    clock=clocks.now,
                    rates=self._rates,
                    confirm=self._confirmations.require,
                ),
                DescriptionCheck(storage.directory),
                SeriesCheck(quotas),
            ],
            Trace(self.metrics),
        )

    def add_handler(self, operation: Operation, handler: Handler) -> None:
        """Let a binding handle an operation of its own (`send`), behind the same checks as everything else."""
        self._router.add_handler(operation, handler)

    # ------------------------------------------------------------ what bindings are given

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    async def handle(self, message: Message) -> DeliveryStatus:
        return await self._router(message)

    def check(self, message: Message) -> None:
        self._router.check(message)

    def store(self, message: Message) -> "asyncio.Future[Any] | None":
        return self._telemetry.store(message, self._verdicts.check(message))

    def charge(self, principal: Principal, messages: float) -> None:
        self._rates.charge(principal, messages)

    def owed_s(self, principal: Principal) -> float:
        return self._rates.owed_s(principal)

    async def final(self, request_id: str, wait_s: float) -> DeliveryStatus | None:
        return await self._replies.final(request_id, min(wait_s, MAX_WAIT_S))

    async def batch(self, messages: Sequence[Message]) -> BatchResult:
        return await self._telemetry.batch(messages, self._verdicts.check)

    async def call(
        self,
        principal: Principal,
        thing_id: str,
        method: str,
        data: JSONValue,
        origin: Origin,
        *,
        confirmation: str | None = None,
    ) -> JSONValue:
        status = await self.handle(
            Message(
                operation=Operation.CALL_RPC,
                principal=principal,
                thing_id=thing_id,
                name=method,
                data=data,
                received=self._clocks.now(),
                confirmation=confirmation,
                origin=origin,
            )
        )
        return status.output

    # ------------------------------------------------------------ life

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Run the clocks until cancelled; reports started when what the last run left is taken up again."""
        by_agent, by_caller = await self._storage.ledger.waiting_counts()
        async with self._background.running() as tasks:
            returned = await self.deliveries.recover()
            if returned:
                log.info("requests taken up again", extra={"count": returned})
                by_agent, by_caller = await self._storage.ledger.waiting_counts()
            self._requests.waiting = Waiting(dict(by_agent), dict(by_caller))
            tasks.create_task(self._expiry.serve())
            tasks.create_task(self._expiry.purge())
            tasks.create_task(self._end_expired_sessions())
            task_status.started()
            await asyncio.Event().wait()

    def publish(self, publication: Publication) -> None:
        """Give a publication to everyone who asked for it and may see it."""
        self.sessions.publish(publication)

    def revoke(self, covers: Callable[[Principal], bool]) -> int:
        """End every session whose principal is covered; how many."""
        ended = 0
        for session in self.sessions.everyone():
            principal = self.sessions.principal_of(session)
            if principal is not None and covers(principal):
                session.close("revoked")
                ended += 1
        return ended

    async def _end_expired_sessions(self) -> None:
        while True:
            now = self._clocks.now()
            for session in self.sessions.everyone():
                principal = self.sessions.principal_of(session)
                if principal is not None and principal.expires is not None and principal.expires <= now:
                    session.close("token-expired")
            await asyncio.sleep(1.0)

    # ------------------------------------------------------------ wiring between the parts

    def _reachable(self, session: Session, thing_id: str | None) -> None:
        self.deliveries.reachable(session, thing_id)
        self.presence.changed(session.principal.account, True)

    def _unreachable(self, session: Session, thing_id: str | None) -> None:
        account = session.principal.account
        if not self.sessions.takes_any(session):
            self._calls.lost(session)
        self.deliveries.unreachable(session, thing_id)
        if not self.deliveries.is_reachable(account):
            self.presence.changed(account, False)

    def _due_changed(self, at: int | None) -> None:
        self._expiry.due_changed(at)

    def _order_of(self, thing_id: str) -> OrderPolicy:
        entry = self._storage.directory.get(thing_id)
        own = entry.td.document.get("skep:order") if entry else None
        return OrderPolicy(own if own in _ORDERS else self._settings.order)

    def _settled(self, row: LedgerRow) -> None:
        status = row.status()
        self._requests.settled(row)
        self.sessions.report(row)
        if status.is_final:
            self._replies.resolve(status)
        if row.operation is Operation.INVOKE_ACTION and self.sessions.is_watched(row.thing_id, Kind.ACTION, row.name):
            self._publish_progress(row)

    def _publish_progress(self, row: LedgerRow) -> None:
        shown: dict[str, JSONValue] = {
            "requestID": row.request_id,
            "state": row.state,
            "updated": rfc3339(row.updated),
        }
        self.publish(
            Publication(
                twin=TwinID.parse(row.thing_id),
                thing_id=row.thing_id,
                kind=Kind.ACTION,
                name=row.name,
                value=shown,
                payload=encode(shown),
                created=row.updated,
            )
        )

    def _call_ended(self, call: Call, status: DeliveryStatus) -> None:
        self._replies.resolve(status)
        if call.caller_session:
            self.sessions.report_to(call.caller, call.caller_session, status)

    async def _known(self, request_id: str) -> DeliveryStatus | None:
        if self._calls.get(request_id) is not None:
            return None
        ended = self._calls.final(request_id)
        if ended is not None:
            return ended
        row = await self._storage.ledger.get(request_id)
        return row.status() if row else None
