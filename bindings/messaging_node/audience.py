"""Who may hear what is sent to an address: one decision, made for a SUBSCRIBE and again at each delivery.

Every address that a SUBSCRIBE names, in whatever dialect, is decided as a message of type `subscribe` to that address;
an object that is a Thing is for whoever may observe the Thing. Whose rights end hears nothing more, whatever waits for
it. Holders of an address are no audience: what is sent to them is theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bindings.messaging_node.routes import Routes, are_one, object_of
from bindings.messaging_node.sessions import NodeSession, Permit
from runtime.ports import Pattern, Sink
from things.addresses import Kind, TwinID
from things.bounded import Bounded
from things.decisions import Context
from things.envelopes import Document
from things.errors import Forbidden
from things.messages import JSONValue

MAX_REMEMBERED = 1_000
"""Audiences remembered while neither rights nor subscriptions change."""
MAX_NAMES = 500

Names = tuple[str, ...]
"""The outermost attributes that a change is about; () for the object as a whole."""


class _Known(NamedTuple):
    rights: int
    routes: int
    listeners: tuple[NodeSession, ...]


class Audience:
    """Decides. `thing_of` says which Thing an object's address is, None for those that are none."""

    def __init__(self, routes: Routes, sink: Callable[[], Sink], thing_of: Callable[[str], str | None]) -> None:
        self._routes = routes
        self._sink = sink
        self.thing_of = thing_of
        self._remembered = Bounded[tuple[str, str | None, Names], _Known](MAX_REMEMBERED)

    def check(self, address: str, session: NodeSession, document: Document) -> None:
        """Raise Forbidden unless a session may subscribe to an address now. An object whose Thing is hidden from it is
        answered as one that nobody has, to which it may subscribe as well: nothing comes of either."""
        if not self._may_hear(session, address, {**document, "to": address}):
            raise Forbidden(f"{session.principal.account!r} may not subscribe to {address[:80]!r}")
        thing = self.thing_of(object_of(address))
        if thing is not None and not self.sees(session, thing) and self.knows(session, thing):
            raise Forbidden(f"{session.principal.account!r} may not observe {thing!r}")

    def sees(self, session: NodeSession, thing: str, names: Names = ()) -> bool:
        """Whether a session may observe these properties of a Thing now; with none, whether it may observe any."""
        sessions, principal = self._sink().sessions, session.principal
        if names:
            return all(sessions.may_see(principal, thing, Kind.PROPERTY, name) for name in names)
        twin = TwinID.parse(thing)
        return sessions.could_see(principal, Pattern(twin.account, twin.thing, Kind.PROPERTY, None))

    def knows(self, session: NodeSession, thing: str) -> bool:
        """Whether a session may know that there is such a Thing: whether it may read its description."""
        twin = TwinID.parse(thing)
        return self._sink().sessions.could_see(session.principal, Pattern(twin.account, twin.thing, Kind.TD, None))

    def receivers(
        self, to: str, document: Document, *, thing: str | None = None, names: Names = ()
    ) -> tuple[Sequence[NodeSession], Permit | None]:
        """Who gets a message to an address: its holders, and those of its listeners who may hear it; and what says so
        again for a listener when its turn comes."""
        holders, listeners = self._routes.holders.at(to), self._routes.listeners.at(to)
        if not listeners:
            return holders, None
        if thing is None:
            thing = self.thing_of(object_of(to))
        sessions = self._sink().sessions
        rights = sessions.rights

        def permitted(session: NodeSession) -> bool:
            if rights is not None and rights == sessions.rights:
                return True
            return session in self._routes.holders.at(to) or self._is_audience(session, to, document, thing, names)

        if rights is None:
            judged = tuple(one for one in listeners if self._is_audience(one, to, document, thing, names))
        else:
            judged = self._known(to, listeners, document, thing, names, rights)
        return (tuple(dict.fromkeys((*judged, *holders))) if holders else judged), permitted

    # ------------------------------------------------------------

    def _known(
        self,
        to: str,
        listeners: tuple[NodeSession, ...],
        document: Document,
        thing: str | None,
        names: Names,
        rights: int,
    ) -> tuple[NodeSession, ...]:
        """The audience, remembered while no decision can have changed."""
        key, version = (to, thing, names), self._routes.version
        known = self._remembered.get(key)
        if known is None or known.rights != rights or known.routes != version:
            judged = tuple(one for one in listeners if self._is_audience(one, to, document, thing, names))
            known = self._remembered[key] = _Known(rights, version, judged)
        return known.listeners

    def _is_audience(self, session: NodeSession, to: str, document: Document, thing: str | None, names: Names) -> bool:
        if not self._routes.may_hear(to, session) or not self._may_hear(session, to, document):
            return False
        return thing is None or self.sees(session, thing, names)

    def _may_hear(self, session: NodeSession, address: str, document: Document) -> bool:
        sink = self._sink()
        context = None
        if sink.sessions.rights is None:
            context = Context(now=sink.clock(), payload=document, binding="node", source=session.source)
        return sink.sessions.may_listen(session.principal, address, context)


def names_of(body: Mapping[str, JSONValue]) -> Names:
    """The outermost attributes that the change in an update's body is about."""
    attribute, value = body.get("attribute"), body.get("value")
    if isinstance(attribute, str):
        return (attribute.partition(".")[0],)
    return tuple(value) if isinstance(value, dict) and len(value) <= MAX_NAMES else ()


def shares(session: NodeSession, holders: Sequence[NodeSession]) -> bool:
    """Whether an address held by these is the session's own."""
    return any(are_one(holder, session) for holder in holders)
