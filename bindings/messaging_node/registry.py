"""The domain registry at `domain://registry.{D}`: hyperties and data objects by user, guid, name, address and kind.

Entries outlive their sessions until they expire. One that is known but not live is told apart from one that is not
known: 408 with the entry, 404 without. Things of the directory are found by their addresses like any data object.
Changes of status go to whoever subscribed to `<url>/registration`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from bindings.messaging_node.connectors import OK, Body
from bindings.messaging_node.ownership import Ownership
from bindings.messaging_node.quota import Quota
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import NodeStore
from things.envelopes import MAX_ADDRESS_CHARS, Document, Envelope, Unknown, refusal, scheme_of
from things.errors import Invalid, NotFound, QueueFull, TooLarge
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue
from things.times import rfc3339

Entry = dict[str, Any]
"""A registration: the members the client gave, and `status`, `startingTime`, `lastModified`, `expires`."""

MAX_ENTRY_BYTES = 65_536
PAGE = 1_000

UNKNOWN: Body = {"code": 404, "description": "Not Found"}
"""Clients compare it as a whole."""

_HYPERTY_SCHEMES = frozenset({"user", "user-guid", "hyperty", "hyperty-runtime"})
REGISTERED_BY = "registeredBy"
"""The member that names the account which made an entry; the node writes it whenever an entry is told."""
_OWN = ("_owner", "_until", "_session", "_thing", REGISTERED_BY)
"""Members of an entry that are the node's own and never told."""


Sees = Callable[[NodeSession, str, tuple[str, ...]], bool]
"""Whether a session may observe these properties of a Thing, or with none, any."""


class ThingEntries(Protocol):
    """Things of the directory as entries of the registry."""

    async def registration(self, address: str, principal: Principal) -> Entry | None: ...


class Registered(Protocol):
    """Told of entries that were registered or went."""

    def thing(self, url: str, reporter: NodeSession) -> str | None: ...
    async def check(self, url: str, reporter: NodeSession) -> None: ...
    async def registered(self, entry: Entry, caller: NodeSession) -> None: ...
    async def unregistered(self, url: str, caller: NodeSession) -> None: ...


class Registry:
    """The node's own registry."""

    def __init__(
        self,
        settings: NodeSettings,
        store: NodeStore,
        *,
        clock: Callable[[], int],
        tell: Callable[[Document], Awaitable[None]],
        things: ThingEntries,
        objects: Registered,
        ownership: Ownership,
        sees: Sees,
    ) -> None:
        self._settings = settings
        self._ownership = ownership
        self._sees = sees
        self._quota = Quota(settings)
        self._store = store
        self._clock = clock
        self._tell = tell
        self._things = things
        self._objects = objects
        self._entries: dict[str, Entry] = {}
        self._by_term: dict[str, dict[str, None]] = {}
        """Addresses by whatever an entry is found by, so that a search looks at its candidates only."""
        self._by_session: dict[str, dict[str, None]] = {}
        self._last = 0
        self.addresses: Sequence[str] = (f"domain://registry.{settings.domain}",)

    async def load(self, survived: Callable[[str], bool]) -> None:
        """Take up what was kept; whose session did not survive is no longer live."""
        for entry in await self._store.registrations():
            self._set(entry)
        if not self._settings.compatible:
            lost = [session for session in self._by_session if not survived(session)]
            await self._disconnect([self._entries[url] for session in lost for url in self._by_session[session]])

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        match envelope.type:
            case "create":
                return await self._register(envelope, caller)
            case "update":
                return await self._update(envelope, caller)
            case "delete":
                return await self._remove(envelope, caller)
            case "read":
                return await self._read(envelope, caller)
            case _:
                raise Unknown(f"the registry takes create, read, update and delete, not {envelope.type!r}")

    async def session_ended(self, session: NodeSession) -> None:
        """What a session registered is no longer live."""
        if self._settings.compatible:
            return
        await self._disconnect([self._entries[url] for url in self._by_session.get(session.session_id, ())])

    async def expire(self) -> None:
        """What was not kept alive is no longer live; what has been so for another life is forgotten."""
        now = self._clock()
        await self._disconnect(
            [entry for entry in self._entries.values() if entry["_until"] <= now and entry["status"] == "live"]
        )
        life = self._settings.registration_s * 1_000_000
        dead = [url for url, entry in self._entries.items() if entry["_until"] + life <= now]
        if dead:
            await self._store.drop_registrations(dead)
            for url in dead:
                self._unset(url)

    def of_session(self, session_id: str) -> Sequence[Entry]:
        """What a session registered, and is live."""
        entries = (self._entries[url] for url in self._by_session.get(session_id, ()))
        return [entry for entry in entries if entry["status"] == "live"]

    # ------------------------------------------------------------ writing

    async def _register(self, envelope: Envelope, caller: NodeSession) -> Body:
        value = envelope.body.get("value")
        if not isinstance(value, dict):
            raise Invalid("`value` is the object to register")
        url = value.get("url")
        if not isinstance(url, str) or not 0 < len(url) <= MAX_ADDRESS_CHARS:
            raise Invalid("`value.url` names what is registered")
        standing = self._entries.get(url)
        self._check_owner(url, standing, caller)
        self._ownership.check(url, terms_of({**value, "url": url}), caller)
        if standing is None and len(self._entries) >= self._settings.max_registrations:
            raise QueueFull("the registry", self._settings.max_registrations, "entries")
        await self._objects.check(url, caller)
        now = self._clock()
        expires = self._life(value.get("expires"))
        entry: Entry = {
            **value,
            "status": _status(value.get("status", "live")),
            "expires": expires,
            "startingTime": standing["startingTime"] if standing else rfc3339(now),
            "lastModified": rfc3339(now),
            "_owner": caller.principal.account,
            "_until": now + expires * 1_000_000,
            "_session": _session_of(caller),
            "_thing": self._objects.thing(url, caller),
        }
        await self._keep(entry)
        if standing is not None and standing["status"] != entry["status"]:
            await self._push(entry)
        await self._objects.registered(_shown(entry), caller)
        return OK

    async def _update(self, envelope: Envelope, caller: NodeSession) -> Body:
        body = envelope.body
        entry = self._mine(_resource(body), caller)
        now = self._clock()
        changed: Entry = {
            **entry,
            "lastModified": rfc3339(now),
            "_owner": caller.principal.account,
            "_session": _session_of(caller),
            "_thing": self._objects.thing(entry["url"], caller),
        }
        value = body.get("value")
        attribute = body.get("attribute")
        if attribute == "status":
            changed["status"] = _status(value)
        elif attribute is not None:
            if not isinstance(attribute, str) or not attribute or attribute == "url" or attribute in _OWN:
                raise Invalid("`attribute` names a member of the registration other than its url")
            changed[attribute] = value
        elif isinstance(value, dict):
            changed |= {name: member for name, member in value.items() if name != "url" and name not in _OWN}
            changed["status"] = _status(changed["status"])
        elif value is None and entry["status"] != "live":
            changed["status"] = "live"  # kept alive
        self._ownership.check(changed["url"], terms_of(changed), caller)
        expires = changed["expires"] = self._life(changed.get("expires"))
        changed["_until"] = now + expires * 1_000_000 if changed["status"] == "live" else min(now, entry["_until"])
        await self._keep(changed)
        if changed["status"] != entry["status"]:
            await self._push(changed)
        return OK

    async def _remove(self, envelope: Envelope, caller: NodeSession) -> Body:
        value = envelope.body.get("value")
        url = value.get("url") if isinstance(value, dict) else envelope.body.get("resource")
        if not isinstance(url, str):
            raise Invalid("name what goes in `value.url` or `resource`")
        entry = self._entries.get(url)
        if entry is not None:
            self._check_owner(url, entry, caller)
            await self._store.drop_registrations([url])
            self._unset(url)
            await self._push({**entry, "status": "disconnected"})
            await self._objects.unregistered(url, caller)
        return OK

    def _mine(self, resource: str, caller: NodeSession) -> Entry:
        entry = self._entries.get(resource) or self._entries.get(_last_part(resource))
        if entry is None:
            raise NotFound("Not Found")
        self._check_owner(str(entry["url"]), entry, caller)
        return entry

    def _check_owner(self, url: str, standing: Entry | None, caller: NodeSession) -> None:
        """Another account's entry is not there to change; guests are one another's."""
        if standing is not None and not self._ownership.may_change(url, standing["_owner"], caller):
            raise NotFound("Not Found")

    def _life(self, expires: JSONValue) -> int:
        most = self._settings.registration_s
        if expires is None or isinstance(expires, bool) or not isinstance(expires, int | float) or expires <= 0:
            return most
        return max(1, int(min(expires, most)))

    async def _keep(self, entry: Entry) -> None:
        size = len(encode(entry))
        if size > MAX_ENTRY_BYTES:
            raise Invalid(f"a registration is at most {MAX_ENTRY_BYTES} bytes")
        url = entry["url"]
        self._quota.check(url, entry["_owner"], size)
        # It stands while it is written, so that two at a time cannot pass one bound, or one address, together.
        before = self._entries.get(url)
        self._set(entry, size)
        try:
            await self._store.put_registrations({url: entry})
        except BaseException:
            if self._entries.get(url) is entry:
                self._unset(url)
                if before is not None:
                    self._set(before)
            raise

    def _set(self, entry: Entry, size: int | None = None) -> None:
        url = entry["url"]
        self._unset(url)
        self._entries[url] = entry
        self._quota.put(url, entry["_owner"], len(encode(entry)) if size is None else size)
        for term in terms_of(entry):
            self._by_term.setdefault(term, {})[url] = None
        if entry["_session"]:
            self._by_session.setdefault(entry["_session"], {})[url] = None

    def _unset(self, url: str) -> None:
        entry = self._entries.pop(url, None)
        if entry is None:
            return
        self._quota.drop(url)
        for index, keys in ((self._by_term, terms_of(entry)), (self._by_session, [entry["_session"]])):
            for key in keys:
                urls = index.get(key, {})
                urls.pop(url, None)
                if not urls:
                    index.pop(key, None)

    async def _disconnect(self, entries: Sequence[Entry]) -> None:
        changed = {
            entry["url"]: {**entry, "status": "disconnected", "_until": min(entry["_until"], self._clock())}
            for entry in entries
            if entry["status"] == "live"
        }
        if not changed:
            return
        await self._store.put_registrations(changed)
        for entry in changed.values():
            self._set(entry)
        for entry in changed.values():
            await self._push(entry)

    async def _push(self, entry: Entry) -> None:
        self._last += 1
        body: dict[str, JSONValue] = {"value": entry["status"], "attribute": "status"}
        url = entry["url"]
        registry = self.addresses[0]
        await self._tell(
            {"id": self._last, "type": "update", "from": registry, "to": f"{url}/registration", "body": body}
        )
        if self._settings.compatible:
            # One generation of clients waits for it here.
            await self._tell({"id": self._last, "type": "update", "from": url, "to": f"{url}/changes", "body": body})

    # ------------------------------------------------------------ reading

    async def _read(self, envelope: Envelope, caller: NodeSession) -> Body:
        body = envelope.body
        resource = _resource(body)
        criteria = body.get("criteria")
        wanted = criteria if isinstance(criteria, dict) else {}
        if resource.startswith("thing://"):
            thing = await self._things.registration(resource, caller.principal)
            if thing is None:
                return UNKNOWN
            return _told({resource: thing}, one=resource)
        entry = self._entries.get(resource)
        if entry is not None and self._is_shown(entry, caller):
            return _told({resource: self._now(entry, caller)}, one=resource)
        found: dict[str, Entry] = {}
        size = 0
        for entry in map(self._entries.__getitem__, self._by_term.get(_last_part(resource), ())):
            if not (_is_of_kind(entry, resource) and _fits(entry, wanted) and self._is_shown(entry, caller)):
                continue
            size += self._quota.size(entry["url"])
            if size > self._settings.max_answer_bytes:
                raise TooLarge(self._settings.max_answer_bytes, "what is found; name more criteria, since it")
            found[str(entry["url"])] = self._now(entry, caller)
            if len(found) >= PAGE:
                break
        return _told(found) if found else UNKNOWN

    def thing_of(self, url: str) -> str | None:
        """The Thing that a registered object is; None if it is none."""
        entry = self._entries.get(url)
        thing: str | None = None if entry is None else entry.get("_thing")
        return thing

    def _is_shown(self, entry: Entry, caller: NodeSession) -> bool:
        """Not what somebody registered before the address became another account's, and no object that is a Thing
        which the caller may not observe."""
        if self._ownership.is_overtaken(entry["url"], entry["_owner"]):
            return False
        thing = entry.get("_thing")
        return thing is None or self._sees(caller, thing, ())

    def _now(self, entry: Entry, caller: NodeSession) -> Entry:
        shown = _shown(entry)
        thing, data = entry.get("_thing"), entry.get("data")
        if thing is not None and isinstance(data, dict):
            shown["data"] = {name: value for name, value in data.items() if self._sees(caller, thing, (name,))}
        if entry["_until"] <= self._clock() and shown["status"] == "live":
            shown["status"] = "disconnected"
        return shown


def _told(found: Mapping[str, Entry], one: str | None = None) -> Body:
    """Live entries if there are any; else what is known, as temporarily unavailable."""
    live = {url: entry for url, entry in found.items() if entry["status"] in ("live", "created")}
    if one is not None:
        entry = found[one]
        return {"code": 200, "value": entry} if live else {**refusal(408, "Temporarily Unavailable"), "value": entry}
    if live:
        return {"code": 200, "value": dict(live)}
    return {**refusal(408, "Temporarily Unavailable"), "value": dict(found)}


def _session_of(caller: NodeSession) -> str:
    """The session an entry lives with; what came by a single exchange lives for itself."""
    return caller.session_id if caller.is_kept else ""


def _shown(entry: Entry) -> Entry:
    shown = {name: member for name, member in entry.items() if name not in _OWN}
    shown[REGISTERED_BY] = entry["_owner"]
    return shown


def _status(value: JSONValue) -> str:
    status = str(value).lower()
    if status == "connected":
        return "live"  # an earlier word for it
    if status not in ("created", "live", "disconnected", "dead"):
        raise Invalid("`status` is created, live, disconnected or dead")
    return status


def _resource(body: Mapping[str, JSONValue]) -> str:
    resource = body.get("resource")
    if not isinstance(resource, str) or not 0 < len(resource) <= MAX_ADDRESS_CHARS:
        raise Invalid("`resource` says what is looked for")
    return resource


def _last_part(resource: str) -> str:
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


def _is_of_kind(entry: Entry, resource: str) -> bool:
    is_hyperty = scheme_of(str(entry["url"])) in _HYPERTY_SCHEMES
    return not resource.startswith("/dataobject/" if is_hyperty else "/hyperty/")


def _fits(entry: Entry, criteria: Mapping[str, JSONValue]) -> bool:
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
