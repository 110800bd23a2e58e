"""Where messages go: who holds which address, and who listens to which.

All matching is exact. An address belongs to the account that first held it or one above it, for as long as a session
holds it or the account has named it; in the compatibility profile it belongs to nobody.
"""

from collections.abc import Iterable, Iterator

from bindings.messaging_node.journal import Journal
from bindings.messaging_node.named import Names, Owner
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.bus import Bus
from things.envelopes import scheme_of
from things.errors import Conflict, Forbidden, QueueFull
from things.identity import Principal

_OPEN_ENDS = ("/changes", "/registration", "/status")
RESERVED = frozenset({"domain", "global", "mn", "thing"})
"""Schemes of the node's own addresses and of Things, which no client speaks as."""


def is_notified(address: str) -> bool:
    """Whether updates and deletes there are news to whoever listens, answered by nobody."""
    return address.endswith(_OPEN_ENDS)


def is_open(address: str) -> bool:
    """Whether anyone may listen to an address: changes, registrations, statuses and children are told to whoever asks,
    everything else to who holds it."""
    return is_notified(address) or "/children/" in address


def object_of(address: str) -> str:
    """The object an address belongs to: `<obj>` for `<obj>/changes` and its like."""
    head, found, _ = address.partition("/children/")
    if found:
        return head
    for end in (*_OPEN_ENDS, "/subscription", "/observers"):
        if address.endswith(end):
            return address.removesuffix(end)
    return address


class Routes:
    """The node's table; changed by allocation, subscription and sessions only, and noted in the journal."""

    def __init__(self, settings: NodeSettings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self.holders: Bus[NodeSession] = Bus()
        self.listeners: Bus[NodeSession] = Bus()
        self.keyed: Bus[NodeSession] = Bus()
        """Sessions by the allocation keys they used."""
        self.names = Names()
        self.version = 0
        """Rises whenever an address changes hands or listeners, so that others may remember who hears it."""

    # ------------------------------------------------------------ whose an address is

    def belongs(self, address: str, session: NodeSession) -> bool:
        """Whether a session may use an address as its own: it, or another of its account or runtime, holds it or one
        above it, or nobody does."""
        if scheme_of(address) in RESERVED:
            return False
        found = self._held(address)
        if isinstance(found, Owner):
            return found.is_of(session.principal)
        return not found or any(are_one(holder, session) for holder in found)

    def is_held_by(self, address: str, principal: Principal) -> bool | None:
        """Whether it is this account that an address belongs to; None while it is nobody's."""
        found = self._held(address)
        if isinstance(found, Owner):
            return found.is_of(principal)
        return any(holder.principal.is_same(principal) for holder in found) if found else None

    def settle(self, address: str, session: NodeSession) -> None:
        """Route a runtime's own address to its new session; runtimes of one account share theirs, and so do guests.
        Raises Forbidden for the node's own addresses, Conflict if it is another account's."""
        if scheme_of(address) in RESERVED:
            raise Forbidden(f"{address[:80]!r} cannot be a runtime's")
        known = [holder.principal for holder in self.holders.at(address)]
        is_shared = all(_are_alike(one, session.principal) for one in known)
        if not self._settings.compatible and not (is_shared if known else self.belongs(address, session)):
            raise Conflict(f"{address[:80]!r} belongs to somebody else")
        self._add(address, session)

    # ------------------------------------------------------------ changing the table

    def hold(self, address: str, session: NodeSession, key: str | None = None) -> None:
        """Route an address to a session, by an allocation key if there is one. Raises Conflict if it is another
        account's, QueueFull over the quota."""
        self.check(address, session)
        session.claimed.discard(address)
        self._add(address, session, key)

    def check(self, address: str, session: NodeSession) -> None:
        """Raise what `hold` would."""
        if not self._settings.compatible and not self.belongs(address, session):
            raise Conflict(f"{address[:80]!r} belongs to somebody else")
        if address not in session.held and len(session.held) >= self._settings.max_addresses:
            raise QueueFull("this session", self._settings.max_addresses, "addresses")

    def check_release(self, address: str, session: NodeSession) -> None:
        """Raise Forbidden if an address is another account's."""
        if not self._settings.compatible and not self.belongs(address, session):
            raise Forbidden(f"{address[:80]!r} belongs to somebody else")

    def release(self, address: str) -> None:
        """Stop routing an address and its children, whichever session holds them; unknown ones are released
        already."""
        for holder in self.holders.at(address):
            for held in (*holder.below.get(address, ()), f"{address}/subscription", address):
                if held in holder.held:
                    self._let_go(held, holder)
                if held in holder.subscribed and not is_open(held):
                    self.unlisten(held, holder)

    def may_hear(self, address: str, session: NodeSession) -> bool:
        """Whether a session may listen to an address as far as it is anybody's: others' own addresses are not heard."""
        if self._settings.compatible or is_open(address):
            return True
        return self.belongs(address, session) or self._is_child(address, session)

    def listen(self, address: str, session: NodeSession, *, claims: bool = True) -> None:
        """Let a session hear what is sent to an address, and `claims` it where it is nobody's and could be somebody's
        own. Raises Forbidden for what others hold, QueueFull."""
        if len(session.subscribed) >= self._settings.max_subscriptions and address not in session.subscribed:
            raise QueueFull("this session", self._settings.max_subscriptions, "subscriptions")
        if not self.may_hear(address, session):
            raise Forbidden(f"{address[:80]!r} belongs to somebody else")
        is_claimable = not self._settings.compatible and not is_open(address)
        if claims and is_claimable and not self._is_child(address, session):
            try:
                self._claim(address, session)
            except Conflict as error:
                raise Forbidden(error.detail) from error
        self.listeners.add(address, session)
        self.note_heard(address, session)

    def unlisten(self, address: str, session: NodeSession) -> None:
        """Stop hearing; idempotent."""
        if self.listeners.remove(address, session):
            self.note_unheard(address, session)
            if address in session.claimed:
                self._let_go(address, session)

    def note_heard(self, address: str, session: NodeSession) -> None:
        """A session subscribed to an address, whoever tells it what happens there."""
        session.subscribed[address] = None
        self.version += 1
        self._journal.heard(session, address)

    def note_unheard(self, address: str, session: NodeSession) -> None:
        session.subscribed.pop(address, None)
        self.version += 1
        self._journal.unheard(session, address)

    def learn(self, address: str, session: NodeSession) -> None:
        """Route an address that was only seen as a sender to whom it was seen from, unless somebody holds it."""
        has_room = len(session.held) < self._settings.max_addresses
        if has_room and address not in self.holders and scheme_of(address) not in RESERVED:
            self._add(address, session)

    def free(self, session: NodeSession) -> None:
        """Let go of everything a session has; the journal is told of the session as a whole."""
        self.version += 1
        for address in session.held:
            self.holders.remove(address, session)
        for address in session.subscribed:
            self.listeners.remove(address, session)
        for key in session.keys:
            self.keyed.remove(key, session)
        session.let_go_of_all()

    def restore(self, session: NodeSession, held: Iterable[tuple[str, bool, str | None]], heard: Iterable[str]) -> None:
        """Give a session of an earlier run what it had."""
        for address, is_claimed, key in held:
            self._place(address, session, key)
            if is_claimed:
                session.claimed.add(address)
        for address in heard:
            session.subscribed[address] = None
            # What happens to Things is told by the runtime.
            if not address.startswith(self._settings.things):
                self.listeners.add(address, session)

    def is_shared(self, address: str) -> bool:
        """Whether more than one session holds or hears an address."""
        one, other = self.holders.at(address), self.listeners.at(address)
        return len(one) > 1 or len(other) > 1 or bool(one and other and one != other)

    # ------------------------------------------------------------

    def _held(self, address: str) -> Owner | tuple[NodeSession, ...]:
        """Whose an address is, or the nearest above it that is anybody's: the account that named it, or the sessions
        that hold it; none if it is nobody's."""
        for one in _lineage(address):
            found = self.names.owner(one) or self.holders.at(one)
            if found:
                return found
        return ()

    def _is_child(self, address: str, session: NodeSession) -> bool:
        """Whether an address is a child, as the first generation writes it, of somebody else's object."""
        if object_of(address) != address or address in self.holders:
            return False
        parent = address.rpartition("/")[0]
        holders = self.holders.at(parent) if parent else ()
        is_runtime = any(holder.runtime_url == parent for holder in holders)
        return bool(holders) and not is_runtime and not self.belongs(parent, session)

    def _claim(self, address: str, session: NodeSession) -> None:
        """Hold an address for as long as the session listens to it."""
        self.check(address, session)
        if address not in session.held:
            session.claimed.add(address)
            self._add(address, session)

    def _add(self, address: str, session: NodeSession, key: str | None = None) -> None:
        if not self._settings.compatible and not is_open(address):
            # Heard by others while it was nobody's; from now on it is not theirs to hear.
            for listener in self.listeners.at(address):
                if not are_one(listener, session):
                    self.unlisten(address, listener)
        self._place(address, session, key)
        self._journal.held(session, address, key)

    def _place(self, address: str, session: NodeSession, key: str | None) -> None:
        if address in session.held:
            key = key or session.held[address]
            self._displace(address, session)
        self.version += 1
        self.holders.add(address, session)
        session.hold(address, key)
        if key is not None:
            self.keyed.add(key, session)

    def _let_go(self, address: str, session: NodeSession) -> None:
        self.version += 1
        self._displace(address, session)
        self.holders.remove(address, session)
        self._journal.released(session, address)

    def _displace(self, address: str, session: NodeSession) -> None:
        key = session.held.get(address)
        session.let_go(address)
        if key is not None and key not in session.keys:
            self.keyed.remove(key, session)


def are_one(session: NodeSession, other: NodeSession) -> bool:
    """Whether two sessions share what they have: those of one account, and guests of one runtime."""
    if session.principal.is_same(other.principal):
        return True
    return session.runtime_url == other.runtime_url and _are_alike(session.principal, other.principal)


def _lineage(address: str) -> Iterator[str]:
    """An address and those above it, up to the first level below the domain."""
    yield address
    # Before the first slash of the path stands a domain, or a scheme without one.
    start = address.find("://")
    first = address.find("/", start + 3) if start >= 0 else address.find(":/") + 1
    while first >= 0 and (cut := address.rfind("/")) > first:
        address = address[:cut]
        yield address


def _are_alike(one: Principal, other: Principal) -> bool:
    return one.is_same(other) or (one.role == other.role == "guest")
