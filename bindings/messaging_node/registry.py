"""The domain registry at `domain://registry.{D}`: hyperties and data objects by user, guid, name, address and kind.

Entries outlive their sessions until they expire. One that is known but not live is told apart from one that is not
known: 408 with the entry, 404 without. Things of the directory are found by their addresses like any data object.
Changes of status go to whoever subscribed to `<url>/registration`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from bindings.messaging_node.connectors import OK, Body
from bindings.messaging_node.entries import (
    OWN,
    as_shown,
    checked_status,
    fits,
    is_of_kind,
    last_part,
    listing,
    resource_of,
    session_of,
    size_of,
    terms_of,
)
from bindings.messaging_node.ownership import Ownership
from bindings.messaging_node.quota import Quota
from bindings.messaging_node.registrants import OWNER, Entry, Registrants, Standing, signed
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import NodeStore
from things.envelopes import MAX_ADDRESS_CHARS, Document, Envelope, Unknown
from things.errors import Invalid, NotFound, QueueFull, TooLarge
from things.holdings import Holding
from things.identity import Principal
from things.messages import JSONValue
from things.times import rfc3339

MAX_ENTRY_BYTES = 65_536
PAGE = 1_000
_AT_ONCE = 500
"""Entries looked at before others have a turn."""

UNKNOWN: Body = {"code": 404, "description": "Not Found"}
"""Clients compare it as a whole."""

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
        standing: Standing,
    ) -> None:
        self._settings = settings
        self._ownership = ownership
        self._sees = sees
        self._quota = Quota(settings)
        self._registrants = Registrants(standing)
        self.is_settled = False
        """Cleared when credentials ended: entries that lived by them are to go."""
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

    async def settle(self) -> None:
        """Drop what lived by credentials that have ended; some at a time, so that others have their turns."""
        if self.is_settled:
            return
        self.is_settled = True
        for number, url in enumerate(tuple(self._entries)):
            entry = self._entries.get(url)
            if entry is not None and not self._registrants.stands(url):
                await self._drop(entry)
            elif number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def held_by(self, account: str | None) -> Iterable[Holding]:
        """As `things.holdings.Holdings`."""
        for url, entry in tuple(self._entries.items()):
            if account in (None, entry[OWNER]) and self._registrants.stands(url):
                yield self._registrants.holding(entry)

    async def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        """Drop one entry, if it is there and, with `of`, that account's."""
        entry = self._standing(holding_id)
        if entry is None or of not in (None, entry[OWNER]):
            return None
        holding = self._registrants.holding(entry)
        await self._drop(entry)
        return holding

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
        standing = self._standing(url)
        self._check_owner(url, standing, caller)
        self._ownership.check(url, terms_of({**value, "url": url}), caller)
        if standing is None and len(self._entries) >= self._settings.max_registrations:
            raise QueueFull("the registry", self._settings.max_registrations, "entries")
        await self._objects.check(url, caller)
        now = self._clock()
        expires = self._life(value.get("expires"))
        entry: Entry = {
            **value,
            "status": checked_status(value.get("status", "live")),
            "expires": expires,
            "startingTime": standing["startingTime"] if standing else rfc3339(now),
            "lastModified": rfc3339(now),
            **signed(caller.principal),
            "_until": now + expires * 1_000_000,
            "_session": session_of(caller),
            "_thing": self._objects.thing(url, caller),
        }
        await self._keep(entry)
        if standing is not None and standing["status"] != entry["status"]:
            await self._push(entry)
        await self._objects.registered(as_shown(entry), caller)
        return OK

    async def _update(self, envelope: Envelope, caller: NodeSession) -> Body:
        body = envelope.body
        entry = self._mine(resource_of(body), caller)
        now = self._clock()
        changed: Entry = {
            **entry,
            "lastModified": rfc3339(now),
            **signed(caller.principal),
            "_session": session_of(caller),
            "_thing": self._objects.thing(entry["url"], caller),
        }
        value = body.get("value")
        attribute = body.get("attribute")
        if attribute == "status":
            changed["status"] = checked_status(value)
        elif attribute is not None:
            if not isinstance(attribute, str) or not attribute or attribute == "url" or attribute in OWN:
                raise Invalid("`attribute` names a member of the registration other than its url")
            changed[attribute] = value
        elif isinstance(value, dict):
            changed |= {name: member for name, member in value.items() if name != "url" and name not in OWN}
            changed["status"] = checked_status(changed["status"])
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
        entry = self._standing(url)
        if entry is not None:
            self._check_owner(url, entry, caller)
            await self._drop(entry)
            await self._objects.unregistered(url, caller)
        return OK

    def _mine(self, resource: str, caller: NodeSession) -> Entry:
        entry = self._standing(resource) or self._standing(last_part(resource))
        if entry is None:
            raise NotFound("Not Found")
        self._check_owner(str(entry["url"]), entry, caller)
        return entry

    def _check_owner(self, url: str, standing: Entry | None, caller: NodeSession) -> None:
        """Another account's entry is not there to change; guests are one another's."""
        if standing is not None and not self._ownership.may_change(url, self._registrants.of(url), caller):
            raise NotFound("Not Found")

    def _life(self, expires: JSONValue) -> int:
        most = self._settings.registration_s
        if expires is None or isinstance(expires, bool) or not isinstance(expires, int | float) or expires <= 0:
            return most
        return max(1, int(min(expires, most)))

    async def _keep(self, entry: Entry) -> None:
        size = size_of(entry)
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
        self._registrants.put(entry)
        self._quota.put(url, entry["_owner"], size_of(entry) if size is None else size)
        for term in terms_of(entry):
            self._by_term.setdefault(term, {})[url] = None
        if entry["_session"]:
            self._by_session.setdefault(entry["_session"], {})[url] = None

    def _unset(self, url: str) -> None:
        entry = self._entries.pop(url, None)
        if entry is None:
            return
        self._quota.drop(url)
        self._registrants.drop(url)
        for index, keys in ((self._by_term, terms_of(entry)), (self._by_session, [entry["_session"]])):
            for key in keys:
                urls = index.get(key, {})
                urls.pop(url, None)
                if not urls:
                    index.pop(key, None)

    def _standing(self, url: str) -> Entry | None:
        """The entry of an address, unless what it lived by has ended."""
        entry = self._entries.get(url)
        return entry if entry is not None and self._registrants.stands(url) else None

    async def _drop(self, entry: Entry) -> None:
        await self._store.drop_registrations([entry["url"]])
        self._unset(entry["url"])
        await self._push({**entry, "status": "disconnected"})

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
        resource = resource_of(body)
        criteria = body.get("criteria")
        wanted = criteria if isinstance(criteria, dict) else {}
        if resource.startswith("thing://"):
            thing = await self._things.registration(resource, caller.principal)
            if thing is None:
                return UNKNOWN
            return listing({resource: thing}, one=resource)
        entry = self._entries.get(resource)
        if entry is not None and self._is_shown(entry, caller):
            return listing({resource: self._now(entry, caller)}, one=resource)
        found: dict[str, Entry] = {}
        size = 0
        for entry in map(self._entries.__getitem__, self._by_term.get(last_part(resource), ())):
            if not (is_of_kind(entry, resource) and fits(entry, wanted) and self._is_shown(entry, caller)):
                continue
            size += self._quota.size(entry["url"])
            if size > self._settings.max_answer_bytes:
                raise TooLarge(self._settings.max_answer_bytes, "what is found; name more criteria, since it")
            found[str(entry["url"])] = self._now(entry, caller)
            if len(found) >= PAGE:
                break
        return listing(found) if found else UNKNOWN

    def thing_of(self, url: str) -> str | None:
        """The Thing that a registered object is; None if it is none."""
        entry = self._entries.get(url)
        thing: str | None = None if entry is None else entry.get("_thing")
        return thing

    def _is_shown(self, entry: Entry, caller: NodeSession) -> bool:
        """Not what somebody registered before the address became another account's, and no object that is a Thing
        which the caller may not observe."""
        url = entry["url"]
        if not self._registrants.stands(url) or self._ownership.is_overtaken(url, self._registrants.of(url)):
            return False
        thing = entry.get("_thing")
        return thing is None or self._sees(caller, thing, ())

    def _now(self, entry: Entry, caller: NodeSession) -> Entry:
        shown = as_shown(entry)
        thing, data = entry.get("_thing"), entry.get("data")
        if thing is not None and isinstance(data, dict):
            shown["data"] = {name: value for name, value in data.items() if self._sees(caller, thing, (name,))}
        if entry["_until"] <= self._clock() and shown["status"] == "live":
            shown["status"] = "disconnected"
        return shown
