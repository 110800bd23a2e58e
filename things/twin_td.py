"""The Thing Description that consumers get of a twin: derived, never stored, and never the device's own.

What an agent published tells what the Thing is; how to reach it is this runtime's business. So the derived TD has the
twin's id, our forms and our security, only what the asking consumer may use, and a word on presence and history; the
agent's other terms stay as they are and in their order. Everything by which a device could be reached directly goes:
forms, base, security definitions, relative links, variables of its URIs. Pure: clock, rights and addresses come in.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from things.addresses import Kind, TwinID, encode_segment
from things.findings import is_relative
from things.identity import RESERVED_ACCOUNTS
from things.messages import JSONValue, Operation
from things.td import ThingDescription
from things.td_rules import TD_10, TD_11
from things.times import rfc3339
from things.vocabulary import NAMESPACE, PREFIX, Term

Forms = Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]
"""Forms by ("property" | "action" | "event", name) and, for the Thing as a whole, ("thing", "").

Each form has an absolute `href` and a list of `op`; it may have any other member of forms. A provider gives all the
operations it serves and leaves rights to this module, which takes out what the consumer may not do. Variables in a
`href` (`{?ticket}`) are declared by this module, beside the forms that use them."""

FormsOf = Callable[[ThingDescription, TwinID], Forms]
"""A protocol binding's `forms`: given the agent's TD and the twin's id. It is asked a second time with a TD that holds
the properties of presence only; what it says of ("thing", "") then is ignored."""

Allowed = Callable[[Kind, str, Operation], bool]
"""Whether the consumer may do this with the affordance: read, observe, write_property, invoke_action, subscribe,
history."""

_OPERATIONS = {
    "readproperty": Operation.READ,
    "writeproperty": Operation.WRITE_PROPERTY,
    "observeproperty": Operation.OBSERVE,
    "unobserveproperty": Operation.OBSERVE,
    "invokeaction": Operation.INVOKE_ACTION,
    "queryaction": Operation.INVOKE_ACTION,
    "cancelaction": Operation.INVOKE_ACTION,
    "subscribeevent": Operation.SUBSCRIBE,
    "unsubscribeevent": Operation.SUBSCRIBE,
    "readallproperties": Operation.READ,
    "readmultipleproperties": Operation.READ,
    "writeallproperties": Operation.WRITE_PROPERTY,
    "writemultipleproperties": Operation.WRITE_PROPERTY,
    "observeallproperties": Operation.OBSERVE,
    "unobserveallproperties": Operation.OBSERVE,
    "queryallactions": Operation.INVOKE_ACTION,
    "subscribeallevents": Operation.SUBSCRIBE,
    "unsubscribeallevents": Operation.SUBSCRIBE,
}
_KINDS = {"properties": Kind.PROPERTY, "actions": Kind.ACTION, "events": Kind.EVENT}
SHOWN_BY: Mapping[Kind, Sequence[Operation]] = {
    Kind.PROPERTY: (Operation.READ, Operation.OBSERVE, Operation.WRITE_PROPERTY),
    Kind.ACTION: (Operation.INVOKE_ACTION,),
    Kind.EVENT: (Operation.SUBSCRIBE,),
}
"""The rights of which one shows an affordance to a consumer, as far as its definition leaves them any meaning."""
_OURS = frozenset(
    {"@context", "id", "title", "description", "base", "forms", "links", "security", "securityDefinitions"}
    | {"properties", "actions", "events", "uriVariables", "profile", "registration"}
    | {Term.ONLINE.value, Term.LAST_SEEN.value, Term.AGENT.value}
)
_DEVICES_OWN = frozenset({"forms", "uriVariables"})
"""Members of an affordance that only say how to reach the device."""
_PREFIXES = {
    "htv": "http://www.w3.org/2011/http#",
    "mqv": "https://www.w3.org/2019/wot/mqtt#",
}
DISCOVERY = "https://www.w3.org/2022/wot/discovery"
_TD_JSON = "application/td+json"
_VARIABLES = re.compile(r"\{[?&]?([A-Za-z0-9_,]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinSecurity:
    """The security of this runtime as a TD says it: definitions by name, and the names that hold for the Thing."""

    definitions: Mapping[str, Mapping[str, JSONValue]]
    names: Sequence[str]


NO_OVERLAY: Mapping[str, JSONValue] = {}


def twin_td(
    td: ThingDescription,
    twin: TwinID,
    forms_by_protocol: Mapping[str, FormsOf],
    security: TwinSecurity,
    *,
    allowed: Allowed,
    online: bool,
    last_seen: int | None,
    overlay: Mapping[str, JSONValue] = NO_OVERLAY,
    http_base: str | None = None,
    profiles: Sequence[str] = (),
) -> dict[str, Any]:
    """The TD of `twin` for one consumer.

    `forms_by_protocol` holds the providers whose forms are wanted, in the order in which clients should try them; a
    variant for one protocol is this function called with that provider and a fitting `security`. `last_seen` is µs UTC.
    `overlay` replaces `title` and `description`. With `http_base` (`https://host:port`), links lead to history and
    requests, and to the variant that follows W3C profiles; that variant names them (`profiles`). Whether the consumer
    may know the Thing at all is decided before. What is returned shares members with `td.document`: encode it, do not
    change it.
    """
    document = td.document
    trim = _Trim(allowed, is_synchronous=twin.account in RESERVED_ACCOUNTS)
    presence = presence_names(td)
    told = _Told(
        [forms_of(td, twin) for forms_of in forms_by_protocol.values()],
        [forms_of(_presence_td(*presence), twin) for forms_of in forms_by_protocol.values()],
    )
    affordances = {
        plural: trim.affordances(kind, document.get(plural, {}), told.forms) for plural, kind in _KINDS.items()
    }
    affordances["properties"] |= trim.affordances(
        Kind.PROPERTY, _presence_td(*presence).document["properties"], told.presence
    )
    whole = trim.forms(("thing", ""), told.forms, trim.any_of)
    result = _head(document, _context(document, trim.prefixes), twin, overlay)
    result[Term.ONLINE.value] = online
    if last_seen is not None:
        result[Term.LAST_SEEN.value] = rfc3339(last_seen)
    if profiles:
        result["profile"] = list(profiles)
    result["securityDefinitions"] = {name: dict(scheme) for name, scheme in security.definitions.items()}
    result["security"] = list(security.names)
    result |= {plural: held for plural, held in affordances.items() if held}
    if whole:
        result["forms"] = whole
        # For these alone: variables of affordances are declared there, since some clients read them nowhere else.
        result |= _declared_variables(whole)
    links = [*_kept_links(document), *_links(td, twin, http_base, trim)]
    if http_base is not None and not profiles:
        links.append({"rel": "alternate", "href": f"{_address(http_base, twin)}?forms=profile", "type": _TD_JSON})
    if links:
        result["links"] = links
    return result


def told_of(document: Mapping[str, Any], twin: TwinID, overlay: Mapping[str, JSONValue] = NO_OVERLAY) -> dict[str, Any]:
    """What the agent's TD tells of the Thing itself, to whoever may see all of it: `twin_td` without anything that
    hangs on the consumer, its rights, our addresses or the present."""
    result = _head(document, document.get("@context"), twin, overlay)
    for plural in _KINDS:
        if plural in document:
            result[plural] = {name: _without_devices_own(one) for name, one in document[plural].items()}
    links = _kept_links(document)
    return result | ({"links": links} if links else {})


def presence_names(td: ThingDescription) -> tuple[str, str]:
    """Under which property names a twin tells whether it is online and when it was last seen: the plain ones, or ours
    where the TD has these names for something of its own."""
    own = td.properties
    return (
        Term.ONLINE.value if "online" in own else "online",
        Term.LAST_SEEN.value if "lastSeen" in own else "lastSeen",
    )


@dataclass(slots=True)
class _Told:
    """The providers' forms, for the TD's own affordances and for those of presence."""

    forms: list[Forms]
    presence: list[Forms]


@dataclass(slots=True)
class _Trim:
    """The consumer's rights, and which operations turned out to be possible at all."""

    allowed: Allowed
    is_synchronous: bool
    """Of a built-in service, whose actions are answered with their output; others are answered before the device has
    acted."""
    any_of: set[Operation] = field(default_factory=set)
    readable: list[tuple[Kind, str]] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    """Prefixes of terms in our forms."""

    def affordances(
        self, kind: Kind, definitions: Mapping[str, dict[str, Any]], told: Sequence[Forms]
    ) -> dict[str, dict[str, Any]]:
        """The affordances that the consumer may use in some way, with our forms."""
        held: dict[str, dict[str, Any]] = {}
        for name, definition in definitions.items():
            rights = shows(definition, {each for each in SHOWN_BY[kind] if self.allowed(kind, name, each)})
            if not rights:
                continue
            self.any_of |= rights
            if rights & {Operation.READ, Operation.SUBSCRIBE}:
                self.readable.append((kind, name))
            forms = self.forms((kind.value, name), told, rights)
            if told and not forms:
                continue  # a variant for one protocol holds what that protocol can do
            affordance = _without_devices_own(definition)
            if kind is Kind.PROPERTY:
                _mark(affordance, rights)
            elif kind is Kind.ACTION:
                affordance["synchronous"] = self.is_synchronous
            affordance |= _declared_variables(forms)
            affordance["forms"] = forms
            held[name] = affordance
        return held

    def forms(self, key: tuple[str, str], told: Sequence[Forms], rights: set[Operation]) -> list[dict[str, Any]]:
        """Our forms for `key`, each with those of its operations that `rights` permit."""
        permitted = _permitted(frozenset(rights))
        result: list[dict[str, Any]] = []
        for forms in told:
            for form in forms.get(key, ()):
                given = form.get("op")
                if given and isinstance(given, list) and permitted.issuperset(given):
                    result.append(form)
                else:
                    ops = given if isinstance(given, list) else [given]
                    kept = [op for op in ops if op in permitted]
                    if not kept:
                        continue
                    result.append({**form, "op": kept})
                self.prefixes |= _prefixes(tuple(form))
        return result


@lru_cache(maxsize=256)
def _permitted(rights: frozenset[Operation]) -> frozenset[str]:
    return frozenset(op for op, operation in _OPERATIONS.items() if operation in rights)


def shows(definition: Mapping[str, Any], rights: set[Operation]) -> set[Operation]:
    """Those of a consumer's rights to an affordance that can be used at all; without one it is not shown."""
    left = set(rights)
    if definition.get("readOnly") is True:
        left.discard(Operation.WRITE_PROPERTY)
    if definition.get("writeOnly") is True:
        left -= {Operation.READ, Operation.OBSERVE}
    return left


def _declared_variables(forms: Sequence[Mapping[str, JSONValue]]) -> dict[str, Any]:
    """The member that declares the variables in the addresses of forms; none if they have none."""
    names = [name for form in forms for name in _variables(str(form["href"]))]
    return {"uriVariables": {name: {"type": "string"} for name in names}} if names else {}


def _variables(href: str) -> Sequence[str]:
    if "{" not in href:
        return ()
    return [name for names in _VARIABLES.findall(href) for name in names.split(",") if name]


@lru_cache(maxsize=256)
def _prefixes(members: tuple[str, ...]) -> frozenset[str]:
    return frozenset(member.partition(":")[0] for member in members if ":" in member)


def _mark(affordance: dict[str, Any], rights: set[Operation]) -> None:
    """Say of a property what this consumer may do."""
    if Operation.WRITE_PROPERTY not in rights:
        affordance["readOnly"] = True
    elif not rights & {Operation.READ, Operation.OBSERVE}:
        affordance["writeOnly"] = True
    affordance["observable"] = Operation.OBSERVE in rights


def _context(document: Mapping[str, Any], prefixes: set[str]) -> list[Any]:
    """Both versions' contexts, 1.0 first: some clients know that one only, and none minds the other. That of WoT
    Discovery is for the registration which a directory adds."""
    given = document.get("@context")
    theirs = [item for item in (given if isinstance(given, list) else [given]) if item not in (TD_10, TD_11, DISCOVERY)]
    ours = {PREFIX: NAMESPACE} | {prefix: uri for prefix, uri in _PREFIXES.items() if prefix in prefixes}
    return [TD_10, TD_11, DISCOVERY, ours, *(item for item in _without(theirs, ours) if item is not None)]


def _without(theirs: Sequence[Any], ours: Mapping[str, str]) -> Iterator[Any]:
    """Their contexts without the prefixes that ours define alike."""
    mappings = [item for item in theirs if isinstance(item, dict)]
    twice = {prefix for prefix, uri in ours.items() if all(mapping.get(prefix, uri) == uri for mapping in mappings)}
    for item in theirs:
        if isinstance(item, dict) and twice & item.keys():
            item = {name: value for name, value in item.items() if name not in twice}
            if not item:
                continue
        yield item


def _head(
    document: Mapping[str, Any], context: object, twin: TwinID, overlay: Mapping[str, JSONValue]
) -> dict[str, Any]:
    """The Thing itself: its titles, and the agent's own terms in their order."""
    result: dict[str, Any] = {"@context": context, "id": str(twin)}
    result |= _titles(document, overlay)
    result |= {name: value for name, value in document.items() if name not in _OURS and name not in result}
    if overlay.get("title") is not None:
        result.pop("titles", None)
    if overlay.get("description") is not None:
        result.pop("descriptions", None)
    result[Term.AGENT.value] = twin.account
    return result


def _without_devices_own(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in definition.items() if member not in _DEVICES_OWN}


def _titles(document: Mapping[str, Any], overlay: Mapping[str, JSONValue]) -> dict[str, Any]:
    title, description = overlay.get("title"), overlay.get("description")
    result: dict[str, Any] = {"title": document["title"] if title is None else title}
    if description is not None or "description" in document:
        result["description"] = document["description"] if description is None else description
    return result


def _kept_links(document: Mapping[str, Any]) -> list[Any]:
    """Links that do not lead to the device: relative ones do, and those to hosts where it has forms."""
    links = document.get("links", ())
    if not links:
        return []
    hosts = {_host(href) for href in _device_addresses(document)} - {None}
    return [link for link in links if not is_relative(link["href"]) and _host(link["href"]) not in hosts]


def _device_addresses(document: Mapping[str, Any]) -> Iterator[str]:
    yield document.get("base", "")
    affordances = (one for plural in _KINDS for one in document.get(plural, {}).values())
    for holder in (document, *affordances):
        for form in holder.get("forms", ()):
            yield form["href"]


def _host(address: str) -> str | None:
    """The host that an address names; None for what names none, such as a URN or a template."""
    try:
        return urlsplit(address).hostname or None
    except ValueError:
        return None


def _links(td: ThingDescription, twin: TwinID, http_base: str | None, trim: _Trim) -> list[dict[str, str]]:
    links = []
    if td.id is not None:
        links.append({"rel": Term.SOURCE_ID.value, "href": td.id})
    if http_base is None:
        return links
    if any(trim.allowed(kind, name, Operation.HISTORY) for kind, name in trim.readable):
        href = f"{_address(http_base, twin)}/history"
        links.append({"rel": Term.HISTORY.value, "href": href, "type": "application/json"})
    if trim.any_of & {Operation.INVOKE_ACTION, Operation.WRITE_PROPERTY}:
        href = f"{http_base}/requests?thing={encode_segment(str(twin))}"
        links.append({"rel": Term.REQUESTS.value, "href": href, "type": "application/json"})
    return links


def _address(http_base: str, twin: TwinID) -> str:
    return f"{http_base}/things/{encode_segment(str(twin))}"


@lru_cache(maxsize=4)
def _presence_td(online: str, last_seen: str) -> ThingDescription:
    return ThingDescription.of(
        {
            "@context": [TD_11, {PREFIX: NAMESPACE}],
            "title": "Presence",
            "properties": {
                online: {
                    "@type": Term.ONLINE.value,
                    "title": "Online",
                    "description": "Whether the agent of the Thing is connected.",
                    "type": "boolean",
                    "readOnly": True,
                },
                last_seen: {
                    "@type": Term.LAST_SEEN.value,
                    "title": "Last seen",
                    "description": "When the agent of the Thing was last heard of.",
                    "type": "string",
                    "format": "date-time",
                    "readOnly": True,
                },
            },
        },
        agent=True,
    )
