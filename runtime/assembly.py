"""How the parts of one runtime hang together: rooms, services, bindings, and what each is told of the others.

Nothing runs yet: `runtime.app` starts what is put together here, and ends it.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from authn.certificates import Certificates, ServerFiles
from authn.own_service import AuthnUser
from authn.service import AuthnAdmin
from authz.service import AuthzAdmin, AuthzUser
from bindings.http.binding import HttpBinding
from bindings.http.callers import cookie_names
from bindings.http.config import HttpConfig
from bindings.http.context import Health
from bindings.messaging_node import asyncapi, openapi
from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.rest import RestEndpoint
from bindings.messaging_node.service import NodeService
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.websocket import WebSocketEndpoint
from bindings.mqtt.binding import MqttBinding
from bindings.mqtt.marks import InboxMarks
from bindings.mqtt.server import NativeEngine
from bindings.websocket.asyncapi import described as web_things_described
from bindings.websocket.binding import PATH as WEB_THING_PATH
from bindings.websocket.binding import WebSocketBinding
from runtime.config import Config, parse_listener
from runtime.core import Runtime, Stores
from runtime.engines import mqtt_engine
from runtime.home import gateway_id
from runtime.lake_service import LakeService
from runtime.ports import LedgerRow, ProtocolBinding, Service
from runtime.presence import Seen
from runtime.requests_service import RequestsService
from runtime.retention import Retention
from runtime.rooms import Rooms
from runtime.sealing import Sealing
from runtime.twins import TwinViews
from things.addresses import Address, TwinID
from things.context import CONTEXT
from things.errors import ConfigInvalid, SkepError
from things.identity import AccountType, Principal
from things.messages import JSONValue, Message, Operation
from things.td import ThingDescription
from things.twin_td import FormsOf
from twin.beside import beside
from twin.directory_service import DirectoryService
from twin.history.quality import QualityWatch
from twin.history.retention import Budget
from twin.history_service import HistoryService
from twin.lake.client import LakeClient
from twin.readings import Readings
from twin.search import Search
from twin.values_service import ValuesService

log = logging.getLogger(__name__)

_HOUSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started runtime and the addresses it listens on (None = off)."""

    rooms: Rooms
    runtime: Runtime
    sealing: Sealing
    certificates: Certificates
    http: str | None
    https: str | None
    mqtt: str | None
    mqtts: str | None

    def ready_document(self) -> dict[str, str | int | None]:
        """What the ready file says: process id, addresses as URLs, and the file of the CA that signed the server."""
        return {
            "pid": os.getpid(),
            "https": self.https,
            "http": self.http,
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "ca": str(self.certificates.ca_file) if self.https or self.mqtts else None,
        }


class Assembly:
    """The parts of one runtime, put together and not yet started."""

    def __init__(self, rooms: Rooms) -> None:
        config, twin = rooms.config, rooms.twin
        self._rooms = rooms
        self.certificates = Certificates(rooms.home / "certs", rooms.clocks.now, own=_own_certificate(config))
        views = TwinViews(
            twin.directory, rooms.authorizer, forms_of=self._forms_of, http_base=lambda: self._http_base()
        )
        self.runtime = Runtime(
            config=config,
            stores=Stores(directory=twin.directory, values=twin.values, history=twin.history, ledger=twin.ledger),
            authenticator=rooms.authenticator,
            authorizer=rooms.authorizer,
            clocks=rooms.clocks,
            describe=views.publication,
            assess=QualityWatch(twin.values),
            presence_recorded=self._presence_changed,
            request_accepted=self._request_audited,
            call_accepted=self._call_audited,
            message_confirmed=self._confirmation_audited,
        )
        views.presence = self.runtime.presence
        self.lake = LakeClient(
            history=rooms.home / "history",
            lake=config.history.lake or rooms.home / "lake",
            gateway=gateway_id(rooms.home),
        )
        self.sealing = Sealing(
            lake=self.lake,
            last_row=lambda: twin.history.last_row,
            beside=lambda marks: beside(twin.database, marks),
            interval_s=config.history.seal_interval_s,
            rows=config.history.seal_rows,
        )
        budget = Budget(days=config.history.keep_hot_days, bytes=config.history.keep_hot_bytes)
        self.retention = Retention(
            trim=lambda: twin.history.trim(budget, now=rooms.clocks.now(), sealed=self.sealing.mark),
            lake=self.lake,
            rules=_retention(config),
            interval_s=config.history.retain_interval_s,
            clocks=rooms.clocks,
            is_trusted=lambda: rooms.time.is_trusted,
        )
        for service in self._services(views):
            self.runtime.services.add(service)
        self._bind(rooms)
        rooms.authenticator.on_revoked(lambda revoked: self._revoked(revoked.covers))

    def _bind(self, rooms: Rooms) -> None:
        config = rooms.config
        tls = self.certificates.server_context() if config.http.https or config.mqtt.mqtts else None
        engine = mqtt_engine(config, tls, rooms.home, rooms.clocks.steady)
        self._mqtt = MqttBinding(
            engine,
            schemes=[scheme for scheme in ("mqtt", "mqtts") if getattr(config.mqtt, scheme)],
            marks=InboxMarks(rooms.home / "mqtt-inbox.json"),
        )
        self._http = HttpBinding(
            HttpConfig(
                http=parse_listener(config.http.http) if config.http.http else None,
                https=parse_listener(config.http.https) if config.http.https else None,
                control_socket=rooms.home / "control.sock",
                insecure=config.security.insecure,
                mdns=config.discovery.mdns,
                origins=config.http.allowed_origins,
                max_body_bytes=config.http.max_body_bytes,
                max_batch_bytes=config.http.max_batch_bytes,
                max_streams_per_account=config.http.max_streams_per_account,
                poll_interval_s=config.http.poll_interval_s,
            ),
            tls=tls if config.http.https else None,
            accounts=rooms.authenticator,
            health=Health(ready=self._not_ready, warnings=self._warnings, metrics=self._metrics),
            documents={
                "/vocabulary/skep.jsonld": CONTEXT,
                "/asyncapi.json": _laid_together(asyncapi.described(), web_things_described(WEB_THING_PATH)),
                "/openapi.json": openapi.described(),
            },
        )
        rooms.twin.directory.on_changed(self._http.directory_changed)
        if isinstance(engine, NativeEngine):
            self._http.mount("/mqtt", engine.asgi)
        self._sockets = WebSocketBinding(
            base=self._http_base,
            origins=lambda: self._http.origins,
            cookie_name=lambda secure: cookie_names(secure=secure)[0],
        )
        self._http.mount(WEB_THING_PATH, self._sockets.asgi)
        # What hangs on the HTTP listeners is ready before they are.
        self._node = self._messaging_node(rooms)
        self.bindings: Sequence[ProtocolBinding] = (self._mqtt, self._sockets, self._node, self._http)

    def _messaging_node(self, rooms: Rooms) -> MessagingNode:
        section = rooms.config.messaging_node.model_dump()
        max_bytes = rooms.config.http.max_body_bytes
        settings = NodeSettings(**section, file=rooms.home / "node.db", max_frame_bytes=max_bytes)
        node = MessagingNode(settings, origins=lambda: self._http.origins)
        self.runtime.carry(Operation.SEND, node.deliver)
        self.runtime.services.add(NodeService(node.overview))
        self._http.mount("/ws", WebSocketEndpoint(node, handshake=True))
        self._http.mount("/stub/connect", WebSocketEndpoint(node, handshake=False))
        self._http.mount("/node", RestEndpoint(node))
        return node

    def running(self) -> Running:
        """What was started, once it is."""
        mqtt_urls = {url.partition(":")[0]: url for url in self._mqtt.urls}
        return Running(
            rooms=self._rooms,
            runtime=self.runtime,
            sealing=self.sealing,
            certificates=self.certificates,
            http=self._http.http_url,
            https=self._http.https_url,
            mqtt=mqtt_urls.get("mqtt"),
            mqtts=mqtt_urls.get("mqtts"),
        )

    async def publish_services(self) -> None:
        """Put the built-in services into the directory: they are Things like any other."""
        for service in self.runtime.services:
            agent = TwinID.parse(service.thing_id).account
            td = ThingDescription.of(service.td, agent=True)
            await self._rooms.twin.directory.put(service.thing_id, td, agent=agent)

    async def keep_house(self) -> None:
        """What has to be done from time to time, for ever: expired registrations, old readings, certificates, the
        time that was seen."""
        while True:
            await anyio.sleep(_HOUSE_S)
            twin = self._rooms.twin
            try:
                await twin.directory.purge_expired()
                await self.retention.keep()
                if self.certificates.renew_if_due():
                    log.info("server certificate renewed", extra={"until": self.certificates.expires().isoformat()})
                await anyio.to_thread.run_sync(self._rooms.time.note)
            except SkepError as error:
                log.error("housekeeping put off", extra={"code": error.code, "detail": error.detail})

    def _services(self, views: TwinViews) -> Sequence[Service]:
        rooms = self._rooms
        twin, authenticator, authorizer = rooms.twin, rooms.authenticator, rooms.authorizer
        search = Search(
            twin.directory, twin.values, self._may, presence=self.runtime.presence.of, clock=rooms.clocks.now
        )
        return (
            AuthnAdmin(
                authenticator,
                certificates=self.certificates,
                sessions=self._sessions_of,
                end_session=self._end_session,
            ),
            AuthnUser(authenticator, sessions=self._sessions_of),
            AuthzAdmin(authorizer, accounts=self._type_and_role, clock=rooms.clocks.now, record=self._audited),
            AuthzUser(authorizer, clock=rooms.clocks.now, record=self._audited),
            RequestsService(twin.ledger, authorizer),
            LakeService(self.lake, self.sealing, self.retention.rules),
            DirectoryService(twin.directory, self._may, views, search),
            ValuesService(
                twin.directory,
                twin.values,
                self._may,
                presence=self.runtime.presence.properties,
                clock=rooms.clocks.now,
            ),
            HistoryService(
                twin.directory,
                Readings(twin.history, self.lake),
                self._may,
                views.of,
                clock=rooms.clocks.now,
                gateway=gateway_id(rooms.home),
            ),
        )

    def _may(self, principal: Principal, operation: Operation, address: Address) -> bool:
        return self._rooms.authorizer.decide(principal, operation, address).allowed

    def _type_and_role(self, account: str) -> tuple[AccountType, str] | None:
        found = self._rooms.authenticator.register.accounts.get(account)
        return (found.type, found.role) if found else None

    def _request_audited(self, row: LedgerRow, message: Message) -> None:
        act = "action" if row.operation is Operation.INVOKE_ACTION else "write"
        target = f"{row.thing_id} {row.name}"
        self._rooms.authenticator.audit.record(act, by=row.caller, target=target, source=message.origin.source)

    def _call_audited(self, message: Message) -> None:
        target = f"{message.thing_id} {message.name}"
        self._rooms.authenticator.audit.record(
            "call", by=message.sender_id, target=target, source=message.origin.source
        )

    def _confirmation_audited(self, message: Message, rule: str) -> None:
        self._rooms.authenticator.audit.record(
            "confirmed",
            by=message.sender_id,
            target=f"{message.thing_id} {message.name}".strip(),
            source=message.origin.source,
            details={"operation": message.operation, "rule": rule},
        )

    def _audited(self, act: str, by: str, target: str) -> None:
        self._rooms.authenticator.audit.record(act, by=by, target=target)

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
        for session in self.runtime.sessions.everyone():
            if session.session_id == session_id:
                session.close("ended")
                return True
        return False

    # ------------------------------------------------------------ wiring

    async def restore_presence(self) -> None:
        """Know again when each agent was last seen."""
        for agent, at in (await self._rooms.twin.presence.last_seen()).items():
            self.runtime.presence.restore(agent, at)

    def _presence_changed(self, agent: str, seen: Seen) -> None:
        self.runtime.start(self._rooms.twin.presence.record(agent, seen.is_online, seen.since))

    def _forms_of(self) -> Mapping[str, FormsOf]:
        forms = {binding.name: binding.forms for binding in (self._http, self._mqtt, self._sockets)}
        return {**forms, "profile": self._http.profile_forms}

    def _http_base(self) -> str | None:
        return self._http.https_url or self._http.http_url

    def _revoked(self, covers: Callable[[Principal], bool]) -> None:
        self._rooms.authorizer.forget()  # an account may come back as another type
        ended = self.runtime.revoke(covers)
        if ended:
            log.info("sessions ended", extra={"count": ended})

    def _not_ready(self) -> Mapping[str, str]:
        twin, found = self._rooms.twin, {}
        if twin.failure is not None:
            found["storage"] = twin.failure.detail
        if twin.history.is_full:
            found["space"] = "no space left for data"
        if self._rooms.authorizer.problem is not None:
            found["rights"] = self._rooms.authorizer.problem
        return found

    def _warnings(self) -> Mapping[str, str]:
        found = {f"certificate-{number}": text for number, text in enumerate(self.certificates.warnings(), 1)}
        if self._rooms.authenticator.audit.failed:
            found["audit"] = "the audit log cannot be written"
        if (problem := self._rooms.time.problem) is not None:
            found["clock"] = problem
        return found

    def _metrics(self) -> str:
        return (
            f"{self.runtime.metrics.text()}"
            "# HELP skep_clock_trusted 0 while the clock is earlier than in former runs.\n"
            "# TYPE skep_clock_trusted gauge\n"
            f"skep_clock_trusted {int(self._rooms.time.is_trusted)}\n"
        )


def _laid_together(*descriptions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Channels and operations of several bindings."""
    parts = ("channels", "operations")
    return {part: {name: one for found in descriptions for name, one in found[part].items()} for part in parts}


def _own_certificate(config: Config) -> ServerFiles | None:
    certificate, key = config.security.certificate, config.security.certificate_key
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise ConfigInvalid("security.certificate and security.certificate_key go together")
    return ServerFiles(certificate=Path(certificate), key=Path(key))


def _retention(config: Config) -> Sequence[Mapping[str, Any]]:
    """The lake's rules: one for everything, and those for single series."""
    history = config.history
    rules: list[dict[str, Any]] = [{"days": history.keep_days, "bytes": history.keep_bytes}]
    rules += [
        {"thing_id": one.thing, "name": one.name, "days": one.days, "bytes": one.bytes} for one in history.budgets
    ]
    said = [{name: limit for name, limit in rule.items() if limit is not None} for rule in rules]
    return [rule for rule in said if rule]
