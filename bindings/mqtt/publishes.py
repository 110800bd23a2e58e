"""What clients publish, as messages for the runtime, and its answers as acknowledgements.

Its answer becomes the acknowledgement: refused for good (a reason code, or a problem in the inbox of MQTT 3.1.1
clients), or raised when the same publish may succeed later, so that it is not acknowledged at all.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, assert_never

from bindings.mqtt.clients import MQTT_5, ClientSession
from bindings.mqtt.engines.seam import Link, Outcome, Publish
from bindings.mqtt.inbox import Answer
from bindings.mqtt.known_topics import KnownTopics, ValueTopic
from bindings.mqtt.reasons import TEMPORARY, reason_code
from bindings.mqtt.topics import (
    CancelRequest,
    ClientTopic,
    MakeRequest,
    OtherTopic,
    PublishBatch,
    PublishProperties,
    PublishTD,
    Replay,
    ReportStatus,
    batch_topic,
    is_response_topic,
    parse_topic,
    refused_topic,
)
from bindings.wire.batch import Item, checked_message_id, read_batch
from bindings.wire.descriptions import read_td
from bindings.wire.values import read_values, store_values
from runtime.ports import Sink
from things.addresses import TwinID
from things.errors import ConfirmationRequired, Forbidden, Invalid, SkepError
from things.jsontext import MAX_MESSAGE_BYTES, decode, encode
from things.messages import JSONValue, Message, Operation
from things.problems import problem
from things.records import MAX_COUNTER
from things.refusals import REFUSALS
from things.times import parse_time

log = logging.getLogger(__name__)


class Publishes:
    """Turns the publishes of one engine's clients into messages."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._promised = asyncio.get_running_loop().create_future
        self._topics = KnownTopics()
        self._accepted: asyncio.Future[None] = self._promised()
        self._accepted.set_result(None)
        self.count = 0
        """Publishes that came."""
        self.refused = 0
        """Those of them that were refused."""

    def received(self, session: ClientSession | None, link: Link, publish: Publish) -> Awaitable[object]:
        """Handle one publish of a client (`Gate.received`). Without a session it is refused.

        A value or event whose turn has come is stored in this step and without a task, since nothing but its commit is
        waited for; everything else waits its turn in a task."""
        self.count += 1
        try:
            if session is None:
                raise Forbidden
            topic, order = self._topics.parse(session.principal.account, publish.topic), session.order
            if not isinstance(topic, ValueTopic) or not order.may_pass(topic.thing):
                order.unstarted += 1
                return self._handled_in_turn(session, publish, topic)
            committed = self._store(session, publish, topic)
        except Exception as error:
            return self._raising(error)
        if committed is None:
            return self._accepted
        order.storing_until(committed)
        return committed

    def dropped_will(self) -> Awaitable[object]:
        """The end of a will that its account may not leave any more."""
        return self._raising(Forbidden())

    def _raising(self, error: Exception) -> Awaitable[object]:
        answer: asyncio.Future[None] = self._promised()
        answer.set_exception(error)
        return answer

    async def _handled_in_turn(self, session: ClientSession, publish: Publish, topic: OtherTopic | ValueTopic) -> None:
        session.order.unstarted -= 1
        await self._route(session, publish, topic)

    def refusal(self, session: ClientSession | None, link: Link, publish: Publish, error: Exception) -> Outcome:
        """Count and tell a refusal (`Gate.refused`): the outcome for the acknowledgement, or raised if there is to be
        none."""
        if not isinstance(error, SkepError):
            log.error("publish failed", extra={"account": link.principal.account}, exc_info=error)
            error = SkepError()
        self.refused += 1
        self._sink.charge(link.principal, 1)
        REFUSALS.note(log, "publish refused", who=link.principal.account, code=error.code, topic=publish.topic)
        is_told_by_code = link.protocol_level >= MQTT_5 and publish.qos > 0
        if isinstance(error, TEMPORARY) and publish.qos > 0 and not is_told_by_code:
            raise error
        # A reason code carries no token.
        if session is not None and (not is_told_by_code or isinstance(error, ConfirmationRequired)):
            named: dict[str, JSONValue] = {
                "topic": publish.topic,
                "messageID": _property(publish, "messageID"),
                "callerRef": _caller_ref(publish.topic, link.principal.account),
            }
            document = problem(error) | {name: value for name, value in named.items() if value is not None}
            session.tell(refused_topic(link.principal.account), encode(document), publish.correlation)
        return Outcome(reason_code=reason_code(error), reason=error.detail, error_code=error.code)

    def _stand(self, session: ClientSession) -> None:
        """Judge by the account as it is now: it may have lost its rights while a publish waited for others."""
        principal = self._sink.authenticator.standing(session.principal)
        if principal is None:
            raise Forbidden
        session.principal = principal

    async def _route(self, session: ClientSession, publish: Publish, topic: OtherTopic | ValueTopic) -> None:
        self._stand(session)
        match topic:
            case ValueTopic():
                # Only those that wait for their TD come here; `received` stores the others.
                with session.order.storing():
                    await session.order.wait_described(topic.thing)
                    self._stand(session)
                    committed = self._store(session, publish, topic)
                    if committed is not None:
                        # Others wait for the same commit.
                        await asyncio.shield(committed)
            case PublishProperties():
                with session.order.storing():
                    await session.order.wait_described(topic.thing)
                    self._stand(session)
                    await self._publish_many(session, publish, topic)
            case PublishTD():
                async with session.order.describing(topic.thing):
                    self._stand(session)
                    await self._publish_td(session, publish, topic)
            case PublishBatch():
                with session.order.storing():
                    await session.order.wait_described()
                    self._stand(session)
                    await self._publish_batch(session, publish)
            case ReportStatus():
                data = _json(publish.payload)
                await session.order.wait_stored()
                self._stand(session)
                await self._handle(session, publish, Operation.REPORT_STATUS, "", topic.request_id, data)
            case MakeRequest():
                await self._request(session, publish, topic)
            case CancelRequest():
                await self._handle(session, publish, Operation.CANCEL, "", "", correlation=topic.caller_ref)
            case Replay():
                self._replay(session, publish)
            case _:
                assert_never(topic)

    def _store(self, session: ClientSession, publish: Publish, topic: ValueTopic) -> "asyncio.Future[Any] | None":
        """Give a value or event to the runtime; the future of its commit, None if there is none to wait for."""
        data = _json(publish.payload) if publish.payload else None
        return self._sink.store(self._message(session, publish, topic.operation, topic.thing_id, topic.name, data))

    async def _publish_many(self, session: ClientSession, publish: Publish, topic: PublishProperties) -> None:
        thing_id = str(TwinID(topic.agent, topic.thing))

        def message_of(name: str, value: JSONValue, shared_by: int) -> Message:
            return self._message(
                session, publish, Operation.PUBLISH_PROPERTY, thing_id, name, value, shared_by=shared_by
            )

        await store_values(read_values(publish.payload, message_of), self._sink.batch)

    async def _publish_td(self, session: ClientSession, publish: Publish, topic: PublishTD) -> None:
        thing_id = str(TwinID(topic.agent, topic.thing))
        if publish.payload:
            await self._handle(session, publish, Operation.PUBLISH_TD, thing_id, "", read_td(publish.payload))
        else:
            await self._handle(session, publish, Operation.REMOVE_TD, thing_id, "")

    async def _publish_batch(self, session: ClientSession, publish: Publish) -> None:
        account, received = session.principal.account, self._sink.clock()

        def message_of(item: Item, size: int) -> Message:
            return Message(
                operation=item.operation,
                principal=session.principal,
                thing_id=item.thing_id,
                name=item.name,
                data=item.data,
                has_data=item.has_data,
                message_id=item.message_id,
                created=item.created,
                received=received,
                size=size,
                paced=True,
                durable=publish.qos > 0,
                origin=session.origin,
            )

        batch = await read_batch(publish.payload, account, message_of)
        self._stand(session)
        result = await self._sink.batch(batch.sent_by(session.principal))
        session.tell(batch_topic(account), encode(batch.report(result)), publish.correlation)

    async def _request(self, session: ClientSession, publish: Publish, topic: MakeRequest) -> None:
        account, reference = session.principal.account, topic.caller_ref
        if publish.response_topic is not None and not is_response_topic(publish.response_topic, account):
            raise Forbidden(f"a response topic lies in inbox/{account}/")
        data = _json(publish.payload) if publish.payload else None
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
        if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after <= MAX_COUNTER:
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
            paced=True,
            durable=publish.qos > 0,
            origin=session.origin,
        )


def _json(payload: bytes) -> JSONValue:
    return decode(payload, max_bytes=MAX_MESSAGE_BYTES)


def _property(publish: Publish, name: str) -> str | None:
    return next((value for key, value in publish.user_properties if key == name), None)


def _caller_ref(topic: str, account: str) -> str | None:
    try:
        parsed: ClientTopic = parse_topic(topic, account)
    except SkepError:
        return None
    return parsed.caller_ref if isinstance(parsed, MakeRequest | CancelRequest) else None
