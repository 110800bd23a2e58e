"""Who is given the publications of a series: those who subscribed to it and may see it, as far as that can be
remembered."""

from collections.abc import Callable, Sequence

from runtime.ports import Authorizer, Session
from runtime.publications.subscriptions import Subscriptions, Tags
from runtime.publications.visibility import SEEN_AS
from things.addresses import Address, Kind, TwinID
from things.bounded import Bounded
from things.identity import Principal

MAX_AUDIENCES = 131_072
"""Series and receivers whose match and decision are remembered, together."""

Audience = Sequence[tuple[Session, Tags]]
Series = tuple[str, Kind, str]


class Audiences:
    """The audience of each series. Whoever changes subscriptions, sessions or principals calls `forget`; a change of
    rights is noticed here."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        authorizer: Authorizer,
        principal_of: Callable[[Session], Principal | None],
        most: int = MAX_AUDIENCES,
    ) -> None:
        """`principal_of`: that of a live session, None for another. `most`: series and receivers that are
        remembered."""
        self._subscriptions = subscriptions
        self._authorizer = authorizer
        self._principal_of = principal_of
        self._most = most
        self._known: Bounded[Series, Audience] = Bounded(most)
        self._room = most
        self._version = -1

    def of(self, series: Series) -> Audience:
        """The sessions that asked for a series and may see it. Remembered while no decision can hang on its
        context."""
        authorizer = self._authorizer
        if authorizer.is_conditional:
            return self._permitted(series)
        if self._version != authorizer.version:
            self.forget()
            self._version = authorizer.version
        known = self._known.get(series)
        if known is None:
            known = self._permitted(series)
            cost = 1 + len(known)
            if cost <= self._most:
                while cost > self._room:
                    _, discarded = self._known.discard_one()
                    self._room += 1 + len(discarded)
                self._room -= cost
                self._known[series] = known
        return known

    def forget(self) -> None:
        """Find every audience anew when it is next asked for."""
        if self._known:
            self._known.clear()
            self._room = self._most

    def _permitted(self, series: Series) -> Audience:
        thing_id, kind, name = series
        operation, decide, address = SEEN_AS[kind], self._authorizer.decide, Address(*series)
        return tuple(
            (session, tags)
            for session, tags in self._subscriptions.match(TwinID.parse(thing_id), kind, name).items()
            if (principal := self._principal_of(session)) is not None and decide(principal, operation, address).allowed
        )
