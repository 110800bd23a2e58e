"""The messaging node: routes messages between hyperties' addresses, through the runtime's router like everything else.

A message comes in by a connection (`websocket`, `rest`), passes `sink.handle` as a `send` message (rates, rights and
policies), and comes back to `deliver`, which knows where it goes: a connector of the node, a Thing, whoever holds or
listens to its address, a foreign stub, or nobody, which is answered 404.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyio.abc import TaskStatus

from bindings.messaging_node.allocation import Allocation
from bindings.messaging_node.connectors import Connector, Resolve, nowhere
from bindings.messaging_node.identities import Identities
from bindings.messaging_node.mirror import Mirror
from bindings.messaging_node.policies import Policies
from bindings.messaging_node.registry import Registry
from bindings.messaging_node.remote_registry import RemoteRegistry
from bindings.messaging_node.routes import Routes, is_open, object_of
from bindings.messaging_node.sessions import NodeSession, token_hash
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import NodeStore
from bindings.messaging_node.subscriptions import Subscriptions
from bindings.messaging_node.twins import Twins
from runtime.ports import Sink
from things.addresses import TwinID
from things.delivery import DeliveryStatus, State
from things.envelopes import Document, Envelope, read, refusal, refusal_of, response
from things.errors import Forbidden, NotFound, QueueFull, RateLimited, SkepError, Unauthenticated, Unavailable
from things.identity import AccountType, Principal
from things.jsontext import decode, encode
from things.messages import JSONValue, Message, Operation, Origin
from things.td import ThingDescription

log = logging.getLogger(__name__)

BINDING = "node"
SESSION = "mn:/session"
SESSION_TYPES = frozenset({"open", "re-open", "close"})
GUEST_ROLE = "guest"
_DONE = DeliveryStatus(request_id="", state=State.COMPLETED)
_HOUSE_S = 1.0
_EXPIRE_TICKS = 5
"""Who reads sees what is expired at once; who subscribed hears of it within so many seconds."""
_NO_REPLY = frozenset({"response"})


class MessagingNode:
    """The node of one domain. `resolve` finds the stub to a foreign address; `origins` are those of allowed pages."""

    name = BINDING

    def __init__(
        self,
        settings: NodeSettings,
        *,
        origins: Callable[[], frozenset[str]] = frozenset,
        resolve: Resolve = nowhere,
        connectors: Sequence[Connector] = (),
    ) -> None:
        self.settings = settings
        self.origins = origins
        self.routes = Routes(settings)
        self._resolve = resolve
        self._given = tuple(connectors)
        self._sink: Sink | None = None
        self._store = NodeStore(settings.file)
        self._sessions: dict[str, NodeSession] = {}
        self._by_token: dict[str, NodeSession] = {}
        """Sessions by the hashes of their tokens; those of an earlier run are in `_kept` until they are re-opened."""
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}
        self._connectors: dict[str, Connector] = {}
        self.twins = Twins(settings, lambda: self.sink)
        self.mirror = Mirror(settings, lambda: self.sink)
        self._registry: Registry | None = None
        self._ticks = 0

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            raise Unavailable("the node is not serving")
        return self._sink

    # ------------------------------------------------------------ life

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        settings = self.settings
        await self._store.open()
        self._sink = sink
        try:
            self.routes.named.update(await self._store.named())
            self._kept = {token: (until, kept) for token, until, kept in await self._store.sessions()}
            await self._connect()
            task_status.started()
            while True:
                await asyncio.sleep(_HOUSE_S)
                await self._keep_house()
        finally:
            await self._stop()
            self._sink = None
            log.info("messaging node stopped", extra={"domain": settings.domain})

    def forms(self, td: ThingDescription, twin: TwinID) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """None: hyperties address Things by the node's own addresses, which no TD form can spell."""
        return {}

    async def _connect(self) -> None:
        settings = self.settings
        registry: Connector
        if settings.registry_url is None:
            self._registry = Registry(
                settings, self._store, clock=self.sink.clock, tell=self.tell, things=self.twins, objects=self.mirror
            )
            await self._registry.load()
            registry = self._registry
        else:
            registry = RemoteRegistry(settings, settings.registry_url, objects=self.mirror)
        for connector in (
            Allocation(settings, self.routes, self._store, self._sessions.values),
            Subscriptions(settings, self.routes, self.twins.subscribe),
            registry,
            Identities(settings, lambda: self.sink),
            Policies(settings, lambda: self.sink),
            *self._given,
        ):
            for address in connector.addresses:
                self._connectors[address.rstrip("/")] = connector

    async def _stop(self) -> None:
        now = self.sink.clock()
        until = now + int(self.settings.resume_s * 1_000_000)
        kept = [
            (token, session.away_until or until, session.kept())
            for token, session in self._by_token.items()
            if not session.is_ended
        ]
        kept += [(token, ends, document) for token, (ends, document) in self._kept.items() if ends > now]
        for session in tuple(self._sessions.values()):
            for wire in tuple(session.wires):
                wire.end(1001, "shut-down")
            self._unregister(session)
        try:
            await self._store.put_sessions(kept)
        except SkepError as error:
            log.error("sessions not kept", extra={"detail": error.detail})
        await self._store.close()

    async def _keep_house(self) -> None:
        now = self.sink.clock()
        for session in [one for one in self._sessions.values() if one.away_until is not None]:
            if session.away_until is not None and session.away_until <= now:
                await self.end(session, "stale")
        for token in [token for token, (until, _) in self._kept.items() if until <= now]:
            del self._kept[token]
        self._ticks += 1
        try:
            if self._registry is not None and self._ticks % _EXPIRE_TICKS == 0:
                await self._registry.expire()
        except SkepError as error:
            log.error("registrations not looked after", extra={"code": error.code, "detail": error.detail})

    # ------------------------------------------------------------ sessions

    def guest(self) -> Principal:
        """Who an unknown runtime is: its name can be no account's, and its role may send messages, nothing more."""
        return Principal(account=f"guest~{secrets.token_hex(6)}", type=AccountType.CONSUMER, role=GUEST_ROLE)

    def opened(
        self, principal: Principal, runtime_url: str, *, source: str | None, with_token: bool, session_id: str = ""
    ) -> NodeSession:
        """Begin a session. Raises QueueFull when there are too many, Conflict if the runtime is another account's."""
        if len(self._sessions) >= self.settings.max_sessions:
            raise QueueFull("the node (sessions)", self.settings.max_sessions)
        token = secrets.token_urlsafe(24) if with_token else None
        session = self._made(principal, runtime_url, token, source, session_id or self.sink.new_id())
        self.sink.sessions.opened(session)
        session.is_registered = True
        self.sink.sessions.take_reports(session)
        self._sessions[session.session_id] = session
        if token is not None:
            self._by_token[token_hash(token)] = session
        for address in (runtime_url, f"{runtime_url}/sm"):
            self.routes.holders.add(address, session)
            session.held[address] = None
        return session

    def resumed(self, session_address: str, principal: Principal | None) -> NodeSession:
        """The session whose address this is, for the same account; a guest's for whoever knows its token. Raises
        Unauthenticated."""
        runtime_url, _, token = session_address.rpartition("/")
        hashed = token_hash(token)
        session = self._by_token.get(hashed)
        if session is None:
            session = self._restored(hashed, token, principal)
        if session is None or session.runtime_url != runtime_url or session.is_ended:
            raise Unauthenticated("there is no such session; open a new one")
        if session.principal.role == GUEST_ROLE:
            principal = session.principal
        elif principal is None or principal.account != session.principal.account:
            raise Unauthenticated("this session is somebody else's")
        session.principal = principal
        self._register(session)
        self.sink.sessions.renewed(session, principal)
        session.away_until = None
        return session

    def lost(self, runtime_url: str, principal: Principal) -> NodeSession | None:
        """The session without a token that a runtime of this account lost its connection to; None if there is none."""
        for session in self.routes.holders.at(runtime_url):
            known = session.principal
            is_same = known.account == principal.account or known.role == principal.role == GUEST_ROLE
            if session.token is None and session.away_until is not None and is_same:
                self._register(session)
                return session
        return None

    def away(self, session: NodeSession) -> None:
        """Its last connection is lost; it may come back for a while."""
        if not session.is_ended and not session.wires:
            session.away_until = self.sink.clock() + int(self.settings.resume_s * 1_000_000)

    async def end(self, session: NodeSession, reason: str) -> None:
        """Free everything a session has. Whoever waits for an answer to what it never got is told that nobody did."""
        if session.is_ended:
            return
        self._cut(session, reason)
        if self._registry is not None:
            try:
                await self._registry.session_ended(session)
            except SkepError as error:
                log.error("registrations not updated", extra={"code": error.code, "detail": error.detail})

    def _cut(self, session: NodeSession, reason: str) -> None:
        session.is_ended = True
        self._sessions.pop(session.session_id, None)
        if session.token is not None:
            self._by_token.pop(token_hash(session.token), None)
        self.routes.free(session)
        session.asked.clear()
        self._unregister(session)
        for text in session.drop():
            envelope = read(decode(text, max_bytes=len(text)))
            if not envelope.is_response and envelope.sender not in self._connectors:
                self._answer_asker(envelope, refusal(404, f"{envelope.to[:80]!r} is gone"))
        for wire in tuple(session.wires):
            wire.end(1000 if reason == "closed" else 1013 if reason == "queue-full" else 1008, reason)
        if reason not in ("closed", "stale", "done"):
            log.info("session ended", extra={"session": session.session_id, "reason": reason})

    def _made(
        self, principal: Principal, runtime_url: str, token: str | None, source: str | None, session_id: str
    ) -> NodeSession:
        return NodeSession(
            session_id=session_id,
            principal=principal,
            runtime_url=runtime_url,
            token=token,
            source=source,
            settings=self.settings,
            on_publication=self.twins.publication,
            on_status=self.twins.status,
            on_closed=self._closed_by_runtime,
        )

    def _register(self, session: NodeSession) -> None:
        if session.is_registered:
            return
        self.sink.sessions.opened(session)
        session.is_registered = True
        self.sink.sessions.take_reports(session)
        self.twins.resumed(session)

    def _unregister(self, session: NodeSession) -> None:
        if session.is_registered:
            session.is_registered = False
            self.sink.sessions.closed(session)

    def _closed_by_runtime(self, session: NodeSession, reason: str) -> None:
        """The runtime ends a session: its account is revoked, or it does not read. One whose token expired may come
        back with a fresh one."""
        if session.is_ended:
            return
        if reason == "token-expired":
            self._unregister(session)
            for wire in tuple(session.wires):
                wire.end(1008, reason)
            session.away_until = session.away_until or self.sink.clock() + int(self.settings.resume_s * 1_000_000)
        else:
            self._cut(session, reason)

    def _restored(self, hashed: str, token: str, principal: Principal | None) -> NodeSession | None:
        """A session of an earlier run, for its account."""
        until, kept = self._kept.get(hashed, (0, {}))
        if not kept or until <= self.sink.clock():
            return None
        account = str(kept["account"])
        if account.startswith("guest~"):
            principal = Principal(account=account, type=AccountType.CONSUMER, role=GUEST_ROLE)
        if principal is None or principal.account != account:
            return None
        session = self._made(principal, str(kept["runtimeURL"]), token, None, str(kept["sessionID"]))
        session.away_until = until
        self._sessions[session.session_id] = session
        self._by_token[hashed] = session
        del self._kept[hashed]
        for address in kept["held"]:
            self.routes.holders.add(address, session)
            session.held[address] = None
        session.claimed = set(kept["claimed"])
        session.keys = {key: list(found) for key, found in kept["keys"].items()}
        for address in kept["subscribed"]:
            session.subscribed[address] = None
            if self.twins.parse(address) is None:
                self.routes.listeners.add(address, session)
        return session

    # ------------------------------------------------------------ messages

    async def take(self, envelope: Envelope, session: NodeSession) -> None:
        """Pass one message of a session on its way; what is refused is answered, never raised."""
        try:
            self._check_credentials(envelope, session)
            while True:
                try:
                    await self.sink.handle(self._message(envelope, session))
                    return
                except RateLimited as error:
                    # Holding back the connection is the answer that loses nothing.
                    await asyncio.sleep(max(0.05, min(error.retry_after_s, 1.0)))
        except SkepError as error:
            self._refuse(envelope, session, refusal_of(error))
        except Exception:
            log.exception("message failed", extra={"type": envelope.type, "session": session.session_id})
            self._refuse(envelope, session, refusal(500, "internal error"))

    async def deliver(self, message: Message) -> DeliveryStatus:
        """The router's handler of `send`: what it lets through comes here. Raises NotFound, Forbidden …"""
        envelope = read(message.data)
        if envelope.to == SESSION and envelope.type in SESSION_TYPES:
            return _DONE  # let through: its connection does the rest
        session = self._sessions.get(message.origin.session_id)
        if session is None:
            raise NotFound("the session has ended")
        to = envelope.to
        connector = self._connectors.get(to) or self._connectors.get(to.rstrip("/"))
        if connector is None and to.startswith(self.twins.address_prefix):
            connector = self.twins
        if connector is not None and not envelope.is_response:
            body = await connector.answer(envelope, session)
            if body is not None:
                session.send(response(envelope, body))
            return _DONE
        self._check_sender(envelope, session)
        if envelope.is_response:
            self._respond(envelope, session)
        else:
            await self._forward(envelope, session)
        return _DONE

    async def tell(self, document: Document) -> None:
        """Give a message of the node's own to whoever listens."""
        text = encode(document)
        for receiver in self.routes.receivers(str(document["to"])):
            receiver.put(text)

    async def _forward(self, envelope: Envelope, session: NodeSession) -> None:
        to = envelope.to
        receivers = self.routes.receivers(to) or self._addressed(to)
        if receivers:
            self.routes.asked(envelope, session)
            text = encode(_without_token(envelope, session))
            for receiver in receivers:
                receiver.put(text)
        elif not is_open(to) or envelope.type not in ("update", "delete"):
            stub = self._resolve(to)
            if stub is None:
                raise NotFound(f"nobody is at {to[:80]!r}")
            self.routes.asked(envelope, session)
            await stub.deliver(envelope, session)
        if to.endswith("/changes") and envelope.type in ("update", "delete"):
            await self.mirror.changed(object_of(to), envelope, session)

    def _respond(self, envelope: Envelope, session: NodeSession) -> None:
        asker = self.routes.asker(envelope)
        receivers = (asker,) if asker is not None else self.routes.receivers(envelope.to)
        text = encode(_without_token(envelope, session))
        for receiver in receivers:
            receiver.put(text)

    def _addressed(self, to: str) -> tuple[NodeSession, ...]:
        """A session by its own address, which only its client knows."""
        runtime_url, slash, token = to.rpartition("/")
        session = self._by_token.get(token_hash(token)) if slash and len(token) >= 32 else None
        return (session,) if session is not None and session.runtime_url == runtime_url else ()

    def _check_sender(self, envelope: Envelope, session: NodeSession) -> None:
        sender = envelope.sender
        if self.settings.compatible:
            if not sender.startswith(session.runtime_url or "\0"):
                self.routes.learn(sender, session)
            return
        if not self.routes.belongs(sender, session):
            raise Forbidden(f"{sender[:80]!r} is not this session's to speak as")
        to = envelope.to
        if to.endswith("/registration") or (
            to.endswith("/changes") and not self.routes.belongs(object_of(to), session)
        ):
            raise Forbidden(f"only its reporter tells changes of {object_of(to)[:80]!r}")

    def _check_credentials(self, envelope: Envelope, session: NodeSession) -> None:
        """A token in the message counts before the socket's own. Raises Unauthenticated."""
        token = envelope.body.get("accessToken")
        principal = session.principal
        if isinstance(token, str) and principal.role != GUEST_ROLE:
            fresh = self.sink.authenticator.verify(token)
            if fresh.account != principal.account:
                raise Unauthenticated("this token is another account's")
            if fresh.expires != principal.expires and session.is_registered:
                session.principal = principal = fresh
                self.sink.sessions.renewed(session, fresh)
        elif session.address is not None and envelope.sender != session.address:
            runtime_url, _, given = envelope.sender.rpartition("/")
            if runtime_url == session.runtime_url and len(given) == len(session.token or ""):
                raise Unauthenticated("this is not the session's token")
        if principal.expires is not None and principal.expires <= self.sink.clock():
            raise Unauthenticated("the session's token has expired; send a fresh one")

    def _message(self, envelope: Envelope, session: NodeSession) -> Message:
        return Message(
            operation=Operation.SEND,
            principal=session.principal,
            thing_id=envelope.to,
            name=envelope.type or "none",
            data=envelope.document,
            received=self.sink.clock(),
            origin=Origin(binding=BINDING, session_id=session.session_id, source=session.source),
        )

    async def admit(self, envelope: Envelope, session: NodeSession) -> None:
        """Let policies look at the opening of a session; raises Forbidden."""
        await self.sink.handle(self._message(envelope, session))

    def _refuse(self, envelope: Envelope, session: NodeSession, body: Document) -> None:
        if envelope.type not in _NO_REPLY:
            session.send(response(envelope, body))
        else:
            # Who asked must not wait for an answer that was held back.
            self._answer_asker(
                read({**envelope.document, "from": envelope.to, "to": envelope.sender, "type": "read"}), body
            )

    def _answer_asker(self, envelope: Envelope, body: Document) -> None:
        answer = response(envelope, body)
        asker = self.routes.asker(read(answer))
        if asker is not None:
            asker.send(answer)

    # ------------------------------------------------------------ for people

    def overview(self) -> dict[str, JSONValue]:
        """Connectors and sessions, without their tokens."""
        return {
            "domain": self.settings.domain,
            "connectors": [
                {"address": address, "kind": type(connector).__name__}
                for address, connector in sorted(self._connectors.items())
            ],
            "sessions": [
                {
                    "sessionID": session.session_id,
                    "account": session.principal.account,
                    "runtimeURL": session.runtime_url,
                    "isLive": session.is_live,
                    "addresses": list[JSONValue](session.held)[:100],
                    "addressCount": len(session.held),
                    "subscriptions": list[JSONValue](session.subscribed)[:100],
                    "subscriptionCount": len(session.subscribed),
                    "waiting": session.waiting,
                }
                for session in self._sessions.values()
            ],
        }


def _without_token(envelope: Envelope, session: NodeSession) -> Document:
    """The message as it goes on: the sender's token is the node's business, not the receiver's."""
    if "accessToken" not in envelope.body or session.principal.role == GUEST_ROLE:
        return envelope.document
    body = {name: member for name, member in envelope.body.items() if name != "accessToken"}
    return {**envelope.document, "body": body}
