"""Entries of the registry as values: what they are found by, and how they are told."""

from collections.abc import Mapping
from typing import Any

from bindings.messaging_node.connectors import Body
from bindings.messaging_node.registrants import OWNER, PRINCIPAL, Entry
from bindings.messaging_node.sessions import NodeSession
from things.envelopes import MAX_ADDRESS_CHARS, refusal, scheme_of
from things.errors import Invalid
from things.jsontext import encode
from things.messages import JSONValue

_HYPERTY_SCHEMES = frozenset({"user", "user-guid", "hyperty", "hyperty-runtime"})
REGISTERED_BY = "registeredBy"
"""The member that names the account which made an entry; the node writes it whenever an entry is told."""
OWN = (OWNER, PRINCIPAL, "_until", "_session", "_thing", REGISTERED_BY)
"""Members of an entry that are the node's own and never told."""


def listing(found: Mapping[str, Entry], one: str | None = None) -> Body:
    """Live entries if there are any; else what is known, as temporarily unavailable."""
    live = {url: entry for url, entry in found.items() if entry["status"] in ("live", "created")}
    if one is not None:
        entry = found[one]
        return {"code": 200, "value": entry} if live else {**refusal(408, "Temporarily Unavailable"), "value": entry}
    if live:
        return {"code": 200, "value": dict(live)}
    return {**refusal(408, "Temporarily Unavailable"), "value": dict(found)}


def session_of(caller: NodeSession) -> str:
    """The session an entry lives with; what came by a single exchange lives for itself."""
    return caller.session_id if caller.is_kept else ""


def size_of(entry: Entry) -> int:
    """Bytes that count against limits: not what the node notes of whom it came from."""
    return len(encode({name: member for name, member in entry.items() if name != PRINCIPAL}))


def as_shown(entry: Entry) -> Entry:
    shown = {name: member for name, member in entry.items() if name not in OWN}
    shown[REGISTERED_BY] = entry[OWNER]
    return shown


def checked_status(value: JSONValue) -> str:
    status = str(value).lower()
    if status == "connected":
        return "live"  # an earlier word for it
    if status not in ("created", "live", "disconnected", "dead"):
        raise Invalid("`status` is created, live, disconnected or dead")
    return status


def resource_of(body: Mapping[str, JSONValue]) -> str:
    resource = body.get("resource")
    if not isinstance(resource, str) or not 0 < len(resource) <= MAX_ADDRESS_CHARS:
        raise Invalid("`resource` says what is looked for")
    return resource


def last_part(resource: str) -> str:
    """`/hyperty/user/<value>`, `/<type>/<value>` → value; anything else is its own."""
    if not resource.startswith("/"):
        return resource
    steps = resource.split("/", 3)
    if len(steps) == 4 and steps[2] in ("user", "url", "name", "reporter", "guid", "idp-identifier", "userprofile"):
        return steps[3]
    return resource.split("/", 2)[2] if len(steps) > 2 else resource


def terms_of(entry: Mapping[str, Any]) -> set[str]:
    """Everything an entry is found by."""
    identity = entry.get("identity")
    known = identity if isinstance(identity, dict) else {}
    user = entry.get("user")
    found = [
        *(entry.get(name) for name in ("url", "user", "guid", "name", "reporter")),
        known.get("email"),
        known.get("username"),
        user.rpartition("/")[2] if isinstance(user, str) and user.startswith("user://") else None,
    ]
    return {term for term in found if isinstance(term, str) and term}


def is_of_kind(entry: Entry, resource: str) -> bool:
    is_hyperty = scheme_of(str(entry["url"])) in _HYPERTY_SCHEMES
    return not resource.startswith("/dataobject/" if is_hyperty else "/hyperty/")


def fits(entry: Entry, criteria: Mapping[str, JSONValue]) -> bool:
    for name in ("resources", "dataSchemes"):
        wanted = criteria.get(name)
        if wanted is None:
            continue
        has = entry.get(name)
        listed = wanted if isinstance(wanted, list) else [wanted]
        if not isinstance(has, list) or not all(one in has for one in listed):
            return False
    scheme = criteria.get("scheme")
    if isinstance(scheme, str) and scheme_of(str(entry["url"])) != scheme:
        return False
    reporter = criteria.get("reporter")
    return reporter is None or entry.get("reporter") == reporter
