"""What conditions can ask about: attributes of a decision, and which of them are known before a message exists."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from authz.roles import owner_of
from things.addresses import Address
from things.decisions import Context
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.pointers import resolved

STATIC = frozenset({"sender", "type", "role", "thing", "agent", "kind", "name", "operation"})
CONDITIONAL = frozenset({"thingType", "binding", "source", "time", "date", "weekday", "rate", "thingRate", "payload"})

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Missing(Enum):
    """Why an attribute has no value."""

    UNKNOWN = "unknown"
    """It needs the context of a message, and there is none."""
    ABSENT = "absent"
    """This message has none."""


UNKNOWN = Missing.UNKNOWN
ABSENT = Missing.ABSENT


def is_attribute(name: str) -> bool:
    """Whether conditions may name it; `payload/member/0` points into the payload."""
    return name in STATIC or name in CONDITIONAL or name.startswith("payload/")


class Namesake(str):
    """The name of an account where another one of that name is meant: it fits patterns, and equals nothing."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is known even where there is no message: the time, and the Thing's types."""

    now: int
    thing_types: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One decision's attributes; `context` is a message's, a moment without one, or None while compiling."""

    principal: Principal
    operation: Operation
    address: Address
    context: Context | Moment | None
    is_namesake: bool = False
    """Whether the policies that ask mean another account by the caller's name."""

    def value(self, attribute: str) -> JSONValue | Missing:
        """The attribute's value; lists have any-of meaning."""
        match attribute:
            case "sender":
                return Namesake(self.principal.account) if self.is_namesake else self.principal.account
            case "type":
                return str(self.principal.type)
            case "role":
                return self.principal.role
            case "thing":
                return self.address.thing_id
            case "agent":
                owner = owner_of(self.address.thing_id)
                return ABSENT if owner is None else owner
            case "kind":
                return ABSENT if self.address.kind is None else str(self.address.kind)
            case "name":
                return ABSENT if self.address.name is None else self.address.name
            case "operation":
                return str(self.operation)
            case _:
                return UNKNOWN if self.context is None else _of_context(self.context, attribute)


def _of_context(context: Context | Moment, attribute: str) -> JSONValue | Missing:
    match attribute:
        case "thingType":
            return UNKNOWN if context.thing_types is None else list(context.thing_types)
        case "time":
            return f"{_at(context):%H:%M:%S}"
        case "date":
            return f"{_at(context):%Y-%m-%d}"
        case "weekday":
            return _WEEKDAYS[_at(context).weekday()]
    if isinstance(context, Moment):
        return UNKNOWN
    match attribute:
        case "binding":
            return context.binding
        case "source":
            # A local socket has no address; it counts as the machine itself.
            return context.source if context.source is not None else "127.0.0.1"
        case "rate":
            return context.counters.get("account", 0.0)
        case "thingRate":
            return context.counters.get("thing", 0.0)
        case "payload":
            return context.payload
        case _:
            found: JSONValue | Missing = resolved(context.payload, attribute.removeprefix("payload"), ABSENT)
            return found


def _at(context: Context | Moment) -> datetime:
    return datetime.fromtimestamp(context.now / 1_000_000, UTC)


def is_within(source: object, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Whether a source address lies in a network; an IPv4 address in IPv6 spelling is itself."""
    try:
        address = ipaddress.ip_address(str(source).partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version == network.version and address in network
