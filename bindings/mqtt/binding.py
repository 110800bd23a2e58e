"""The MQTT binding: decides what a wire engine asks, and turns topics into messages for the runtime.

Who somebody is comes from the authenticator at CONNECT and from nowhere else. Every publish, wills included, becomes a
message for the sink; its answer becomes the acknowledgement: refused for good (a reason code, or a problem in the inbox
of MQTT 3.1.1 clients), or raised when the same publish may succeed later, so that it is not acknowledged at all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, assert_never

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.batches import checked_message_id, read_batch
from bindings.mqtt.clients import BINDING, MQTT_5, Answer, ClientSession, Encoder
from bindings.mqtt.forms import forms_of
from bindings.mqtt.groups import Groups
from bindings.mqtt.marks import InboxMarks
from bindings.mqtt.reasons import TEMPORARY, filter_reason, problem, reason_code
from bindings.mqtt.seam import (
    ACCEPTED,
    Closed,
    Engine,
    Grant,
    Hello,
    Link,
    Listening,
    Outcome,
    Publish,
    SubscribeOptions,
)
from bindings.mqtt.topics import (
    CancelRequest,
    ClientTopic,
    InboxFilter,
    MakeRequest,
    PublishBatch,
    PublishEvent,
    PublishProperties,
    PublishProperty,
    PublishTD,
    Replay,
    ReportStatus,
    SharedFilter,
    SystemFilter,
    ThingsFilter,
    batch_topic,
    is_response_topic,
    parse_filter,
    parse_topic,
    refused_topic,
)
from runtime.ports import Sink
from things.addresses import TwinID
from things.errors import ConfirmationRequired, Forbidden, Invalid, Malformed, SkepError, Unauthenticated
from things.identity import AccountType, Principal
from things.jsontext import MAX_MESSAGE_BYTES, decode, encode
from things.messages import JSONValue, Message, Operation
from things.td import ThingDescription
from things.times import parse_time

log = logging.getLogger(__name__)

FIGURES_EVERY_S = 10.0
TOKEN_METHOD = "token"
"""The one MQTT 5 authentication method: the data is an access or long-lived token."""

MAX_TARGETS = 4_096
"""Topics of values whose meaning is remembered: agents say the same ones again and again."""

_AGENT_TOPICS = (PublishEvent, PublishProperty, PublishProperties, PublishTD, PublishBatch, ReportStatus)


class Target(NamedTuple):
    """What a topic of values means."""

    operation: Operation
    thing_id: str
    thing: str
    name: str


class MqttBinding:
    """One engine's clients (`bindings.mqtt.seam.Gate`, `runtime.ports.ProtocolBinding`)."""

    name = BINDING

    def __init__(
        self,
        engine: Engine,
        *,
        schemes: Sequence[str] = (),
        public_host: str | None = None,
        marks: InboxMarks | None = None,
    ) -> None:
        """`schemes` says `mqtt` or `mqtts` for each of the engine's listeners, in their order (`mqtt` where it says
        nothing); `public_host` takes the place of the address listened on in forms; `marks` outlive a restart if they
        have a file."""
        self._engine = engine
        self._schemes = schemes
        self._public_host = public_host
        self._sink: Sink
        self._groups: Groups
        self._encoder = Encoder()
        self._clients: dict[Link, ClientSession] = {}
        self._marks = marks or InboxMarks()
        self._targets: dict[tuple[str, str], Target] = {}
        self._accepted: asyncio.Future[Outcome]
        self._received = self._refused = 0
        self.addresses: Sequence[tuple[str, int]] = ()
        """(host, port) of each listener; set when serving."""
        self.urls: Sequence[str] = ()
        """Where clients connect, one for each listener; set when serving."""

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; reports started when every listener is up."""
        self._sink = sink
        self._groups = Groups(sink.sessions, sink.new_id)
        self._accepted = asyncio.get_running_loop().create_future()
        self._accepted.set_result(ACCEPTED)
        try:
            await self._served(task_status)
        finally:
            # The engine has closed its links by now, each with its last mark.
            with anyio.CancelScope(shield=True):
                await self._marks.save()

    async def _served(self, task_status: TaskStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:

            async def serve_engine(*, task_status: TaskStatus[Listening]) -> None:
                await self._engine.serve(self, task_status=task_status)
                tasks.cancel_scope.cancel()

            listening: Listening = await tasks.start(serve_engine)
            self.addresses = tuple(listening.addresses)
            self.urls = tuple(
                f"{scheme or 'mqtt'}://{_bracketed(self._public_host or host)}:{port}"
                for (host, port), scheme in zip_longest(self.addresses, self._schemes[: len(self.addresses)])
            )
            log.info("listening", extra={"binding": self.name, "urls": self.urls})
            task_status.started()
            while True:
                await anyio.sleep(FIGURES_EVERY_S)
                for link, session in tuple(self._clients.items()):
                    session.tell_figures(tuple(self._figures()))
                    self._mark(link, session)
                await self._marks.save()

    def forms(self, td: ThingDescription, twin: TwinID) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """Forms for a twin TD, for each address at which clients connect."""
        return forms_of(td, twin, self.urls)

    # ------------------------------------------------------------ the gate: who

    async def admit(self, hello: Hello) -> Principal | None:
        try:
            principal = await self._authenticated(hello)
            if hello.will is not None:
                self._check_will(hello.will, principal)
        except SkepError as error:
            log.info("connect refused", extra={"source": hello.source, "code": error.code})
            return None
        return principal

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        session = self._clients.get(link)
        try:
            principal = self._sink.authenticator.verify(_utf8(data))
        except SkepError as error:
            log.info("authentication refused", extra={"account": link.principal.account, "code": error.code})
            return None
        if session is None or principal.account != link.principal.account:
            return None
        session.principal = principal
        self._sink.sessions.renewed(session, principal)
        self._groups.renewed(principal)
        return principal

    async def _authenticated(self, hello: Hello) -> Principal:
        authenticator = self._sink.authenticator
        if hello.auth_method is not None:
            if hello.auth_method != TOKEN_METHOD or hello.auth_data is None:
                raise Unauthenticated
            principal = authenticator.verify(_utf8(hello.auth_data))
        elif hello.password is not None:
            return await authenticator.login(hello.user_name or "", _utf8(hello.password), source=hello.source)
        elif hello.certificate_name is not None:
            principal = await authenticator.by_certificate(hello.certificate_name)
        else:
            raise Unauthenticated
        if hello.user_name not in (None, principal.account):
            raise Unauthenticated
        return principal

    def _check_will(self, will: Publish, principal: Principal) -> None:
        topic = parse_topic(will.topic, principal.account)
        if isinstance(topic, _AGENT_TOPICS) and principal.type is AccountType.CONSUMER:
            raise Forbidden("a consumer has no Things to publish for")
        if will.payload:
            decode(will.payload)

    # ------------------------------------------------------------ the gate: links

    def opened(self, link: Link, *, resumed: bool) -> None:
        session = self._session(link)
        if session is not None and resumed and session.takes_reports:
            self._sink.sessions.take_reports(session, self._marks.get((link.principal.account, link.client_id)))

    def closed(self, link: Link, reason: Closed) -> None:
        session = self._clients.pop(link, None)
        if session is None:
            return
        self._mark(link, session)
        self._groups.leave_all(session)
        self._sink.sessions.closed(session)
        log.debug("client gone", extra={"account": session.principal.account, "reason": reason})

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        principal = self._sink.authenticator.standing(link.principal)
        if principal is None:
            return False
        session = ClientSession(self._sink.new_id(), link, self._sink.sessions, self._encoder)
        # It ends with its account or login, and by the engine's clock: not with the token it last came with.
        session.principal = replace(principal, expires=None)
        session.is_away = True
        try:
            self._sink.sessions.opened(session)
        except SkepError as error:
            log.info("nothing waits for a client", extra={"account": principal.account, "code": error.code})
            return True
        self._clients[link] = session
        for text, options in filters.items():
            # QoS 0 promises nothing, groups have other members, and the inbox is in the ledger.
            if options.qos:
                with suppress(SkepError):
                    parsed = parse_filter(text, principal.account)
                    if isinstance(parsed, ThingsFilter):
                        session.subscribe_things(text, parsed, replace(options, retain_handling=2))
        return True

    def _mark(self, link: Link, session: ClientSession) -> None:
        if session.confirmed is not None:
            self._marks.put((session.principal.account, link.client_id), session.confirmed)

    def _session(self, link: Link) -> ClientSession | None:
        """The link's session; made at the first word about it, which for a resumed one is a filter. None if the account
        has too many, and then the link is closed."""
        session = self._clients.get(link)
        if session is None:
            session = ClientSession(self._sink.new_id(), link, self._sink.sessions, self._encoder)
            try:
                self._sink.sessions.opened(session)
            except SkepError as error:
                # The engine tells `opened` and `closed` of it all the same.
                log.info("session refused", extra={"account": link.principal.account, "code": error.code})
                link.close(Closed.REFUSED)
                return None
            self._clients[link] = session
        return session

    # ------------------------------------------------------------ the gate: filters

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        session = self._session(link)
        try:
            if session is None:
                raise Forbidden
            parsed = parse_filter(topic_filter, session.principal.account)
            match parsed:
                case ThingsFilter():
                    return session.subscribe_things(topic_filter, parsed, options)
                case InboxFilter():
                    return session.subscribe_inbox(topic_filter, parsed, options)
                case SharedFilter():
                    return self._groups.join(session, topic_filter, parsed, options)
                case SystemFilter():
                    granted = session.subscribe_system(topic_filter, parsed, options)
                    return Grant(qos=granted.qos, latest=tuple(session.figures(self._figures(), topic_filter)))
                case _:
                    assert_never(parsed)
        except SkepError as error:
            log.info("filter refused", extra={"account": link.principal.account, "code": error.code})
            return filter_reason(error)

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        session = self._clients.get(link)
        if session is None:
            return False
        return session.unsubscribe(topic_filter) or self._groups.leave(session, topic_filter)

    # ------------------------------------------------------------ the gate: publishes

    def received(self, link: Link, message: Publish) -> Awaitable[Outcome]:
        self._received += 1
        session = self._clients.get(link)
        if session is not None:
            account = session.principal.account
            target = self._targets.get((account, message.topic)) or self._target(account, message.topic)
            if target is not None and session.order.may_pass(target.thing):
                return self._stored(session, link, message, target)
            session.order.unstarted += 1
        return self._taken(session, link, message)

    def _target(self, account: str, text: str) -> Target | None:
        """What an account's topic means, if it is one of a value: those are by far the most."""
        try:
            topic = parse_topic(text, account)
        except SkepError:
            return None
        if not isinstance(topic, PublishEvent | PublishProperty):
            return None
        operation = Operation.PUBLISH_EVENT if isinstance(topic, PublishEvent) else Operation.PUBLISH_PROPERTY
        if len(self._targets) >= MAX_TARGETS:
            self._targets.clear()
        target = Target(operation, str(TwinID(topic.agent, topic.thing)), topic.thing, topic.name)
        self._targets[account, text] = target
        return target

    def _stored(
        self, session: ClientSession, link: Link, publish: Publish, target: Target
    ) -> "asyncio.Future[Outcome]":
        """Store one value; in one step and without a task, since nothing but the commit is waited for."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        payload, error = publish.payload, None
        try:
            # An event may come without data; a property is nothing without its value.
            has_data = bool(payload) or target.operation is Operation.PUBLISH_PROPERTY
            data = _json(payload) if has_data else None
            message = self._message(session, publish, target.operation, target.thing_id, target.name, data)
            if not self._sink.store(message, partial(self._committed, session, link, publish, answer)):
                return self._accepted
        except Exception as raised:
            error = raised
        if error is None:
            session.order.begun(answer)
        else:
            self._committed(session, link, publish, answer, error)
        return answer

    def _committed(
        self,
        session: ClientSession,
        link: Link,
        publish: Publish,
        answer: "asyncio.Future[Outcome]",
        error: BaseException | None,
    ) -> None:
        session.order.ended(answer)
        if answer.done():
            return
        if error is None:
            answer.set_result(ACCEPTED)
            return
        if not isinstance(error, SkepError):
            log.error("publish failed", extra={"account": link.principal.account}, exc_info=error)
            error = SkepError()
        try:
            answer.set_result(self._refuse(session, link, publish, error))
        except SkepError as refusal:
            answer.set_exception(refusal)

    async def _taken(self, session: ClientSession | None, link: Link, publish: Publish) -> Outcome:
        if session is not None:
            session.order.unstarted -= 1
        try:
            if session is None:
                raise Forbidden
            await self._route(session, publish)
        except SkepError as error:
            return self._refuse(session, link, publish, error)
        except Exception:
            log.exception("publish failed", extra={"account": link.principal.account})
            return self._refuse(session, link, publish, SkepError())
        return ACCEPTED

    def _refuse(self, session: ClientSession | None, link: Link, publish: Publish, error: SkepError) -> Outcome:
        self._refused += 1
        log.info("publish refused", extra={"account": link.principal.account, "code": error.code})
        is_told_by_code = link.protocol_level >= MQTT_5 and publish.qos > 0
        if isinstance(error, TEMPORARY) and publish.qos > 0 and not is_told_by_code:
            raise error
        # A reason code carries no token.
        if session is not None and (not is_told_by_code or isinstance(error, ConfirmationRequired)):
            document = problem(
                error,
                topic=publish.topic,
                messageID=_property(publish, "messageID"),
                callerRef=_caller_ref(publish.topic, link.principal.account),
            )
            session.tell(refused_topic(link.principal.account), encode(document), publish.correlation)
        return Outcome(reason_code=reason_code(error), reason=error.detail)

    async def _route(self, session: ClientSession, publish: Publish) -> None:
        topic = parse_topic(publish.topic, session.principal.account)
        match topic:
            case PublishEvent() | PublishProperty():
                # Only those that wait for their TD come here; `received` stores the others.
                with session.order.storing():
                    await session.order.described(topic.thing)
                    await self._publish(session, publish, topic)
            case PublishProperties():
                with session.order.storing():
                    await session.order.described(topic.thing)
                    await self._publish_many(session, publish, topic)
            case PublishTD():
                async with session.order.describing(topic.thing):
                    await self._publish_td(session, publish, topic)
            case PublishBatch():
                with session.order.storing():
                    await session.order.described()
                    await self._publish_batch(session, publish)
            case ReportStatus():
                data = _json(publish.payload)
                await session.order.stored()
                await self._handle(session, publish, Operation.REPORT_STATUS, "", topic.request_id, data)
            case MakeRequest():
                await self._request(session, publish, topic)
            case CancelRequest():
                await self._handle(session, publish, Operation.CANCEL, "", "", correlation=topic.caller_ref)
            case Replay():
                self._replay(session, publish)
            case _:
                assert_never(topic)

    async def _publish(self, session: ClientSession, publish: Publish, topic: PublishEvent | PublishProperty) -> None:
        is_event = isinstance(topic, PublishEvent)
        operation = Operation.PUBLISH_EVENT if is_event else Operation.PUBLISH_PROPERTY
        thing_id = str(TwinID(topic.agent, topic.thing))
        # An event may come without data; a property is nothing without its value.
        data = _json(publish.payload) if publish.payload or not is_event else None
        await self._handle(session, publish, operation, thing_id, topic.name, data)

    async def _publish_many(self, session: ClientSession, publish: Publish, topic: PublishProperties) -> None:
        values = _json(publish.payload)
        if not isinstance(values, dict):
            raise Malformed("properties are an object of values by name")
        thing_id = str(TwinID(topic.agent, topic.thing))
        messages = [
            self._message(session, publish, Operation.PUBLISH_PROPERTY, thing_id, name, value)
            for name, value in values.items()
        ]
        result = await self._sink.batch(messages)
        if result.rejected:
            names = ", ".join(f"{messages[index].name} ({code})" for index, _, code in result.rejected)
            raise Invalid(f"not stored: {names[:400]}; {result.stored} stored")

    async def _publish_td(self, session: ClientSession, publish: Publish, topic: PublishTD) -> None:
        thing_id = str(TwinID(topic.agent, topic.thing))
        if publish.payload:
            await self._handle(session, publish, Operation.PUBLISH_TD, thing_id, "", _utf8_text(publish.payload))
        else:
            await self._handle(session, publish, Operation.REMOVE_TD, thing_id, "")

    async def _publish_batch(self, session: ClientSession, publish: Publish) -> None:
        batch = read_batch(
            publish.payload,
            session.principal,
            received=self._sink.clock(),
            origin=session.origin,
            durable=publish.qos > 0,
        )
        result = await self._sink.batch(batch.messages)
        session.tell(batch_topic(session.principal.account), batch.document(result), publish.correlation)

    async def _request(self, session: ClientSession, publish: Publish, topic: MakeRequest) -> None:
        account, reference = session.principal.account, topic.caller_ref
        if publish.response_topic is not None and not is_response_topic(publish.response_topic, account):
            raise Forbidden(f"a response topic lies in inbox/{account}/")
        has_data = bool(publish.payload) or topic.operation is Operation.WRITE_PROPERTY
        data = _json(publish.payload) if has_data else None
        if publish.response_topic is not None or publish.correlation is not None:
            # Known before the first status, which the register may send before the message is answered here.
            session.expect_answer(reference, Answer(publish.response_topic, publish.correlation))
        thing_id = str(TwinID(topic.agent, topic.thing))
        message = self._message(
            session,
            publish,
            topic.operation,
            thing_id,
            topic.name,
            data,
            correlation=reference,
            confirmation=topic.confirmation,
        )
        try:
            status = await self._sink.handle(message)
        except BaseException:
            session.forget_answer(reference)
            raise
        if topic.operation is not Operation.CALL_RPC or status.is_final:
            session.answer(status)

    def _replay(self, session: ClientSession, publish: Publish) -> None:
        request = _json(publish.payload) if publish.payload else {"after": 0}
        after = request.get("after") if isinstance(request, dict) else None
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:
            raise Invalid('a replay is asked for as {"after": sequence number}')
        if not session.takes_reports:
            raise Invalid("subscribe to your statuses before you ask for them again")
        self._sink.sessions.take_reports(session, after)

    async def _handle(
        self,
        session: ClientSession,
        publish: Publish,
        operation: Operation,
        thing_id: str,
        name: str,
        data: JSONValue = None,
        *,
        correlation: str | None = None,
    ) -> None:
        await self._sink.handle(
            self._message(session, publish, operation, thing_id, name, data, correlation=correlation)
        )

    def _message(
        self,
        session: ClientSession,
        publish: Publish,
        operation: Operation,
        thing_id: str,
        name: str,
        data: JSONValue,
        *,
        correlation: str | None = None,
        confirmation: str | None = None,
    ) -> Message:
        message_id = created = None
        if publish.user_properties:
            confirmation = _property(publish, "confirmation") or confirmation
            message_id = checked_message_id(_property(publish, "messageID"))
            created = _property(publish, "created")
        return Message(
            operation=operation,
            principal=session.principal,
            thing_id=thing_id,
            name=name,
            data=data,
            has_data=bool(publish.payload),
            message_id=message_id,
            created=parse_time(created) if created is not None else None,
            received=self._sink.clock(),
            expires_in_s=publish.expiry_s,
            correlation=correlation,
            confirmation=confirmation,
            durable=publish.qos > 0,
            origin=session.origin,
        )

    # ------------------------------------------------------------ figures

    def _figures(self) -> Iterator[tuple[str, bytes]]:
        yield "$SYS/mqtt/clients", encode(sum(not session.is_away for session in self._clients.values()))
        yield "$SYS/mqtt/received", encode(self._received)
        yield "$SYS/mqtt/refused", encode(self._refused)
        yield "$SYS/mqtt/dropped", encode(sum(link.dropped for link in self._clients))


def _json(payload: bytes) -> JSONValue:
    return decode(payload, max_bytes=MAX_MESSAGE_BYTES)


def _utf8(secret: bytes) -> str:
    try:
        return secret.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Unauthenticated from error


def _utf8_text(payload: bytes) -> str:
    try:
        return payload.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8") from error


def _property(publish: Publish, name: str) -> str | None:
    return next((value for key, value in publish.user_properties if key == name), None)


def _caller_ref(topic: str, account: str) -> str | None:
    try:
        parsed: ClientTopic = parse_topic(topic, account)
    except SkepError:
        return None
    return parsed.caller_ref if isinstance(parsed, MakeRequest | CancelRequest) else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
