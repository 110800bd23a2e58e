"""The checks that every message passes, in this order: rate, rights, Thing Description.

Repeated requests are recognised where they are stored (ledger, history), so that a repeat is judged like the first.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.admission.rate import Rates
from runtime.ports import Authorizer, Directory, Test
from runtime.registry import Services
from things.addresses import TWIN_PREFIX, Address, Kind
from things.decisions import CONFIRM, LOG, Context, Decision
from things.errors import Forbidden, Invalid, UnknownName, UnknownThing
from things.messages import Message, Operation
from things.service_ids import is_service

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
class RateCheck:
    """Refuses what goes over the sender's budget of messages."""

    rates: Rates

    def __call__(self, message: Message) -> None:
        self.rates.spend(message)

    def remaining(self, message: Message) -> Sequence[Test]:
        return (self.rates.spend,)


@dataclass(slots=True)
class RightsCheck:
    """Asks the one decision function. What the sender may not even read looks unknown."""

    authorizer: Authorizer
    directory: Directory
    services: Services
    clock: Callable[[], int]
    rates: Rates
    confirm: Callable[[Message, Decision], None]
    """Lets a message pass that its caller has confirmed; raises ConfirmationRequired for any other."""

    def __call__(self, message: Message) -> None:
        operation, address = self._asked(message)
        context = self._context(message, address) if self.authorizer.is_conditional else None
        decision = self.authorizer.decide(message.principal, operation, address, context)
        if not decision.allowed:
            self._refuse(message, address)
        if decision.obligations:
            self._oblige(message, decision)
        if context is not None:
            self.rates.passed(address.thing_id)

    def remaining(self, message: Message) -> Sequence[Test] | None:
        if self.authorizer.is_conditional:
            return None
        decision = self.authorizer.decide(message.principal, *self._asked(message))
        return () if decision.allowed and not decision.obligations else None

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
            return operation, Address(f"{TWIN_PREFIX}{message.sender_id}:requests")
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
class DescriptionCheck:
    """Checks a message against the Thing's TD.

    Requests must name an affordance and fit its schema. A published value of the wrong type is refused; one of the
    right type outside its range is true all the same, so it is stored with a quality flag; a name the TD does not
    declare is stored and flagged too.
    """

    directory: Directory

    def __call__(self, message: Message) -> None:
        match message.operation:
            case Operation.PUBLISH_EVENT | Operation.PUBLISH_PROPERTY:
                self._published(message)
            case Operation.INVOKE_ACTION | Operation.WRITE_PROPERTY:
                self._requested(message)
            case Operation.CALL_RPC if not is_service(message.thing_id):
                self._requested(message)
            case _:
                pass

    def remaining(self, message: Message) -> Sequence[Test] | None:
        entry = self.directory.get(message.thing_id)
        if entry is None or message.operation not in PUBLISHES:
            return None
        kind, name, td = KIND_OF[message.operation], message.name, entry.td
        affordance = td.affordance(kind, name)
        schema = affordance.schema_validator if affordance is not None else None
        may_be_empty = _may_be_empty(kind, td.value_type(kind, name))
        if schema is None:
            return () if may_be_empty else (_has_data,)
        is_valid = schema.is_valid

        def fits(message: Message) -> None:
            if not is_valid(message.data) or not (message.has_data or may_be_empty):
                # Refused, or out of its range.
                self._published(message)

        return (fits,)

    def _published(self, message: Message) -> None:
        entry = self.directory.get(message.thing_id)
        if entry is None:
            raise UnknownThing(message.thing_id)
        kind = KIND_OF[message.operation]
        if not _may_be_empty(kind, entry.td.value_type(kind, message.name)):
            _has_data(message)
        entry.td.check_published(kind, message.name, message.data)

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


def _may_be_empty(kind: Kind, type_: str | None) -> bool:
    """Whether a publication may come without data: an event whose type allows it; a property is nothing without."""
    return kind is Kind.EVENT and type_ in (None, "null")


def _has_data(message: Message) -> None:
    if not message.has_data:
        raise Invalid(f"{KIND_OF[message.operation]} {message.name!r} needs a value")
