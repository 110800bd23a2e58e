"""How the parts of one runtime hang together: stores, services, bindings, and what each is told of the others.

Nothing runs yet: `gateway.app` starts what is put together here, and ends it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from authn.certificates import Certificates
from authn.own_service import AuthnUser
from authn.service import AuthnAdmin
from authz.service import AuthzAdmin, AuthzUser
from bindings.http.binding import HttpBinding
from bindings.http.config import HttpConfig
from bindings.http.context import Authority, Health
from bindings.messaging_node import asyncapi, openapi
from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.rest import RestEndpoint
from bindings.messaging_node.service import NodeService
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.websocket import WebSocketEndpoint
from bindings.mqtt.binding import MqttBinding
from bindings.mqtt.engines.native import NativeEngine
from bindings.mqtt.missed import Depth
from bindings.mqtt.positions import Positions
from bindings.websocket.asyncapi import described as web_things_described
from bindings.websocket.binding import PATH as WEB_THING_PATH
from bindings.websocket.binding import WebSocketBinding
from gateway.audit import MessageAudit
from gateway.backup.schedule import Schedule
from gateway.chores import Chores
from gateway.config import Config, parse_listener
from gateway.core_settings import core_settings
from gateway.descriptors import raise_limit, shared_out
from gateway.engines import mqtt_engine
from gateway.exposition import Exposition
from gateway.folder_figures import FolderFigures
from gateway.health import Condition
from gateway.holdings import SessionHoldings
from gateway.home import gateway_id
from gateway.queues import Queues
from gateway.retention import Retention
from gateway.running import MQTT_PATH, Running
from gateway.sealing import Sealing
from gateway.server_certificate import own_certificate
from gateway.stores import Stores
from gateway.upkeep import Upkeep
from runtime.core import Runtime, Storage
from runtime.ports import ProtocolBinding, Service
from runtime.publications.presence import Seen
from runtime.publications.twins import TwinViews
from runtime.publications.visibility import may_read
from runtime.services.lake import LakeService
from runtime.services.requests import RequestsService
from things.addresses import Address, TwinID
from things.context import CONTEXT
from things.errors import SkepError
from things.holdings import Holdings
from things.hosts import Names
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.places import Places, Urls
from things.td import ThingDescription
from things.twin_td import FormsOf
from twin.directory_service import DirectoryService
from twin.history.quality import QualityWatch
from twin.history.retention import HotBudget
from twin.history_service import HistoryService
from twin.lake.client import LakeClient
from twin.lake_tables import beside
from twin.models_service import ModelsService
from twin.rdf.index import RdfIndex
from twin.readings import Readings
from twin.search import Search
from twin.values_service import ValuesService

log = logging.getLogger(__name__)


class Assembly:
    """The parts of one runtime, put together and not yet started."""

    def __init__(self, stores: Stores, names: Names) -> None:
        config, twin = stores.config, stores.twin
        self._stores = stores
        self.places = Places(names, allowed_origins=config.http.allowed_origins)
        self.certificates = Certificates(
            stores.home / "certs",
            stores.clocks.now,
            names=names.certified(_tls_hosts(config)),
            own=own_certificate(config),
        )
        views = TwinViews(twin.directory, stores.authorizer, forms_of=self._forms_of, urls=self.places.urls)
        self.runtime = Runtime(
            settings=core_settings(config),
            storage=Storage(directory=twin.directory, values=twin.values, history=twin.history, ledger=twin.ledger),
            authenticator=stores.authenticator,
            authorizer=stores.authorizer,
            clocks=stores.clocks,
            describe=views.publication,
            assess=QualityWatch(twin.values, is_clock_trusted=lambda: stores.time.was_trusted),
            audit=MessageAudit(stores.authenticator.audit),
            record_presence=self._record_presence,
        )
        views.presence = self.runtime.presence
        self.rdf = RdfIndex(twin.directory, stores.authorizer)
        self.lake = LakeClient(
            history=stores.home / "history",
            lake=config.history.lake or stores.home / "lake",
            gateway=gateway_id(stores.home),
            clock=stores.clocks.now,
            grace_s=config.history.grace_s,
            is_private=config.history.lake is None,
            is_delta=config.history.delta,
        )
        self.sealing = Sealing(
            lake=self.lake,
            last_row=lambda: twin.history.last_row,
            beside=lambda marks: beside(twin.database, marks),
            interval_s=config.history.seal_interval_s,
            rows=config.history.seal_rows,
        )
        budget = HotBudget(days=config.history.keep_hot_days, bytes=config.history.keep_hot_bytes)
        self.retention = Retention(
            trim=lambda: twin.history.trim(budget, now=stores.clocks.now(), sealed=self.sealing.mark),
            lake=self.lake,
            rules=_retention(config),
            interval_s=config.history.retain_interval_s,
            clocks=stores.clocks,
            is_trusted=lambda: stores.time.is_trusted,
        )
        self.upkeep = Upkeep(
            lake=self.lake,
            interval_s=config.history.upkeep_interval_s,
            steady=stores.clocks.steady,
            is_trusted=lambda: self.retention.is_trusted() and not self.retention.is_paused,
        )
        self.backups = Schedule(
            home=stores.home,
            to=config.backup.to,
            every_s=config.backup.every_s,
            clock=stores.clocks.now,
            steady=stores.clocks.steady,
            record=lambda where: stores.authenticator.audit.record("backup", by="skep", target=where),
        )
        self._queues = Queues(
            waiting=lambda: self.runtime.waiting_requests,
            oldest=twin.ledger.oldest_waiting,
            steady=stores.clocks.steady,
        )
        self.chores = Chores(
            stores=stores,
            certificates=self.certificates,
            retention=self.retention,
            upkeep=self.upkeep,
            backups=self.backups,
            queues=self._queues,
        )
        self._holdings: list[Holdings] = []
        for service in self._services(views):
            self.runtime.services.add(service)
        self._bind(stores)
        self._holdings += [SessionHoldings(self.runtime.sessions), self._http, self._node]
        stores.authenticator.on_revoked(lambda revoked: self._revoked(revoked.covers))

    def _bind(self, stores: Stores) -> None:
        config = stores.config
        self.descriptors = shared_out(raise_limit(), config.mqtt.max_connections)
        log.info(
            "open files",
            extra={
                "limit": self.descriptors.limit,
                "mqttConnections": self.descriptors.mqtt,
                "httpConnections": self.descriptors.http,
            },
        )
        if (problem := self.descriptors.problem) is not None:
            log.warning("fewer connections than configured", extra={"detail": problem})
        figures = FolderFigures(stores.home)
        condition = Condition(
            stores=stores,
            figures=figures,
            certificates=self.certificates,
            descriptors=self.descriptors,
            counters=self.runtime.metrics,
            chores=(self.sealing, self.retention, self.upkeep, self.backups),
            measured=(self.sealing, self.upkeep, self.backups, self._queues),
        )
        tls = self.certificates.server_context() if config.http.https or config.mqtt.mqtts else None
        engine = mqtt_engine(config, tls, stores.home, stores.clocks.steady, max_connections=self.descriptors.mqtt)
        self._mqtt = MqttBinding(
            engine,
            schemes=[scheme for scheme in ("mqtt", "mqtts") if getattr(config.mqtt, scheme)],
            positions=Positions(stores.home / "mqtt-inbox.json"),
            group_positions=Positions(stores.home / "mqtt-groups.json"),
            depth=Depth(seconds=config.mqtt.max_missed_s, max_bytes=config.mqtt.max_missed_bytes),
            places=self.places,
        )
        self._http = HttpBinding(
            HttpConfig(
                http=parse_listener(config.http.http) if config.http.http else None,
                https=parse_listener(config.http.https) if config.http.https else None,
                control_socket=stores.home / "control.sock",
                insecure=config.security.insecure,
                mdns=config.discovery.mdns,
                hsts=bool(config.security.certificate),
                max_body_bytes=config.http.max_body_bytes,
                max_batch_bytes=config.http.max_batch_bytes,
                max_streams_per_account=config.http.max_streams_per_account,
                poll_interval_s=config.http.poll_interval_s,
                max_connections=self.descriptors.http,
                trusted_proxies=config.http.proxies,
            ),
            tls=tls if config.http.https else None,
            accounts=stores.authenticator,
            health=Health(
                refresh=figures.refresh,
                ready=condition.not_ready,
                warnings=condition.warnings,
                metrics=Exposition(condition.metrics).encoded,
            ),
            authority=self._authority,
            documents={
                "/vocabulary/skep.jsonld": CONTEXT,
                "/asyncapi.json": _merged(asyncapi.described(), web_things_described(WEB_THING_PATH)),
                "/openapi.json": openapi.described(),
            },
            places=self.places,
        )
        stores.twin.directory.on_changed(self._http.directory_changed)
        if isinstance(engine, NativeEngine):
            self._http.mount(MQTT_PATH, engine.asgi)
        self._sockets = WebSocketBinding(places=self.places)
        self._http.mount(WEB_THING_PATH, self._sockets.asgi)
        # What hangs on the HTTP listeners is ready before they are.
        self._node = self._messaging_node(stores)
        self.bindings: Sequence[ProtocolBinding] = (self._mqtt, self._sockets, self._node, self._http)

    def _authority(self) -> Authority | None:
        certificates = self.certificates
        if certificates.is_own or not self._stores.config.http.https:
            return None
        return Authority(pem=certificates.ca_pem, fingerprint=certificates.fingerprint().upper())

    def _messaging_node(self, stores: Stores) -> MessagingNode:
        section = stores.config.messaging_node.model_dump()
        max_bytes = stores.config.http.max_body_bytes
        settings = NodeSettings(**section, file=stores.home / "node.db", max_frame_bytes=max_bytes)
        node = MessagingNode(settings, is_own_origin=self.places.is_own_origin)
        self.runtime.add_handler(Operation.SEND, node.deliver)
        self.runtime.services.add(NodeService(node.overview))
        self._http.mount("/ws", WebSocketEndpoint(node, handshake=True))
        self._http.mount("/stub/connect", WebSocketEndpoint(node, handshake=False))
        self._http.mount("/node", RestEndpoint(node))
        return node

    def running(self) -> Running:
        """What was started, once it is."""
        return Running(
            stores=self._stores,
            runtime=self.runtime,
            sealing=self.sealing,
            certificates=self.certificates,
            places=self.places,
        )

    async def renamed(self, names: Names) -> None:
        """The gateway is called otherwise: first the certificate names what others are told then."""
        try:
            certified = names.certified(_tls_hosts(self._stores.config))
            if await anyio.to_thread.run_sync(self.certificates.prepare, certified):
                self.certificates.serve()
                log.info("server certificate made anew", extra={"names": certified})
        except (SkepError, OSError) as error:
            # Housekeeping finds the missing name and tries again.
            log.error("server certificate not made anew", extra={"error": str(error)})
        self.places.renamed(names)

    async def publish_services(self) -> None:
        """Put the built-in services into the directory: they are Things like any other."""
        for service in self.runtime.services:
            agent = TwinID.parse(service.thing_id).account
            td = ThingDescription.of(service.td, agent=True)
            await self._stores.twin.directory.put(service.thing_id, td, agent=agent)

    def _services(self, views: TwinViews) -> Sequence[Service]:
        stores = self._stores
        twin, authenticator, authorizer = stores.twin, stores.authenticator, stores.authorizer
        search = Search(
            twin.directory, twin.values, self._may, presence=self.runtime.presence.of, clock=stores.clocks.now
        )
        return (
            AuthnAdmin(
                authenticator,
                certificates=self.certificates,
                sessions=self._sessions_of,
                end_session=self._end_session,
                holdings=self._holdings,
            ),
            AuthnUser(authenticator, sessions=self._sessions_of, holdings=self._holdings),
            AuthzAdmin(authorizer, accounts=self._type_and_role, clock=stores.clocks.now, record=self._audited),
            AuthzUser(authorizer, clock=stores.clocks.now, record=self._audited),
            RequestsService(twin.ledger, authorizer),
            LakeService(self.lake, self.sealing, self.retention.rules),
            DirectoryService(twin.directory, self._may, views, search, self.rdf),
            ModelsService(twin.models, self._may),
            ValuesService(
                twin.directory,
                twin.values,
                self._may,
                presence=self.runtime.presence.properties,
                clock=stores.clocks.now,
            ),
            HistoryService(
                twin.directory,
                Readings(twin.history, self.lake),
                self._may,
                views.of,
                clock=stores.clocks.now,
                gateway=gateway_id(stores.home),
            ),
        )

    def _may(self, principal: Principal, operation: Operation, address: Address) -> bool:
        return may_read(self._stores.authorizer, self._stores.twin.directory, principal, operation, address)

    def _type_and_role(self, account: str) -> tuple[AccountType, str] | None:
        found = self._stores.authenticator.register.accounts.get(account)
        return (found.type, found.role) if found else None

    def _audited(self, act: str, by: str, target: str) -> None:
        self._stores.authenticator.audit.record(act, by=by, target=target)

    def _sessions_of(self, account: str | None) -> Sequence[dict[str, JSONValue]]:
        sessions = self.runtime.sessions
        found = sessions.everyone() if account is None else sessions.of_account(account)
        return [
            {
                "sessionID": session.session_id,
                "clientID": session.principal.account,
                "binding": session.binding,
                "source": session.source,
            }
            for session in found
        ]

    def _end_session(self, session_id: str) -> bool:
        return SessionHoldings(self.runtime.sessions).close(session_id, of=None) is not None

    # ------------------------------------------------------------ wiring

    async def restore_presence(self) -> None:
        """Know again when each agent was last seen."""
        for agent, at in (await self._stores.twin.presence.last_seen()).items():
            self.runtime.presence.restore(agent, at)

    def _record_presence(self, agent: str, seen: Seen) -> None:
        self.runtime.start(self._stores.twin.presence.record(agent, seen.is_online, seen.since))

    def _forms_of(self, urls: Urls) -> Mapping[str, FormsOf]:
        providers = {binding.name: binding.forms for binding in (self._http, self._mqtt, self._sockets)}
        providers["profile"] = self._http.profile_forms
        return {name: partial(forms, urls=urls) for name, forms in providers.items()}

    def _revoked(self, covers: Callable[[Principal], bool]) -> None:
        self._stores.authorizer.forget()  # an account may come back as another type
        ended = self.runtime.revoke(covers)
        self._node.revoked(covers)
        if ended:
            log.info("sessions ended", extra={"count": ended})


def _merged(*descriptions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Channels and operations of several bindings."""
    parts = ("channels", "operations")
    return {part: {name: one for found in descriptions for name, one in found[part].items()} for part in parts}


def _tls_hosts(config: Config) -> Sequence[str]:
    """The hosts on which the server certificate is served."""
    return [parse_listener(one)[0] for one in (config.http.https, config.mqtt.mqtts) if one]


def _retention(config: Config) -> Sequence[Mapping[str, Any]]:
    """The lake's rules: one for everything, and those for single series."""
    history = config.history
    rules: list[dict[str, Any]] = [{"days": history.keep_days, "bytes": history.keep_bytes}]
    rules += [
        {"thing_id": one.thing, "name": one.name, "days": one.days, "bytes": one.bytes} for one in history.budgets
    ]
    said = [{name: limit for name, limit in rule.items() if limit is not None} for rule in rules]
    return [rule for rule in said if rule]
