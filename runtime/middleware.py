"""The layers every message passes, outermost first: trace, rate, authorize, validate.

Repeated requests are recognised where they are stored (ledger, history), so that a repeat is judged like the first.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from runtime.metrics import Metrics
from runtime.ports import Authorizer, Check, Directory, Handler
from runtime.rate import Rates
from runtime.router import JUDGED
from runtime.services import Services, is_service
from things.addresses import Address, Kind, TwinID
from things.decisions import CONFIRM, LOG, Context, Decision
from things.delivery import DeliveryStatus
from things.errors import Forbidden, Invalid, SkepError, UnknownName, UnknownThing
from things.messages import Message, Operation

log = logging.getLogger(__name__)

KIND_OF: Mapping[Operation, Kind] = {
    Operation.PUBLISH_EVENT: Kind.EVENT,
    Operation.PUBLISH_PROPERTY: Kind.PROPERTY,
    Operation.PUBLISH_TD: Kind.TD,
    Operation.REMOVE_TD: Kind.TD,
    Operation.INVOKE_ACTION: Kind.ACTION,
    Operation.WRITE_PROPERTY: Kind.PROPERTY,
    Operation.CALL_RPC: Kind.ACTION,
}
PUBLISHES = frozenset({Operation.PUBLISH_EVENT, Operation.PUBLISH_PROPERTY})


@dataclass(frozen=True, slots=True)
class Trace:
    """Counts every message; logs refusals at info."""

    metrics: Metrics

    def __call__(self, message: Message, next_: Handler) -> Awaitable[DeliveryStatus]:
        try:
            answer = next_(message)
        except SkepError as error:
            self._refused(message, error)
            raise
        if answer is JUDGED:
            self.metrics.handled[message.operation] += 1
            return answer
        return self._answered(message, answer)

    def rest(self, message: Message, next_: Check) -> Check:
        operation, handled, refused = message.operation, self.metrics.handled, self._refused

        def check(message: Message) -> None:
            try:
                next_(message)
            except SkepError as error:
                refused(message, error)
                raise
            handled[operation] += 1

        return check

    async def _answered(self, message: Message, answer: Awaitable[DeliveryStatus]) -> DeliveryStatus:
        try:
            status = await answer
        except SkepError as error:
            self._refused(message, error)
            raise
        self.metrics.handled[message.operation] += 1
        return status

    def _refused(self, message: Message, error: SkepError) -> None:
        self.metrics.refused[message.operation, error.code] += 1
        log.info(
            "refused",
            extra={
                "code": error.code,
                "operation": message.operation,
                "sender": message.sender_id,
                "thing": message.thing_id,
                "affordance": message.name,
                "binding": message.origin.binding,
            },
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """Refuses what goes over the sender's budget of messages."""

    rates: Rates

    def __call__(self, message: Message, next_: Handler) -> Awaitable[DeliveryStatus]:
        self.rates.spend(message)
        return next_(message)

    def rest(self, message: Message, next_: Check) -> Check:
        spend = self.rates.spend

        def check(message: Message) -> None:
            spend(message)
            next_(message)

        return check


@dataclass(slots=True)
class Authorize:
    """Asks the one decision function. What the sender may not even read looks unknown."""

    authorizer: Authorizer
    directory: Directory
    services: Services
    clock: Callable[[], int]
    rates: Rates
    confirm: Callable[[Message, Decision], None]
    """Lets a message pass that its caller has confirmed; raises ConfirmationRequired for any other."""

    def __call__(self, message: Message, next_: Handler) -> Awaitable[DeliveryStatus]:
        operation, address = self._asked(message)
        context = self._context(message, address) if self.authorizer.is_conditional else None
        decision = self.authorizer.decide(message.principal, operation, address, context)
        if not decision.allowed:
            self._refuse(message, address)
        if decision.obligations:
            self._oblige(message, decision)
        if context is not None:
            self.rates.passed(address.thing_id)
        return next_(message)

    def rest(self, message: Message, next_: Check) -> Check | None:
        if self.authorizer.is_conditional:
            return None
        decision = self.authorizer.decide(message.principal, *self._asked(message))
        return next_ if decision.allowed and not decision.obligations else None

    def _asked(self, message: Message) -> tuple[Operation, Address]:
        operation = message.operation
        if operation is Operation.PUBLISH_EVENT or operation is Operation.PUBLISH_PROPERTY:
            return operation, Address(message.thing_id, KIND_OF[operation], message.name or None)
        if operation in (Operation.CALL_RPC, Operation.INVOKE_ACTION):
            service = self.services.get(message.thing_id)
            if service is not None:
                return service.requirement(message.name, message.data if message.has_data else None)
        if operation in (Operation.REPORT_STATUS, Operation.CANCEL):
            # About the sender's own requests; whose a request is, its handler knows.
            return operation, Address(str(TwinID(message.sender_id, "requests")))
        name = message.name or None
        return operation, Address(message.thing_id, KIND_OF.get(operation), name)

    def _context(self, message: Message, address: Address) -> Context:
        entry = self.directory.get(address.thing_id)
        return Context(
            now=self.clock(),
            payload=message.data,
            binding=message.origin.binding,
            source=message.origin.source,
            thing_types=entry.td.types if entry else (),
            counters=self.rates.counters(message.principal, address.thing_id),
        )

    def _refuse(self, message: Message, address: Address) -> None:
        publishes = message.operation in (
            Operation.PUBLISH_EVENT,
            Operation.PUBLISH_PROPERTY,
            Operation.PUBLISH_TD,
            Operation.REMOVE_TD,
            Operation.REPORT_STATUS,
            Operation.CANCEL,
            # To an address of the messaging node, which is no Thing to be hidden.
            Operation.SEND,
        )
        if not publishes and address.thing_id:
            known = is_service(address.thing_id) or self.directory.get(address.thing_id) is not None
            readable = self.authorizer.decide(message.principal, Operation.READ, Address(address.thing_id)).allowed
            if message.principal.role != "none" and (not known or not readable):
                raise UnknownThing(address.thing_id)
        raise Forbidden(f"{message.sender_id!r} may not {message.operation} {address.thing_id or 'this'}".strip())

    def _oblige(self, message: Message, decision: Decision) -> None:
        unknown = set(decision.obligations) - {LOG, CONFIRM}
        if unknown:
            raise Forbidden(f"rule {decision.rule!r} asks for {', '.join(sorted(unknown))} first")
        if CONFIRM in decision.obligations:
            self.confirm(message, decision)
        if LOG in decision.obligations:
            log.warning(
                "policy",
                extra={
                    "rule": decision.rule,
                    "operation": message.operation,
                    "sender": message.sender_id,
                    "thing": message.thing_id,
                    "affordance": message.name,
                },
            )


@dataclass(slots=True)
class Validate:
    """Checks a message against the Thing's TD.

    Requests must name an affordance and fit its schema. A published value of the wrong type is refused; one of the
    right type outside its range is true all the same, so it is stored with a quality flag; a name the TD does not
    declare is stored and flagged too.
    """

    directory: Directory

    def __call__(self, message: Message, next_: Handler) -> Awaitable[DeliveryStatus]:
        match message.operation:
            case Operation.PUBLISH_EVENT | Operation.PUBLISH_PROPERTY:
                self._published(message)
            case Operation.INVOKE_ACTION | Operation.WRITE_PROPERTY:
                self._requested(message)
            case Operation.CALL_RPC if not is_service(message.thing_id):
                self._requested(message)
            case _:
                pass
        return next_(message)

    def rest(self, message: Message, next_: Check) -> Check | None:
        entry = self.directory.get(message.thing_id)
        if entry is None or message.operation not in PUBLISHES:
            return None
        kind, name, td, judge = KIND_OF[message.operation], message.name, entry.td, self._published
        affordance = td.affordance(kind, name)
        schema = affordance.schema_validator if affordance is not None else None
        if schema is None:
            return next_
        is_valid, may_be_empty = schema.is_valid, td.value_type(kind, name) in (None, "null")

        def check(message: Message) -> None:
            if not is_valid(message.data) or not (message.has_data or may_be_empty):
                # Refused, or out of its range.
                judge(message)
            next_(message)

        return check

    def _published(self, message: Message) -> None:
        entry = self.directory.get(message.thing_id)
        if entry is None:
            raise UnknownThing(message.thing_id)
        kind = KIND_OF[message.operation]
        if not message.has_data and entry.td.value_type(kind, message.name) not in (None, "null"):
            raise Invalid(f"{kind} {message.name!r} needs a value")
        try:
            if kind is Kind.EVENT:
                entry.td.check_event(message.name, message.data)
            else:
                entry.td.check_property(message.name, message.data)
        except Invalid:
            if not _fits_type(message.data, entry.td.value_type(kind, message.name)):
                raise

    def _requested(self, message: Message) -> None:
        entry = self.directory.get(message.thing_id)
        if entry is None or entry.agent is None:
            raise UnknownThing(message.thing_id)
        try:
            if message.operation is Operation.WRITE_PROPERTY:
                if not message.has_data:
                    raise Invalid(f"a write of {message.name!r} needs a value")
                entry.td.check_property_write(message.name, message.data)
            else:
                entry.td.check_action_input(message.name, message.data, message.has_data)
        except UnknownName as error:
            raise UnknownName(message.thing_id, KIND_OF[message.operation], message.name) from error


def _fits_type(value: object, type_: str | None) -> bool:
    match type_:
        case "number" | "integer":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case _:
            # Booleans have no range, and what is wrong inside an object or array is a matter of its shape.
            return False
