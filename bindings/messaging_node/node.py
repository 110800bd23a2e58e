"""The messaging node put together: its parts, its life, and what it tells people.

A message comes in by a connection (`websocket`, `rest`), passes `sink.handle` as a `send` message (rates, rights and
policies), and comes back to `relay`, which knows where it goes.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bindings.messaging_node.allocation import Allocation
from bindings.messaging_node.audience import Audience
from bindings.messaging_node.connectors import Connector, Stub
from bindings.messaging_node.credentials import Credentials
from bindings.messaging_node.identities import Identities
from bindings.messaging_node.journal import Journal
from bindings.messaging_node.mirror import Mirror
from bindings.messaging_node.ownership import Ownership
from bindings.messaging_node.policies import Policies
from bindings.messaging_node.registry import Registry
from bindings.messaging_node.relay import BINDING, Relay
from bindings.messaging_node.remote_registry import RemoteRegistry
from bindings.messaging_node.replies import Replies
from bindings.messaging_node.requests import HypertyRequests
from bindings.messaging_node.routes import Routes
from bindings.messaging_node.runtimes import Runtimes
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import NodeStore
from bindings.messaging_node.stubs import Catalogue, Stubs
from bindings.messaging_node.subscriptions import Subscriptions
from bindings.messaging_node.twins import Twins
from runtime.ports import Sink
from things.addresses import TwinID
from things.delivery import DeliveryStatus
from things.errors import SkepError, Unavailable
from things.holdings import Holding
from things.identity import Principal
from things.messages import JSONValue, Message
from things.places import OwnOrigin, Urls
from things.td import ThingDescription

log = logging.getLogger(__name__)

_HOUSE_S = 1.0
_EXPIRE_TICKS = 5
"""Who reads sees what is expired at once; who subscribed hears of it within so many seconds."""


class MessagingNode:
    """The node of one domain. `is_own_origin` judges pages, `stubs` lead to foreign domains, `connectors` are
    functions beside its own (`connectors.Connector`), reached by their addresses like any."""

    name = BINDING

    def __init__(
        self,
        settings: NodeSettings,
        *,
        is_own_origin: OwnOrigin = lambda *_: False,
        stubs: Mapping[str, Stub] | None = None,
        connectors: Sequence[Connector] = (),
    ) -> None:
        self.settings = settings
        self.is_own_origin = is_own_origin
        self._given = tuple(connectors)
        self._sink: Sink | None = None
        self._store = NodeStore(settings.file)
        self._registry: Registry | None = None
        self._connectors: dict[str, Connector] = {}
        self._stubs = Stubs(settings.domain, stubs or {})
        self._ticks = 0

        def sink() -> Sink:
            return self.sink

        self.journal = Journal(self._store)
        self.routes = Routes(settings, self.journal)
        self._audience = Audience(self.routes, sink, self._thing_of)
        self._replies = Replies(self._audience, sink)
        self._requests = HypertyRequests(settings, sink)
        self._twins = Twins(settings, sink, self._replies.answer)
        self._mirror = Mirror(settings, sink, self._requests)
        self._identities = Identities(settings, sink)
        self.runtimes = Runtimes(
            settings,
            self.routes,
            self.journal,
            self._twins,
            sink,
            requests=self._requests,
            ended=self._session_ended,
            undelivered=lambda envelope: self.relay.undelivered(envelope),
        )
        self.relay = Relay(
            settings,
            sink=sink,
            routes=self.routes,
            audience=self._audience,
            journal=self.journal,
            runtimes=self.runtimes,
            replies=self._replies,
            credentials=Credentials(sink, self._identities.stamped),
            connectors=self._connectors,
            twins=self._twins,
            mirror=self._mirror,
            requests=self._requests,
            resolve=self._stubs.resolve,
        )

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            raise Unavailable("the node is not serving")
        return self._sink

    # ------------------------------------------------------------ life

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        await self._store.open()
        self._sink = sink
        try:
            await self._take_up()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.journal.serve)
                task_status.started()
                while True:
                    await anyio.sleep(_HOUSE_S)
                    await self._keep_house()
        finally:
            await self._stop()
            self._sink = None
            log.info("messaging node stopped", extra={"domain": self.settings.domain})

    def forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """None: hyperties address Things by the node's own addresses, which no TD form can spell."""
        return {}

    async def deliver(self, message: Message) -> DeliveryStatus:
        """The router's handler of `send`."""
        return await self.relay.deliver(message)

    async def _take_up(self) -> None:
        """Stand as the last run stood when it ended, however it did."""
        self.routes.names.restore(await self._store.named(), self.sink.authenticator.identity_of)
        self.runtimes.restore(await self._store.sessions())
        own: Sequence[Connector] = (
            Allocation(self.settings, self.routes, self._store),
            Subscriptions(self.settings, self.routes, self._audience, self._twins.subscribe),
            await self._chosen_registry(),
            self._identities,
            Catalogue(self.settings),
            Policies(self.settings, lambda: self.sink),
        )
        for connector in (*own, *self._given):
            for address in connector.addresses:
                self._connectors[address.rstrip("/")] = connector
        await self.journal.write()

    async def _chosen_registry(self) -> Connector:
        settings = self.settings
        ownership = Ownership(settings, self.routes)
        if settings.registry_url is not None:
            return RemoteRegistry(
                settings, settings.registry_url, objects=self._mirror, ownership=ownership, sees=self._sees
            )
        registry = self._registry = Registry(
            settings,
            self._store,
            clock=self.sink.clock,
            tell=self._replies.tell,
            things=self._twins,
            objects=self._mirror,
            ownership=ownership,
            sees=self._audience.sees,
            standing=self.sink.authenticator.standing,
        )
        await registry.load(lambda session_id: self.runtimes.get(session_id) is not None)
        for session in self.runtimes.everyone():
            self._mirror.restored(session, [str(entry["url"]) for entry in registry.of_session(session.session_id)])
        return registry

    def _thing_of(self, url: str) -> str | None:
        """The Thing that an object is: as its reporter told it, registered it, or holds its address."""
        found = self._mirror.thing_of(url)
        if found is None and self._registry is not None:
            found = self._registry.thing_of(url)
        if found is None:
            things = (self._mirror.thing(url, holder) for holder in self.routes.holders.at(url))
            found = next(filter(None, things), None)
        return found

    def _sees(self, session: NodeSession, url: str) -> bool:
        thing = self._thing_of(url)
        return thing is None or self._audience.sees(session, thing)

    async def _session_ended(self, session: NodeSession) -> None:
        self.relay.pending.forget(session)
        if self._registry is not None:
            await self._registry.session_ended(session)

    async def _keep_house(self) -> None:
        await self.runtimes.collect()
        self._ticks += 1
        try:
            if self._registry is not None:
                await self._registry.settle()
            if self._registry is not None and self._ticks % _EXPIRE_TICKS == 0:
                await self._registry.expire()
        except SkepError as error:
            log.error("registrations not looked after", extra={"code": error.code, "detail": error.detail})

    async def _stop(self) -> None:
        with anyio.CancelScope(shield=True):
            self.runtimes.shut_down()
            self.relay.pending.close()
            await self.journal.write()
            await self._store.close()

    # ------------------------------------------------------------ what it keeps by credentials

    def held_by(self, account: str | None) -> Iterable[Holding]:
        """Registrations; as `things.holdings.Holdings`."""
        return () if self._registry is None else self._registry.held_by(account)

    async def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        """End a registration."""
        return None if self._registry is None else await self._registry.end(holding_id, of=of)

    def revoked(self, covers: Callable[[Principal], bool]) -> None:
        """Credentials ended: sessions that nobody else knows of end too, and registrations are looked at again."""
        self.runtimes.revoked(covers)
        if self._registry is not None:
            self._registry.is_settled = False

    # ------------------------------------------------------------ for people

    def overview(self) -> dict[str, JSONValue]:
        """Connectors, stubs and sessions, without their tokens."""
        return {
            "domain": self.settings.domain,
            "connectors": [
                {"address": address, "kind": type(connector).__name__}
                for address, connector in sorted(self._connectors.items())
            ],
            "stubs": [{"domain": domain, "kind": type(stub).__name__} for domain, stub in sorted(self._stubs)],
            "waitingForResponses": len(self.relay.pending),
            "sessions": [_shown(session) for session in self.runtimes.everyone()],
        }


def _shown(session: NodeSession) -> dict[str, Any]:
    return {
        "sessionID": session.session_id,
        "account": session.principal.account,
        "runtimeURL": session.runtime_url,
        "isLive": session.is_live,
        "addresses": list(session.held)[:100],
        "addressCount": len(session.held),
        "subscriptions": list(session.subscribed)[:100],
        "subscriptionCount": len(session.subscribed),
        "waiting": session.waiting,
    }
