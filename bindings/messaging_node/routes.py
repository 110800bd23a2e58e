"""Where messages go: who holds which address, who listens to which, and who waits for which response.

All matching is exact. An address belongs to the account that first held it, for as long as a session holds it or the
account has named it; in the compatibility profile it belongs to nobody.
"""

from collections import OrderedDict

from bindings.messaging_node.sessions import NodeSession, Pending
from bindings.messaging_node.settings import NodeSettings
from things.bus import Bus
from things.envelopes import Envelope, scheme_of
from things.errors import Conflict, Forbidden, QueueFull

_OPEN_ENDS = ("/changes", "/registration", "/status")
_RESERVED = frozenset({"domain", "global", "mn", "thing"})


def is_open(address: str) -> bool:
    """Whether anyone may listen to an address: changes, registrations, statuses and children are told to whoever asks,
    everything else to who holds it."""
    return address.endswith(_OPEN_ENDS) or "/children/" in address


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
    """The node's table; changed by allocation, subscription and sessions only."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.holders: Bus[NodeSession] = Bus()
        self.listeners: Bus[NodeSession] = Bus()
        self.named: dict[str, str] = {}
        """Accounts by the addresses they asked for by name; these outlive their sessions."""
        self._pending: OrderedDict[Pending, NodeSession] = OrderedDict()

    # ------------------------------------------------------------ addresses

    def owner(self, address: str) -> str | None:
        """The account an address belongs to; None if to nobody."""
        named = self.named.get(address)
        if named is not None:
            return named
        holders = self.holders.at(address)
        return holders[0].principal.account if holders else None

    def belongs(self, address: str, session: NodeSession) -> bool:
        """Whether a session may use an address as its own: it, or another session of its account, holds it, it lies
        below its runtime's, or nobody has it."""
        if address == session.address or _is_below(address, session.runtime_url):
            return True
        if scheme_of(address) in _RESERVED:
            return False
        for one in (address, object_of(address)):
            owner = self.owner(one)
            if owner is not None:
                return owner == session.principal.account
        return True

    def hold(self, address: str, session: NodeSession) -> None:
        """Route an address to a session. Raises Conflict if it is another account's, QueueFull over the quota."""
        if not self._settings.compatible and not self.belongs(address, session):
            raise Conflict(f"{address[:80]!r} belongs to somebody else")
        if address not in session.held and len(session.held) >= self._settings.max_addresses:
            raise QueueFull("this session (addresses)", self._settings.max_addresses)
        self.holders.add(address, session)
        session.held[address] = None
        session.claimed.discard(address)

    def release(self, address: str, session: NodeSession) -> None:
        """Stop routing an address and those below it, whichever session of the account holds it; unknown ones are
        released already. Raises Forbidden if it is another account's."""
        if not self._settings.compatible and not self.belongs(address, session):
            raise Forbidden(f"{address[:80]!r} belongs to somebody else")
        for holder in self.holders.at(address):
            for held in [one for one in holder.held if one == address or one.startswith(f"{address}/children/")]:
                self._let_go(held, holder)

    def listen(self, address: str, session: NodeSession) -> None:
        """Let a session hear what is sent to an address; raises Forbidden for what others hold, QueueFull."""
        if len(session.subscribed) >= self._settings.max_subscriptions and address not in session.subscribed:
            raise QueueFull("this session (subscriptions)", self._settings.max_subscriptions)
        if not self._settings.compatible and not is_open(address) and not self._is_child(address, session):
            is_fresh = address not in session.held
            try:
                self.hold(address, session)
            except Conflict as error:
                raise Forbidden(error.detail) from error
            if is_fresh:
                session.claimed.add(address)
        self.listeners.add(address, session)
        session.subscribed[address] = None

    def _is_child(self, address: str, session: NodeSession) -> bool:
        """Whether an address is a child, as the first generation writes it, of somebody else's object."""
        if object_of(address) != address:
            return False
        owner = self.owner(address.rpartition("/")[0])
        return owner is not None and owner != session.principal.account

    def unlisten(self, address: str, session: NodeSession) -> None:
        """Stop hearing; idempotent."""
        if self.listeners.remove(address, session):
            session.subscribed.pop(address, None)
            if address in session.claimed:
                self._let_go(address, session)

    def free(self, session: NodeSession) -> None:
        """Let go of everything a session has."""
        for address in tuple(session.held):
            self._let_go(address, session)
        for address in tuple(session.subscribed):
            self.listeners.remove(address, session)
        session.subscribed.clear()
        session.keys.clear()
        for key in session.pending:
            self._pending.pop(key, None)
        session.pending.clear()

    def learn(self, address: str, session: NodeSession) -> None:
        """Route an address that was only seen as a sender to whom it was seen from, unless somebody holds it."""
        if address not in self.holders and scheme_of(address) not in _RESERVED:
            self.holders.add(address, session)
            session.held[address] = None

    def receivers(self, address: str) -> tuple[NodeSession, ...]:
        """Who gets a message to this address."""
        holders, listeners = self.holders.at(address), self.listeners.at(address)
        if not holders or not listeners:
            return holders or listeners
        return tuple(dict.fromkeys((*listeners, *holders)))

    # ------------------------------------------------------------ responses

    def asked(self, envelope: Envelope, session: NodeSession) -> None:
        """Remember where the response to a message goes. Raises Conflict where it would go to somebody else: two
        sessions that speak as one unowned address must not get each other's answers."""
        key = (envelope.to, envelope.sender, envelope.id)
        standing = self._pending.get(key)
        if standing is not None and standing is not session:
            if not self._settings.compatible and standing.principal.account != session.principal.account:
                raise Conflict("somebody else waits for an answer to this id from this address")
            standing.pending.discard(key)
        self._pending[key] = session
        session.pending.add(key)
        if len(self._pending) > self._settings.max_pending:
            oldest, asker = self._pending.popitem(last=False)
            asker.pending.discard(oldest)

    def asker(self, envelope: Envelope) -> NodeSession | None:
        """Who asked what this response answers; a final one is the last, unless many were asked."""
        key = (envelope.sender, envelope.to, envelope.id)
        found = self._pending.get(key)
        if found is not None and envelope.body.get("code") != 100 and len(self.receivers(envelope.sender)) < 2:
            del self._pending[key]
            found.pending.discard(key)
        return found

    def _let_go(self, address: str, session: NodeSession) -> None:
        session.held.pop(address, None)
        session.claimed.discard(address)
        self.holders.remove(address, session)


def _is_below(address: str, runtime_url: str) -> bool:
    return bool(runtime_url) and (address == runtime_url or address.startswith(f"{runtime_url}/"))
