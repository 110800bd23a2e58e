"""The runtime put together from its parts and given stores: what protocol bindings see as their sink.

This module wires; it holds no rule of its own. Which concrete rooms are used is decided in `runtime.app`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from anyio.abc import TaskStatus

from runtime.background import Background
from runtime.calls import Call, Calls
from runtime.config import Config
from runtime.confirmations import Confirmations
from runtime.deliveries import Deliveries
from runtime.expiry import Expiry
from runtime.handlers.descriptions import Descriptions
from runtime.handlers.requests import RequestLimits, Requests, Waiting
from runtime.handlers.rpc import RPC
from runtime.handlers.telemetry import Assess, Telemetry
from runtime.metrics import Metrics
from runtime.middleware import Authorize, Rate, Trace, Validate
from runtime.offers import Order
from runtime.ports import (
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
from runtime.presence import Presence, Seen
from runtime.rate import rates_of
from runtime.replies import Replies
from runtime.router import Router
from runtime.services import Services
from runtime.sessions import LiveSessions, Watch
from runtime.verdicts import Verdicts
from things.addresses import Kind, TwinID
from things.delivery import DeliveryStatus
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin
from things.times import rfc3339

log = logging.getLogger(__name__)

MAX_WAIT_S = 60.0

_ORDERS = frozenset(Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
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
        config: Config,
        stores: Stores,
        authenticator: Authenticator,
        authorizer: Authorizer,
        clocks: Clocks,
        describe: Callable[[str, Principal], Publication | None],
        assess: Assess = lambda reading, message, entry: 0,
        presence_recorded: Callable[[str, Seen], None] = lambda agent, seen: None,
        request_accepted: Callable[[LedgerRow, Message], None] = lambda row, message: None,
        call_accepted: Callable[[Message], None] = lambda message: None,
        message_confirmed: Callable[[Message, str], None] = lambda message, rule: None,
    ) -> None:
        self._config = config
        self._stores = stores
        self._authenticator = authenticator
        self._clocks = clocks
        self.clock = clocks.now
        self.new_id = clocks.new_id
        self._background = Background()
        self.start = self._background.start
        self.metrics = Metrics()
        self.services = Services()
        self.sessions = LiveSessions(
            authorizer=authorizer,
            directory=stores.directory,
            values=stores.values,
            ledger=stores.ledger,
            describe=describe,
            start=self.start,
            metrics=self.metrics,
            max_per_account=config.limits.max_sessions_per_account,
            max_subscriptions=config.limits.max_subscriptions_per_session,
        )
        self.presence = Presence(
            directory=stores.directory, publish=self.publish, clock=clocks.now, recorded=presence_recorded
        )
        self.deliveries = Deliveries(
            ledger=stores.ledger,
            sessions=self.sessions,
            clock=clocks.steady,
            start=self.start,
            order_of=self._order_of,
            settled=self._settled,
            due_changed=self._due_changed,
            metrics=self.metrics,
        )
        self.sessions.watch = Watch(
            reachable=self._reachable, unreachable=self._unreachable, drained=self.deliveries.drained
        )
        self._calls = Calls(self._call_ended, clocks.now)
        self._replies = Replies(self._known)
        self._expiry = Expiry(
            ledger=stores.ledger,
            deliveries=self.deliveries,
            steady=clocks.steady,
            keep_s=config.requests.keep_s,
        )
        self._requests = Requests(
            ledger=stores.ledger,
            deliveries=self.deliveries,
            calls=self._calls,
            directory=stores.directory,
            authorizer=authorizer,
            clock=clocks.steady,
            new_id=clocks.new_id,
            due_changed=self._due_changed,
            limits=RequestLimits(
                expires_s=config.requests.expires_s,
                deadline_s=config.requests.deadline_s,
                max_waiting_per_agent=config.requests.max_waiting_per_agent,
                max_waiting_per_caller=config.requests.max_waiting_per_caller,
            ),
            accepted=request_accepted,
        )
        self._telemetry = Telemetry(
            directory=stores.directory,
            values=stores.values,
            history=stores.history,
            publish=self.sessions.publish,
            assess=assess,
            metrics=self.metrics,
            resend_unchanged=config.limits.resend_unchanged,
            is_durable=config.history.durable,
        )
        stores.history.on_lost(self._telemetry.lost)
        self._confirmations = Confirmations(clocks.steady, message_confirmed)
        self._router = self._routed(authorizer, call_accepted)
        self._verdicts = Verdicts(self._router, authorizer, stores.directory)

    def _routed(self, authorizer: Authorizer, call_accepted: Callable[[Message], None]) -> Router:
        stores, clocks = self._stores, self._clocks
        descriptions = Descriptions(
            directory=stores.directory, values=stores.values, publish=self.publish, clock=clocks.now
        )
        rpc = RPC(
            services=self.services,
            directory=stores.directory,
            deliveries=self.deliveries,
            calls=self._calls,
            clock=clocks.now,
            new_id=clocks.new_id,
            deadline_s=self._config.requests.rpc_deadline_s,
            accepted=call_accepted,
        )
        rates = rates_of(self._config, clocks.steady)

        called, request = self._background.finished(rpc), self._background.begun(self._requests.request)

        def invoke(message: Message) -> Awaitable[DeliveryStatus]:
            return (request if self.services.get(message.thing_id) is None else called)(message)

        return Router(
            {
                Operation.PUBLISH_EVENT: self._telemetry,
                Operation.PUBLISH_PROPERTY: self._telemetry,
                Operation.PUBLISH_TD: self._background.finished(descriptions.put),
                Operation.REMOVE_TD: self._background.finished(descriptions.remove),
                Operation.REPORT_STATUS: self._background.begun(self._requests.report),
                Operation.INVOKE_ACTION: invoke,
                Operation.WRITE_PROPERTY: request,
                Operation.CALL_RPC: rpc,
                Operation.CANCEL: self._background.finished(self._requests.cancel),
            },
            [
                Trace(self.metrics),
                Rate(rates),
                Authorize(
                    authorizer=authorizer,
                    directory=stores.directory,
                    services=self.services,
                    clock=clocks.now,
                    rates=rates,
                    confirm=self._confirmations.require,
                ),
                Validate(stores.directory),
            ],
        )

    def carry(self, operation: Operation, handler: Handler) -> None:
        """Let a binding handle an operation of its own (`send`), behind the same middleware as everything else."""
        self._router.carry(operation, handler)

    # ------------------------------------------------------------ what bindings are given

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    async def handle(self, message: Message) -> DeliveryStatus:
        return await self._router(message)

    def judge(self, message: Message) -> None:
        self._router.judge(message)

    def store(self, message: Message, then: Callable[[BaseException | None], None]) -> bool:
        entry = self._verdicts.judge(message)
        return self._telemetry.store(message, entry, then)

    async def final(self, request_id: str, wait_s: float) -> DeliveryStatus | None:
        return await self._replies.final(request_id, min(wait_s, MAX_WAIT_S))

    async def batch(self, messages: Sequence[Message]) -> BatchResult:
        return await self._telemetry.batch(messages, self._verdicts.judge)

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
        by_agent, by_caller = await self._stores.ledger.waiting_counts()
        async with self._background.running() as tasks:
            returned = await self.deliveries.recover()
            if returned:
                log.info("requests taken up again", extra={"count": returned})
                by_agent, by_caller = await self._stores.ledger.waiting_counts()
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

    def _order_of(self, thing_id: str) -> Order:
        entry = self._stores.directory.get(thing_id)
        own = entry.td.document.get("skep:order") if entry else None
        return Order(own if own in _ORDERS else self._config.requests.order)

    def _settled(self, row: LedgerRow) -> None:
        status = row.status()
        self._requests.settled(row)
        self.sessions.report(row.caller, status)
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
        row = await self._stores.ledger.get(request_id)
        return row.status() if row else None
