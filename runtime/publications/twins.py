"""Twin TDs as consumers get them: derived from what the agent published, for one principal at a time.

Deriving walks a whole TD, so results are remembered for all principals of the same rights until the TD or the addresses
change, as text: the latest ready, many more compressed. Presence is put in when a result is handed out.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from runtime.ports import Authorizer, Directory, Entry, Publication
from runtime.publications.presence import Presence
from things.addresses import Address, Kind, TwinID, is_twin
from things.bounded import Bounded
from things.errors import Invalid
from things.identity import RESERVED_ACCOUNTS, Principal
from things.jsontext import encode
from things.messages import JSONValue, Operation
from things.places import CALLED_AT, Place, Urls
from things.times import rfc3339
from things.twin_td import FormsOf, TwinSecurity, presence_names, twin_td
from things.vocabulary import Term

MAX_READY_BYTES = 4_194_304
"""Of the results kept as text: some hundreds."""
MAX_COMPRESSED_BYTES = 33_554_432
"""Of the results kept compressed: some ten thousand Things for a handful of different rights."""
MAX_LAST = 256
"""Things of which it is remembered for whom they were derived last."""

_ASKED = (
    Operation.READ,
    Operation.OBSERVE,
    Operation.WRITE_PROPERTY,
    Operation.INVOKE_ACTION,
    Operation.SUBSCRIBE,
    Operation.HISTORY,
)
_Rights = frozenset[Operation | tuple[Kind, str, Operation]]

_BEARER = TwinSecurity(
    definitions={
        "bearer": {"scheme": "bearer", "in": "header", "name": "Authorization", "format": "jwt", "alg": "EdDSA"}
    },
    names=("bearer",),
)
_BASIC = TwinSecurity(definitions={"basic": {"scheme": "basic", "in": "header"}}, names=("basic",))
_PROFILE_SECURITY = TwinSecurity(
    definitions={"basic": {"scheme": "basic", "in": "header", "name": "Authorization"}}, names=("basic",)
)
_SECURITY: Mapping[str, TwinSecurity] = {"mqtt": _BASIC, "profile": _PROFILE_SECURITY}
"""Of the variants whose clients cannot send a bearer token, or must not have to: the profiles allow basic, not bearer,
and several schemes only combined, which common clients do not read."""

_PROFILES: Mapping[str, Sequence[str]] = {
    "profile": (
        "https://www.w3.org/2022/wot/profile/http-basic/v1",
        "https://www.w3.org/2022/wot/profile/http-sse/v1",
    )
}
"""What the variants promise."""


class _Last(NamedTuple):
    """What was derived last of a Thing, and for whom."""

    entry: Entry
    principal: Principal
    protocol: str | None
    urls: Urls
    version: int
    """Of the rights."""
    text: bytes


class TwinViews:
    """Derives twin TDs. `forms_of` gives the providers by name, of protocols and of the variant `profile`, for the
    addresses that `urls` says hold at a place."""

    def __init__(
        self,
        directory: Directory,
        authorizer: Authorizer,
        *,
        forms_of: Callable[[Urls], Mapping[str, FormsOf]],
        urls: Callable[[Place | None], Urls],
    ) -> None:
        self._directory = directory
        self._authorizer = authorizer
        self._forms_of = forms_of
        self._urls = urls
        self._remembered = _Remembered()
        self._last = Bounded[str, _Last](MAX_LAST)
        self.presence: Presence | None = None

    def document(self, thing_id: str, principal: Principal, protocol: str | None = None) -> dict[str, Any] | None:
        """The TD as this principal may see it, with forms of all protocols or of one; None if there is none to see.
        Other directory entries are given as they were registered."""
        entry = self._directory.get(thing_id)
        return None if entry is None or not self._may_know(principal, thing_id) else self.of(entry, principal, protocol)

    def of(self, entry: Entry, principal: Principal, protocol: str | None = None) -> dict[str, Any]:
        """The same of a given entry, perhaps one of the past, of which the principal may know."""
        if entry.agent is None or not is_twin(entry.thing_id):
            return {**entry.td.document, **entry.overlay}
        found: dict[str, Any] = from_json(self.text(entry, principal, protocol))
        return found

    def text(self, entry: Entry, principal: Principal, protocol: str | None = None) -> bytes:
        """The same as JSON text, without an object being made of it."""
        return self._text(entry, principal, protocol, CALLED_AT.get())

    def _text(self, entry: Entry, principal: Principal, protocol: str | None, place: Place | None) -> bytes:
        if entry.agent is None or not is_twin(entry.thing_id):
            return encode(self.of(entry, principal, protocol))
        is_online, last_seen = self._seen(entry.agent)
        told: dict[str, JSONValue] = {Term.ONLINE.value: is_online}
        if last_seen is not None:
            told[Term.LAST_SEEN.value] = rfc3339(last_seen)
        return b"%s,%s" % (self._derived(entry, principal, protocol, self._urls(place))[:-1], encode(told)[1:])

    def publication(self, thing_id: str, principal: Principal, place: Place | None = None) -> Publication | None:
        """The same as a publication of kind td."""
        entry = self._directory.get(thing_id)
        if entry is None or not self._may_know(principal, thing_id):
            return None
        text = self._text(entry, principal, None, place)
        return Publication(
            twin=TwinID.parse(thing_id),
            thing_id=thing_id,
            kind=Kind.TD,
            name="",
            value=from_json(text),
            payload=text,
            created=entry.modified,
        )

    def _may_know(self, principal: Principal, thing_id: str) -> bool:
        return self._authorizer.decide(principal, Operation.READ, Address(thing_id)).allowed

    def _seen(self, agent: str) -> tuple[bool, int | None]:
        if agent in RESERVED_ACCOUNTS:
            return True, None
        seen = self.presence.of(agent) if self.presence else None
        return (seen.is_online, None if seen.is_online else seen.since) if seen else (False, None)

    def _derived(self, entry: Entry, principal: Principal, protocol: str | None, urls: Urls) -> bytes:
        """What does not change while its agent comes and goes."""
        version = self._authorizer.version
        if self._authorizer.is_conditional:
            return self._permitted(entry, principal, protocol, urls)
        # Who reads a Thing reads it again; what it may see of it is not looked up until something changes.
        last = self._last.get(entry.thing_id)
        if (
            last is None
            or last.entry is not entry
            or last.principal is not principal
            or last.urls is not urls
            or (last.protocol, last.version) != (protocol, version)
        ):
            text = self._permitted(entry, principal, protocol, urls)
            last = _Last(entry, principal, protocol, urls, version, text)
            self._last[entry.thing_id] = last
        return last.text

    def _permitted(self, entry: Entry, principal: Principal, protocol: str | None, urls: Urls) -> bytes:
        rights = _shared(self._rights(entry, principal))
        # The HTTP listeners come last; what is asked for before must not stay without their addresses.
        key = (entry.thing_id, entry.version, tuple(entry.overlay.items()), rights, protocol, urls)
        found = self._remembered.get(key)
        if found is not None:
            return found
        providers = self._forms_of(urls)
        if protocol is None:
            providers = {name: provider for name, provider in providers.items() if name not in _PROFILES}
        elif protocol in providers:
            providers = {protocol: providers[protocol]}
        else:
            raise Invalid(f"there are forms of {', '.join(sorted(providers))}, not of {protocol[:40]!r}")
        document = twin_td(
            entry.td,
            TwinID.parse(entry.thing_id),
            providers,
            _SECURITY.get(protocol or "", _BEARER),
            allowed=lambda kind, name, operation: operation in rights or (kind, name, operation) in rights,
            online=False,
            last_seen=None,
            overlay=entry.overlay,
            http_base=urls.base,
            profiles=_PROFILES.get(protocol or "", ()),
        )
        del document[Term.ONLINE.value]
        text = encode(document)
        self._remembered.put(key, text)
        return text

    def _rights(self, entry: Entry, principal: Principal) -> "_Rights":
        """What the principal may do: operations at all affordances alike, or else at each."""
        thing_id, decide = entry.thing_id, self._authorizer.decide
        if self._authorizer.is_uniform(principal, thing_id):
            whole = Address(thing_id)
            return frozenset(operation for operation in _ASKED if decide(principal, operation, whole).allowed)
        td = entry.td
        properties = (Kind.PROPERTY, [*td.properties, *presence_names(td)])
        return frozenset(
            (kind, name, operation)
            for kind, names in (properties, (Kind.ACTION, td.actions), (Kind.EVENT, td.events))
            for name in names
            for operation in _ASKED
            if decide(principal, operation, Address(thing_id, kind, name)).allowed
        )


@lru_cache(maxsize=1_024)
def _shared(rights: _Rights) -> _Rights:
    """One object for all equal ones: thousands are remembered, and most are alike."""
    return rights


class _Remembered:
    """Derived texts, least recently used first out: the latest as they are, older ones compressed."""

    def __init__(self) -> None:
        self._ready: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._ready_bytes = 0
        self._compressed: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._compressed_bytes = 0

    def get(self, key: tuple[object, ...]) -> bytes | None:
        found = self._ready.get(key)
        if found is not None:
            self._ready.move_to_end(key)
            return found
        packed = self._compressed.get(key)
        if packed is None:
            return None
        self._compressed.move_to_end(key)
        text = zlib.decompress(packed)
        self.put(key, text)
        return text

    def put(self, key: tuple[object, ...], text: bytes) -> None:
        self._ready[key] = text
        self._ready_bytes += len(text)
        while self._ready_bytes > MAX_READY_BYTES:
            oldest, text = self._ready.popitem(last=False)
            self._ready_bytes -= len(text)
            if oldest not in self._compressed:
                self._pack(oldest, text)

    def _pack(self, key: tuple[object, ...], text: bytes) -> None:
        packed = self._compressed[key] = zlib.compress(text, 1)
        self._compressed_bytes += len(packed)
        while self._compressed_bytes > MAX_COMPRESSED_BYTES:
            _, oldest = self._compressed.popitem(last=False)
            self._compressed_bytes -= len(oldest)
