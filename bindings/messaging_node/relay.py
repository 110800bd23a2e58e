"""The way of a message: checked, judged by the runtime's router, and carried to where its address leads.

`take` hands what a session sent to the router as a `send` message; `deliver` is the router's handler of those, and
knows where they go: a connector of the node, a Thing, whoever holds or listens to the address, a foreign stub, or
nobody, which is answered 404.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bindings.messaging_node.audience import Audience, names_of, shares
from bindings.messaging_node.connectors import Body, Connector, Resolve
from bindings.messaging_node.credentials import Credentials
from bindings.messaging_node.journal import Journal
from bindings.messaging_node.mirror import Mirror
from bindings.messaging_node.outbox import SHARE, Item
from bindings.messaging_node.pending import Asked, PendingResponses
from bindings.messaging_node.replies import Replies
from bindings.messaging_node.requests import HypertyRequests
from bindings.messaging_node.routes import RESERVED, Routes, is_notified, object_of
from bindings.messaging_node.runtimes import Runtimes
from bindings.messaging_node.sessions import NodeSession, Pending, Permit
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.twins import Twins
from runtime.ports import Sink
from things.decisions import Context
from things.delivery import DeliveryStatus, State
from things.envelopes import Document, Envelope, read, refusal, refused, response, scheme_of
from things.errors import Forbidden, NotFound, QueueFull, RateLimited, SkepError
from things.identity import Principal
from things.jsontext import encode
from things.messages import Message, Operation, Origin

log = logging.getLogger(__name__)

BINDING = "node"
SESSION = "mn:/session"
SESSION_TYPES = frozenset({"open", "re-open", "close"})
SLOW_S = 2.0
"""How long news wait for those that read slowly, so that one of them cannot hold up all others."""
PATIENCE_S = 15.0
"""How long a message waits for the one it is for, while that reads at all."""
_LOOKS = frozenset({"read", "subscribe"})
_DONE = DeliveryStatus(request_id="", state=State.COMPLETED)


class Relay:
    """Passes messages on."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        sink: Callable[[], Sink],
        routes: Routes,
        audience: Audience,
        journal: Journal,
        runtimes: Runtimes,
        replies: Replies,
        credentials: Credentials,
        connectors: Mapping[str, Connector],
        twins: Twins,
        mirror: Mirror,
        requests: HypertyRequests,
        resolve: Resolve,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._routes = routes
        self._audience = audience
        self._journal = journal
        self._runtimes = runtimes
        self._replies = replies
        self._credentials = credentials
        self._connectors = connectors
        self._twins = twins
        self._mirror = mirror
        self._requests = requests
        self._resolve = resolve
        self.pending = PendingResponses(
            wait_s=settings.response_s,
            most=settings.max_pending,
            most_of_session=settings.max_pending_of_session,
            compatible=settings.compatible,
            timed_out=_tell_timeout,
        )

    # ------------------------------------------------------------ in

    async def take(self, envelope: Envelope, session: NodeSession) -> None:
        """Pass one message of a session on its way; what is refused is answered, never raised."""
        try:
            await session.read_answers()
            self._credentials.check(envelope, session)
            passed = await self._credentials.passed_on(envelope, session)
            origin = Origin(binding=BINDING, session_id=session.session_id, source=session.source)
            while True:
                try:
                    await self._sink().handle(self._message(passed, session.principal, origin))
                    return
                except RateLimited as error:
                    # Holding back the connection is the answer that loses nothing.
                    await asyncio.sleep(max(0.05, min(error.retry_after_s, 1.0)))
        except SkepError as error:
            self._refuse(envelope, session, refused(error))
        except Exception:
            log.exception("message failed", extra={"type": envelope.type, "session": session.session_id})
            self._refuse(envelope, session, refusal(500, "internal error"))

    async def admit(
        self, principal: Principal, runtime_url: str, *, source: str | None, asked: Envelope | None = None
    ) -> None:
        """Let policies judge that a runtime opens a session, before it has one; raises Forbidden. A lost one that is
        taken up again, and a connection without a handshake, are judged as the `open` they stand for."""
        body = {} if asked is None else {name: value for name, value in asked.body.items() if name != "accessToken"}
        document: Document = {"id": 0, "type": "open", "from": runtime_url, "to": SESSION, "body": body}
        envelope = read(document, size=0 if asked is None else asked.size)
        await self._sink().handle(self._message(envelope, principal, Origin(binding=BINDING, source=source)))

    def _message(self, envelope: Envelope, principal: Principal, origin: Origin) -> Message:
        return Message(
            operation=Operation.SEND,
            principal=principal,
            thing_id=envelope.to,
            name=envelope.type or "none",
            data=envelope.document,
            received=self._sink().clock(),
            size=envelope.size,
            origin=origin,
        )

    # ------------------------------------------------------------ onward

    async def deliver(self, message: Message) -> DeliveryStatus:
        """The router's handler of `send`: what it lets through comes here. Raises NotFound, Forbidden …"""
        envelope = read(message.data)
        if envelope.to == SESSION and envelope.type in SESSION_TYPES:
            return _DONE  # let through: its connection does the rest
        session = self._runtimes.get(message.origin.session_id)
        if session is None:
            raise NotFound("the session has ended")
        self._check_sender(envelope, session)
        connector = None if envelope.is_response else self._connector(envelope.to)
        if connector is not None:
            await self._ask(connector, envelope, session)
            return _DONE
        if self._settings.compatible and not envelope.sender.startswith(session.runtime_url):
            self._routes.learn(envelope.sender, session)
        if envelope.is_response:
            await self._respond(envelope, session)
        else:
            await self._forward(envelope, session)
        return _DONE

    def _connector(self, to: str) -> Connector | None:
        found = self._connectors.get(to) or self._connectors.get(to.rstrip("/"))
        return self._twins if found is None and to.startswith(self._twins.prefix) else found

    async def _ask(self, connector: Connector, envelope: Envelope, session: NodeSession) -> None:
        noted = self._journal.noted
        body = await connector.answer(envelope, session)
        if body is None:
            return
        if self._journal.noted == noted:
            self._replies.answer(envelope, session, body)
        else:
            # What is acknowledged is kept; later messages of this session need not wait for that.
            self._journal.after(partial(self._committed, envelope, session, body))
            await self._journal.room()

    def _committed(self, envelope: Envelope, session: NodeSession, body: Body, failure: SkepError | None) -> None:
        if failure is None:
            self._replies.answer(envelope, session, body)
        else:
            session.send(response(envelope, refused(failure)))

    async def _forward(self, envelope: Envelope, session: NodeSession) -> None:
        to, sender = envelope.to, None
        if session.is_address(envelope.sender):
            # Whoever knew it could take the session over: others see the runtime's address.
            sender = envelope.sender
            envelope = read({**envelope.document, "from": session.runtime_url})
        is_news = is_notified(to) and envelope.type in ("update", "delete")
        if envelope.type in _LOOKS:
            self._check_look(to, session)
        cause, text = session.principal.account, encode(envelope.document)
        receivers, permitted = self._receivers(envelope, session, is_news=is_news)
        if not _have_room(receivers, cause, len(text)):
            await _make_room(receivers, cause, len(text), SLOW_S if is_news else PATIENCE_S)
            receivers, permitted = self._receivers(envelope, session, is_news=is_news)
            if not is_news:
                receivers = _with_room(receivers, cause, len(text), self._settings.max_outbox_bytes // SHARE)
        if receivers:
            if not is_news:
                self.pending.add(envelope, session, expects=envelope.is_request, sender=sender)
            # News were true when they were told; whoever asks for something must still be there, and allowed to.
            judged = permitted if is_news else self._while_standing(envelope, session, permitted)
            item = Item(text, judged, cause, is_news=is_news)
            for receiver in receivers:
                receiver.put_from(item)
        elif not is_news:
            stub = self._resolve(to)
            if stub is None:
                raise NotFound(f"nobody is at {to[:80]!r}")
            self.pending.add(envelope, session, expects=envelope.is_request, sender=sender)
            await stub.deliver(envelope, session)
        if is_news and to.endswith("/changes"):
            await self._mirror.changed(object_of(to), envelope, session)

    def _receivers(
        self, envelope: Envelope, session: NodeSession, *, is_news: bool
    ) -> tuple[Sequence[NodeSession], Permit | None]:
        to = envelope.to
        if is_news and to.endswith("/changes"):
            # A change is a value of the Thing that its sender reports.
            thing = self._mirror.thing(object_of(to), session)
            return self._audience.receivers(to, envelope.document, thing=thing, names=names_of(envelope.body))
        receivers, permitted = self._audience.receivers(to, envelope.document)
        return receivers or self._addressed(to), permitted

    def _while_standing(self, envelope: Envelope, session: NodeSession, permitted: Permit | None) -> Permit:
        """Judges a message that waited by its sender, as that stands by then, and then by its receiver."""
        sink, principal = self._sink(), session.principal
        sessions, version = sink.sessions, sink.sessions.version

        def permit(receiver: NodeSession) -> bool:
            if sessions.version != version and not self._may_still_send(envelope, principal, session.source):
                return False
            return permitted is None or permitted(receiver)

        return permit

    def _may_still_send(self, envelope: Envelope, principal: Principal, source: str | None) -> bool:
        sink = self._sink()
        standing = principal if principal.is_guest else sink.authenticator.standing(principal)
        if standing is None:
            return False
        context = Context(now=sink.clock(), payload=envelope.document, binding=BINDING, source=source)
        return sink.sessions.may_send(standing, envelope.to, envelope.type, context)

    def _check_look(self, to: str, session: NodeSession) -> None:
        """To ask the reporter of an object for its data takes what it takes to observe it. Raises Forbidden, or, if
        the Thing is hidden, NotFound as where nobody is."""
        url = object_of(to)
        thing = self._audience.thing_of(url)
        if thing is None or shares(session, self._routes.holders.at(url)) or self._audience.sees(session, thing):
            return
        if self._audience.knows(session, thing):
            raise Forbidden(f"{session.principal.account!r} may not observe {url[:80]!r}")
        self._resolve(to)  # raises what it raises for any address there
        raise NotFound(f"nobody is at {to[:80]!r}")

    async def _respond(self, envelope: Envelope, session: NodeSession) -> None:
        if await self._requests.answered(envelope, session):
            return
        asked = self.pending.answered(envelope, by_many=self._routes.is_shared(envelope.sender))
        if asked is not None and asked.is_over:
            log.info("late response", extra={"sender": session.principal.account, "to": envelope.to})
            return
        if asked is not None:
            asked.session.answer(_to_asker(asked, envelope.document))
            return
        # Nobody asked: as good as any other message.
        cause, text = session.principal.account, encode(envelope.document)
        receivers, permitted = self._audience.receivers(envelope.to, envelope.document)
        await _make_room(receivers, cause, len(text), SLOW_S)
        item = Item(text, permitted, cause, is_news=True)
        for receiver in receivers:
            receiver.put_from(item)

    def _addressed(self, to: str) -> tuple[NodeSession, ...]:
        session = self._runtimes.at(to)
        return () if session is None else (session,)

    def _check_sender(self, envelope: Envelope, session: NodeSession) -> None:
        sender = envelope.sender
        if scheme_of(sender) in RESERVED:
            raise Forbidden(f"{sender[:80]!r} is the node's own")
        if self._settings.compatible:
            return
        if not self._routes.belongs(sender, session):
            raise Forbidden(f"{sender[:80]!r} is not this session's to speak as")
        to = envelope.to
        if to.endswith("/registration") or (
            to.endswith("/changes") and not self._routes.belongs(object_of(to), session)
        ):
            raise Forbidden(f"only its reporter tells changes of {object_of(to)[:80]!r}")

    # ------------------------------------------------------------ back

    def undelivered(self, envelope: Envelope) -> None:
        """A message waited for a session that has ended: tell whoever asked."""
        if not envelope.is_response and self._connector(envelope.sender) is None:
            self._answer_asker(envelope, refusal(404, f"{envelope.to[:80]!r} is gone"))

    def _refuse(self, envelope: Envelope, session: NodeSession, body: Document) -> None:
        if not envelope.is_response:
            session.send(response(envelope, body))
        elif self._settings.compatible or self._routes.belongs(envelope.sender, session):
            # Who asked must not wait for an answer that was held back.
            asked = {**envelope.document, "from": envelope.to, "to": envelope.sender, "type": "read"}
            self._answer_asker(read(asked), body)

    def _answer_asker(self, envelope: Envelope, body: Document) -> None:
        answer = response(envelope, body)
        asked = self.pending.answered(read(answer), by_many=False)
        if asked is not None and not asked.is_over:
            asked.session.send(_to_asker(asked, answer))


def _have_room(receivers: Sequence[NodeSession], cause: str, size: int) -> bool:
    return all(one.has_room(cause, size) for one in receivers if one.outbox.is_counting)


async def _make_room(receivers: Sequence[NodeSession], cause: str, size: int, wait_s: float) -> None:
    """Wait for whoever has no room for a message, together at most so long."""
    until = asyncio.get_running_loop().time() + wait_s
    for receiver in receivers:
        await receiver.make_room(cause, size, until=until)


def _with_room(receivers: Sequence[NodeSession], cause: str, size: int, share: int) -> Sequence[NodeSession]:
    """Those that can take a message. Raises QueueFull if none of them can: refused is who sends too much."""
    able = [receiver for receiver in receivers if receiver.has_room(cause, size)]
    if receivers and not able:
        raise QueueFull(f"account {cause!r}", share, "bytes, or as many messages as may be, waiting there")
    return able


def _to_asker(asked: Asked, document: Document) -> Document:
    return document if asked.sender is None else {**document, "to": asked.sender}


def _tell_timeout(key: Pending, asked: Asked) -> None:
    to, sender, identity = key
    body = refusal(408, "Response timeout!")
    asked.session.send({"id": identity, "type": "response", "from": to, "to": asked.sender or sender, "body": body})
