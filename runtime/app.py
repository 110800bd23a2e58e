"""The composition root: the only module that knows every room.

`run` is the whole life of a `skep run` process; `started` is the same for tests and programs that embed skep; `opened`
serves the control socket only, for commands that find no runtime.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import uvloop
from anyio.abc import TaskStatus

from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates, ServerFiles
from authn.service import AuthnAdmin, AuthnUser
from authn.throttle import LoginBudgets
from authz.authorizer import LocalAuthorizer
from authz.service import AuthzAdmin, AuthzUser
from bindings.http.binding import HttpBinding
from bindings.http.callers import cookie_names
from bindings.http.config import HttpConfig
from bindings.http.context import Health
from bindings.messaging_node.asyncapi import described
from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.rest import RestEndpoint
from bindings.messaging_node.service import NodeService
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.websocket import WebSocketEndpoint
from bindings.mqtt.binding import MqttBinding
from bindings.mqtt.marks import InboxMarks
from bindings.mqtt.seam import Engine, Limits, Listener
from bindings.mqtt.server import NativeEngine, SessionStore
from bindings.websocket.binding import PATH as WEB_THING_PATH
from bindings.websocket.binding import WebSocketBinding
from runtime import logs
from runtime.clocks import IDs, SteadyClock, wall_clock
from runtime.config import Config, parse_listener
from runtime.core import Clocks, Runtime, Stores
from runtime.home import gateway_id, held, prepared, write_whole
from runtime.lake_service import LakeService
from runtime.ports import Directory, LedgerRow, ProtocolBinding, Service
from runtime.presence import Seen
from runtime.requests_service import RequestsService
from runtime.retention import Retention
from runtime.sealing import Sealing
from runtime.twins import TwinViews
from things.addresses import Address, TwinID
from things.context import CONTEXT
from things.errors import ConfigInvalid, SkepError
from things.identity import AccountType, Principal
from things.messages import JSONValue, Message, Operation
from things.network import is_loopback
from things.td import ThingDescription
from things.twin_td import FormsOf
from twin.beside import beside
from twin.history.quality import QualityWatch
from twin.history.retention import Budget
from twin.history_service import HistoryService
from twin.lake.client import LakeClient
from twin.readings import Readings
from twin.search import Search
from twin.service import DirectoryService, ValuesService
from twin.store import Twin, open_twin

log = logging.getLogger(__name__)

_HOUSE_S = 60.0

SHUTDOWN_S = 9.0
"""From SIGTERM to the end at the latest; a supervisor kills after ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The opened rooms of one home."""

    home: Path
    config: Config
    clocks: Clocks
    twin: Twin
    authenticator: LocalAuthenticator
    authorizer: LocalAuthorizer


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


@asynccontextmanager
async def _rooms(home: Path, config: Config | None) -> AsyncIterator[Rooms]:
    home = prepared(home)
    with held(home):
        config = config or Config.load(home)
        clocks = Clocks(now=wall_clock, steady=SteadyClock(), new_id=IDs())
        authenticator = LocalAuthenticator.open(
            home,
            clock=clocks.now,
            database_url=config.database_url,
            budgets=LoginBudgets.per_minute(config.security.login_attempts_per_minute),
            access_s=config.security.access_token_s,
            refresh_s=config.security.refresh_token_s,
        )
        with contextlib.closing(authenticator):
            async with open_twin(
                home,
                clock=clocks.now,
                database_url=config.database_url,
                durable_history=config.history.durable,
            ) as twin:
                authorizer = LocalAuthorizer.open(
                    home,
                    account_type=authenticator.type_of,
                    clock=clocks.now,
                    thing_types=partial(_types_of, twin.directory),
                    policies=Path(config.security.policies) if config.security.policies else None,
                )
                authenticator.administration.is_role = authorizer.has_role
                yield Rooms(
                    home=home,
                    config=config,
                    clocks=clocks,
                    twin=twin,
                    authenticator=authenticator,
                    authorizer=authorizer,
                )


def _types_of(directory: Directory, thing_id: str) -> tuple[str, ...] | None:
    entry = directory.get(thing_id)
    return entry.td.types if entry else None


@asynccontextmanager
async def started(home: Path, config: Config | None = None) -> AsyncIterator[Running]:
    """Hold, open and serve a home for as long as the block runs. Raises Locked, ConfigInvalid, StorageDamaged,
    StorageFailed, AddressInUse."""
    async with _rooms(home, config) as rooms:
        assembly = _Assembly(rooms)
        await assembly.publish_services()
        await assembly.restore_presence()
        with _sole_error():
            async with anyio.create_task_group() as core:
                await core.start(_served, assembly.runtime.serve)
                await core.start(assembly.lake.serve)
                core.start_soon(assembly.sealing.serve)
                core.start_soon(assembly.keep_house)
                try:
                    # Bindings end first: they answer what is being committed while the core still runs.
                    async with anyio.create_task_group() as servers:
                        for binding in assembly.bindings:
                            await servers.start(_served, binding.serve, assembly.runtime)
                        try:
                            yield assembly.running()
                        finally:
                            servers.cancel_scope.cancel()
                finally:
                    core.cancel_scope.cancel()


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Running]:
    """The same without listeners: only the control socket is served. For commands on a home that nobody runs."""
    config = Config.load(prepared(home))
    async with started(home, config.with_listeners(http="off", https="off", mqtt="off", mqtts="off")) as running:
        yield running


@contextlib.contextmanager
def _sole_error() -> Iterator[None]:
    """Let one error out of its task groups as what it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        sole: BaseException = group
        while isinstance(sole, BaseExceptionGroup) and len(sole.exceptions) == 1:
            sole = sole.exceptions[0]
        if sole is group:
            raise
        raise sole from sole.__cause__


async def _served(
    serve: Callable[..., Any], *given: object, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    await serve(*given, task_status=task_status)


class _Assembly:
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
            assess=QualityWatch(twin.directory, twin.values),
            presence_recorded=self._presence_changed,
            request_accepted=self._request_audited,
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
        )
        for service in self._services(views):
            self.runtime.services.add(service)
        self._bind(rooms)
        rooms.authenticator.on_revoked(lambda revoked: self._revoked(revoked.covers))

    def _bind(self, rooms: Rooms) -> None:
        config = rooms.config
        tls = self.certificates.server_context() if config.http.https or config.mqtt.mqtts else None
        engine = _mqtt_engine(config, tls, rooms.home)
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
            health=Health(ready=self._not_ready, warnings=self._warnings, metrics=self.runtime.metrics.text),
            documents={"/vocabulary/skep.jsonld": CONTEXT, "/asyncapi.json": described()},
            may_read=lambda principal, thing_id: self._may(principal, Operation.READ, Address(thing_id)),
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
        """What has to be done from time to time, for ever: expired registrations, old readings, certificates."""
        while True:
            await anyio.sleep(_HOUSE_S)
            twin = self._rooms.twin
            try:
                await twin.directory.purge_expired()
                await self.retention.keep()
                if self.certificates.renew_if_due():
                    log.info("server certificate renewed", extra={"until": self.certificates.expires().isoformat()})
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
            DirectoryService(twin.directory, self._may, views.of, search),
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
        return {binding.name: binding.forms for binding in (self._http, self._mqtt, self._sockets)}

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
        return found


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


def _mqtt_engine(config: Config, tls: ssl.SSLContext | None, home: Path) -> Engine:
    mqtt = config.mqtt
    listeners: list[Listener] = []
    if mqtt.mqtt:
        host, port = parse_listener(mqtt.mqtt)
        if not is_loopback(host):
            if not config.security.insecure:
                raise ConfigInvalid(
                    f"plain MQTT listens on loopback addresses only, not on {host!r}; use mqtts, or insecure = true"
                )
            log.warning("plain MQTT beyond loopback: passwords and tokens can be read on the way")
        listeners.append(Listener(host=host, port=port, proxy_protocol=mqtt.proxy_protocol))
    if mqtt.mqtts:
        host, port = parse_listener(mqtt.mqtts)
        listeners.append(Listener(host=host, port=port, tls=tls, proxy_protocol=mqtt.proxy_protocol))
    limits = Limits(
        max_packet_bytes=mqtt.max_packet_bytes,
        connect_timeout_s=mqtt.connect_timeout_s,
        max_connections=mqtt.max_connections,
        max_inflight=mqtt.max_inflight,
        max_queued=mqtt.max_queued,
        max_queued_bytes=mqtt.max_queued_bytes,
        max_unacknowledged=mqtt.max_unacknowledged,
        max_session_expiry_s=mqtt.max_session_expiry_s,
        max_subscriptions=config.limits.max_subscriptions_per_session,
        max_links_per_account=config.limits.max_sessions_per_account,
    )
    if mqtt.engine == "amqtt":
        from bindings.mqtt.amqtt_engine import AmqttEngine  # only where it is wanted: it brings 15 MB

        return AmqttEngine(listeners, limits)
    return NativeEngine(listeners, limits, SessionStore(home / "mqtt-sessions.db", limits))


def run(
    home: Path,
    *,
    http: str | None = None,
    https: str | None = None,
    mqtt: str | None = None,
    mqtts: str | None = None,
    ready_file: Path | None = None,
) -> int:
    """The whole life of a runtime process: serve until SIGTERM or SIGINT, then end within 10 s; the exit code.

    Listeners given here come before those of the configuration. The ready file is written when everything listens and
    removed at the end. Raises as `started`.
    """
    config = Config.load(prepared(home)).with_listeners(http=http, https=https, mqtt=mqtt, mqtts=mqtts)
    logs.configure(config.log.level, as_json=config.log.json_lines)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(home, config, ready_file))
    return 0


async def _run(home: Path, config: Config, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with started(home, config) as running:
        # What start made stays; messages come and go by reference count. The default looks through all of it for
        # every few hundred messages, at half the throughput.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        _announce(running)
        if ready_file is not None:
            write_whole(ready_file, json.dumps(running.ready_document()).encode() + b"\n", mode=0o644)
        try:
            await stop.wait()
        finally:
            log.info("stopping")
            # Whatever hangs must not keep the process: everything acknowledged is already on disk.
            loop.call_later(SHUTDOWN_S, os._exit, 1)
            if ready_file is not None:
                await anyio.Path(ready_file).unlink(missing_ok=True)


def _announce(running: Running) -> None:
    for name in ("https", "http", "mqtts", "mqtt"):
        address = getattr(running, name)
        if address:
            print(f"{name:6} {address}", flush=True)
    code = running.rooms.authenticator.claim_code.code
    if code:
        where = running.rooms.home / "claim"
        print(f"claim  {code}  (one time: makes the first admin; also in {where})", flush=True)
