"""What clients publish, as messages for the runtime, and its answers as acknowledgements.

Its answer becomes the acknowledgement: refused for good (a reason code, or a problem in the inbox of MQTT 3.1.1
clients), or raised when the same publish may succeed later, so that it is not acknowledged at all.
"""

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import NamedTuple, assert_never

from bindings.mqtt.batches import checked_message_id, read_batch
from bindings.mqtt.clients import MQTT_5, ClientSession
from bindings.mqtt.inbox import Answer
from bindings.mqtt.reasons import TEMPORARY, problem, reason_code
from bindings.mqtt.seam import (
    ACCEPTED,
    Link,
    Outcome,
    Publish,
)
from bindings.mqtt.topics import (
    CancelRequest,
    ClientTopic,
    MakeRequest,
    PublishBatch,
    PublishEvent,
    PublishProperties,
    PublishProperty,
    PublishTD,
    Replay,
    ReportStatus,
    batch_topic,
    is_response_topic,
    parse_topic,
    refused_topic,
)
from runtime.ports import Sink
from things.addresses import TwinID
from things.errors import ConfirmationRequired, Forbidden, Invalid, Malformed, SkepError
from things.jsontext import MAX_MESSAGE_BYTES, decode, encode
from things.messages import JSONValue, Message, Operation
from things.times import parse_time

log = logging.getLogger(__name__)

MAX_TARGETS = 4_096
"""Topics of values whose meaning is remembered: agents say the same ones again and again."""


class Target(NamedTuple):
    """What a topic of values means."""

    operation: Operation
    thing_id: str
    thing: str
    name: str


class Publishes:
    """Turns the publishes of one engine's clients into messages."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._promised = asyncio.get_running_loop().create_future
        self._targets: dict[tuple[str, str], Target] = {}
        self._accepted: asyncio.Future[Outcome] = self._promised()
        self._accepted.set_result(ACCEPTED)
        self.count = 0
        """Publishes that came."""
        self.refused = 0
        """Those of them that were refused."""

    def received(self, session: ClientSession | None, link: Link, message: Publish) -> Awaitable[Outcome]:
        """Handle one publish of a client; the outcome is its acknowledgement. Without a session it is refused."""
        self.count += 1
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
        answer: asyncio.Future[Outcome] = self._promised()
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
        self.refused += 1
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
            self._message(session, publish, Operation.PUBLISH_PROPERTY, thing_id, name, value, shared_by=len(values))
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
        shared_by: int = 1,
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
            size=len(publish.payload) // shared_by,
            durable=publish.qos > 0,
            origin=session.origin,
        )


def _json(payload: bytes) -> JSONValue:
    return decode(payload, max_bytes=MAX_MESSAGE_BYTES)


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
