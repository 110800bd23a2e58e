"""The topic grammar of the MQTT binding, parsed once at the edge and printed from the same types.

Clients publish below `agents/{self}` and `req/{self}`; only the runtime writes `things` and `inbox`, so nothing reaches
a subscriber past the router. A twin `dtw:{agent}:{thing}` is spelled as two levels; names and references are
percent-encoded segments of `things.addresses`. Whose account a topic must name is checked here, before anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern

from runtime.ports import Pattern, Request
from things.addresses import Kind, TwinID, decode_segment, encode_segment, is_twin, own_twin
from things.errors import BadAddress, Forbidden
from things.identity import Principal
from things.messages import Operation
from things.names import (
    Account,
    AffordanceName,
    RequestID,
    ThingID,
    checked_account,
    checked_name,
    checked_request,
    checked_thing,
)

# ---------------------------------------------------------------- what clients publish


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """`agents/{agent}/event/{thing}/{name}`"""

    agent: Account
    thing: ThingID
    name: AffordanceName

    def __str__(self) -> str:
        return f"agents/{self.agent}/event/{self.thing}/{encode_segment(self.name)}"


@dataclass(frozen=True, slots=True)
class PublishProperty:
    """`agents/{agent}/property/{thing}/{name}`"""

    agent: Account
    thing: ThingID
    name: AffordanceName

    def __str__(self) -> str:
        return f"agents/{self.agent}/property/{self.thing}/{encode_segment(self.name)}"


@dataclass(frozen=True, slots=True)
class PublishProperties:
    """`agents/{agent}/properties/{thing}`: an object of values by name."""

    agent: Account
    thing: ThingID

    def __str__(self) -> str:
        return f"agents/{self.agent}/properties/{self.thing}"


@dataclass(frozen=True, slots=True)
class PublishTD:
    """`agents/{agent}/td/{thing}`: an empty payload removes the Thing."""

    agent: Account
    thing: ThingID

    def __str__(self) -> str:
        return f"agents/{self.agent}/td/{self.thing}"


@dataclass(frozen=True, slots=True)
class PublishBatch:
    """`agents/{agent}/batch`"""

    agent: Account

    def __str__(self) -> str:
        return f"agents/{self.agent}/batch"


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """`agents/{agent}/status/{requestID}`"""

    agent: Account
    request_id: RequestID

    def __str__(self) -> str:
        return f"agents/{self.agent}/status/{encode_segment(self.request_id)}"


@dataclass(frozen=True, slots=True)
class MakeRequest:
    """`req/{client}/{action|rpc|property}/{agent}/{thing}/{name}/{callerRef}`, and `/{token}` to confirm it: MQTT 3.1.1
    has no user properties."""

    client: str
    operation: Operation
    agent: Account
    thing: ThingID
    name: AffordanceName
    caller_ref: str
    confirmation: str | None = None

    def __str__(self) -> str:
        twin = f"{self.agent}/{self.thing}"
        word, name = _WORDS[self.operation], encode_segment(self.name)
        base = f"req/{self.client}/{word}/{twin}/{name}/{encode_segment(self.caller_ref)}"
        return base if self.confirmation is None else f"{base}/{encode_segment(self.confirmation)}"


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """`req/{client}/cancel/{callerRef}`"""

    client: str
    caller_ref: str

    def __str__(self) -> str:
        return f"req/{self.client}/cancel/{encode_segment(self.caller_ref)}"


@dataclass(frozen=True, slots=True)
class Replay:
    """`req/{client}/replay`: send statuses after a sequence number again."""

    client: str

    def __str__(self) -> str:
        return f"req/{self.client}/replay"


OtherTopic = PublishProperties | PublishTD | PublishBatch | ReportStatus | MakeRequest | CancelRequest | Replay
ClientTopic = PublishEvent | PublishProperty | OtherTopic

_OPERATIONS = {
    "action": Operation.INVOKE_ACTION,
    "rpc": Operation.CALL_RPC,
    "property": Operation.WRITE_PROPERTY,
}
_WORDS = {operation: word for word, operation in _OPERATIONS.items()} | {Operation.CANCEL: "cancel"}


def parse_topic(topic: str, account: str) -> ClientTopic:
    """What `account` means by publishing to `topic`. Raises BadAddress if it is no such topic, Forbidden if it is one
    of the runtime's or another account's."""
    levels = topic.split("/")
    root = levels[0]
    if root in ("things", "inbox") or root.startswith("$"):
        raise Forbidden(f"only the runtime publishes to {root}/")
    if root not in ("agents", "req") or len(levels) < 3:
        raise BadAddress(f"{topic[:120]!r} is no topic to publish to")
    if levels[1] != account:
        raise Forbidden(f"only {root}/{account}/ is yours to publish to")
    match levels:
        case ["agents", agent, "event", thing, name]:
            return PublishEvent(checked_account(agent), _own(agent, thing), _name(name))
        case ["agents", agent, "property", thing, name]:
            return PublishProperty(checked_account(agent), _own(agent, thing), _name(name))
        case ["agents", agent, "properties", thing]:
            return PublishProperties(checked_account(agent), _own(agent, thing))
        case ["agents", agent, "td", thing]:
            return PublishTD(checked_account(agent), _own(agent, thing))
        case ["agents", agent, "batch"]:
            return PublishBatch(checked_account(agent))
        case ["agents", agent, "status", request_id]:
            return ReportStatus(checked_account(agent), checked_request(decode_segment(request_id)))
        case ["req", _, word, agent, thing, name, reference, *token] if word in _OPERATIONS and len(token) < 2:
            twin = TwinID.of(agent, thing)
            asked = MakeRequest(account, _OPERATIONS[word], twin.account, twin.thing, _name(name), _text(reference))
            return replace(asked, confirmation=_text(token[0])) if token else asked
        case ["req", _, "cancel", reference]:
            return CancelRequest(account, _text(reference))
        case ["req", _, "replay"]:
            return Replay(account)
    raise BadAddress(f"{topic[:120]!r} is no topic to publish to")


# ---------------------------------------------------------------- what the runtime publishes


def publication_topic(twin: TwinID, kind: Kind, name: str) -> str:
    """`things/{agent}/{thing}/{kind}/{name}`, without a name for TDs."""
    base = f"things/{twin.account}/{twin.thing}/{kind.value}"
    return base if kind is Kind.TD else f"{base}/{encode_segment(name)}"


def published_series(topic: str) -> tuple[TwinID, Kind, str] | None:
    """What `publication_topic` made a topic of; None for a topic of the inbox or of the runtime's figures."""
    root, *levels = topic.split("/")
    if root != "things":
        return None
    agent, thing, kind, *name = levels
    return TwinID.of(agent, thing), Kind(kind), decode_segment(name[0]) if name else ""


def request_topic(agent: str, request: Request) -> str:
    """`inbox/{agent}/{action|rpc|property}/{thing}/{name}/{requestID}` or `inbox/{agent}/cancel/{requestID}`."""
    if request.operation is Operation.CANCEL:
        return f"inbox/{agent}/cancel/{request.request_id}"
    word, name = _WORDS[request.operation], encode_segment(request.name)
    return f"inbox/{agent}/{word}/{request.thing}/{name}/{request.request_id}"


def status_topic(account: str, caller_ref: str) -> str:
    """`inbox/{client}/status/{callerRef}`"""
    return f"inbox/{account}/status/{encode_segment(caller_ref)}"


def batch_topic(account: str) -> str:
    """`inbox/{agent}/batch`: where the result of a batch goes."""
    return f"inbox/{account}/batch"


def refused_topic(account: str) -> str:
    """`inbox/{client}/refused`: where MQTT 3.1.1 clients read why a publish was refused."""
    return f"inbox/{account}/refused"


def own_inbox(principal: Principal) -> str:
    """`inbox/{client}/`: what response topics of this client begin with (MQTT 5 response information)."""
    return f"inbox/{principal.account}/"


def is_response_topic(topic: str, account: str) -> bool:
    """Whether `topic` is one of the account's inbox where answers may go: there, and not where requests come."""
    levels = topic.split("/")
    return (
        levels[:2] == ["inbox", account]
        and len(levels) > 2
        and levels[2] not in _REQUEST_WORDS
        and "" not in levels
        and is_topic(topic)
    )


# ---------------------------------------------------------------- what clients subscribe to


@dataclass(frozen=True, slots=True)
class ThingsFilter:
    """Publications below `things/`: every pattern that the filter stands for; no two of them overlap."""

    patterns: Sequence[Pattern]


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """Part of the account's own inbox. `requests` and `reports`: whether requests for the agent, or statuses for the
    caller (also at response topics of its own choice), can match."""

    levels: tuple[str, ...]
    requests: bool
    reports: bool

    def matches(self, topic: str) -> bool:
        """Whether a topic of the inbox is meant."""
        return matches(self.levels, topic)


@dataclass(frozen=True, slots=True)
class SystemFilter:
    """Figures of the runtime below `$SYS/`, for admins."""

    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedFilter:
    """`$share/{group}/{filter}`: each publication goes to one session of the account's group."""

    group: str
    shared: ThingsFilter


Filter = ThingsFilter | InboxFilter | SystemFilter | SharedFilter

_REQUEST_WORDS = frozenset({"action", "rpc", "property", "cancel"})
_RUNTIME_WORDS = _REQUEST_WORDS | {"batch", "refused"}
"""Levels of an inbox where no status ever comes."""

_NAMED = (Kind.EVENT, Kind.PROPERTY, Kind.ACTION)


@lru_cache(maxsize=1_024)
def parse_filter(text: str, account: str) -> Filter:
    """What `account` asks for. Raises BadAddress if no topic of ours can match (so also for a wildcard at the root or
    at an account level), Forbidden for another account's topics and for what only clients write."""
    levels = tuple(text.split("/"))
    if not is_filter(text):
        raise BadAddress(f"{text[:120]!r} is not a topic filter")
    match levels:
        case ("things", *rest):
            return ThingsFilter(_patterns(text, rest))
        case ("inbox", owner, *rest) if owner not in ("+", "#"):
            if owner != account:
                raise Forbidden(f"only inbox/{account}/ is yours to read")
            return _inbox(text, levels, rest)
        case ("$SYS", *_):
            return SystemFilter(levels)
        case ("$share", group, "things", *rest) if group and "+" not in group and "#" not in group:
            return SharedFilter(group, ThingsFilter(_patterns(text, rest)))
        case ("agents" | "req", *_):
            raise Forbidden("what clients publish is not distributed; subscribe below things/ or your inbox/")
    raise BadAddress(f"nothing you may read can match {text[:120]!r}")


def is_filter(text: str) -> bool:
    """Whether wildcards stand where MQTT allows them."""
    levels = text.split("/")
    return (
        bool(text)
        and all(level in ("+", "#") or not ("+" in level or "#" in level) for level in levels)
        and "#" not in levels[:-1]
    )


def is_topic(text: str) -> bool:
    """Whether `text` can name a topic: not empty, no wildcards."""
    return bool(text) and "+" not in text and "#" not in text


def matches(levels: Sequence[str], topic: str) -> bool:
    """Whether a filter, given by its levels, matches a topic."""
    parts = topic.split("/")
    if parts[0].startswith("$") and levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(parts) or level not in ("+", parts[index]):
            # `a/#` matches `a` too: the loop then ends on the level before "#".
            return False
    return len(levels) == len(parts)


def _patterns(text: str, rest: Sequence[str]) -> Sequence[Pattern]:
    match rest:
        case ["#"]:
            return (Pattern(),)
        case [agent, "#"]:
            return (Pattern(_agent(agent)),)
        case [agent, thing, "#"] | [agent, thing, "+", "#"]:
            return (Pattern(_agent(agent), _thing(thing)),)
        case [agent, thing, ("td" | "+")] | [agent, thing, "td", "#"]:
            # `+` in the place of the kind, with nothing behind it: only TDs have as many levels.
            return (Pattern(_agent(agent), _thing(thing), Kind.TD, ""),)
        case [agent, thing, "+", name]:
            named = None if name == "+" else _name(name)
            return tuple(Pattern(_agent(agent), _thing(thing), kind, named) for kind in _NAMED)
        case [agent, thing, ("event" | "property" | "action") as kind, name]:
            return (Pattern(_agent(agent), _thing(thing), Kind(kind), None if name in ("+", "#") else _name(name)),)
        case [agent, thing, ("event" | "property" | "action") as kind, name, "#"]:
            return (Pattern(_agent(agent), _thing(thing), Kind(kind), None if name == "+" else _name(name)),)
    raise BadAddress(f"no topic can match {text[:120]!r}")


def _inbox(text: str, levels: tuple[str, ...], rest: Sequence[str]) -> InboxFilter:
    word = rest[0] if rest else ""
    if not word:
        raise BadAddress(f"no topic can match {text[:120]!r}")
    if word in ("+", "#"):
        return InboxFilter(levels, requests=True, reports=True)
    return InboxFilter(levels, requests=word in _REQUEST_WORDS, reports=word not in _RUNTIME_WORDS)


def _agent(level: str) -> str | None:
    # Thousands of filters name a few agents.
    return None if level == "+" else intern(checked_account(level))


def _thing(level: str) -> str | None:
    return None if level == "+" else checked_thing(level)


def _own(agent: str, level: str) -> ThingID:
    """The agent's own Thing, also where it is named by its twin."""
    return checked_thing(level) if not is_twin(level) else TwinID.parse(own_twin(agent, level)).thing


def _name(level: str) -> AffordanceName:
    return checked_name(decode_segment(level) if level else level)


def _text(level: str) -> str:
    """What a caller chose itself, a reference or a token: it stands where a name does, and is held to the same."""
    return _name(level)
