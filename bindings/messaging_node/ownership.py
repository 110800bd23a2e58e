"""Who may register what in the domain registry: addresses by whom they belong to, users by their own accounts.

The members that an entry is found by are held to the same: nobody is looked up under a user of this domain that is
another account. The compatibility profile has no owners; the node's own addresses are nobody's even there.
"""

from collections.abc import Iterable

from bindings.messaging_node.routes import RESERVED, Routes
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.envelopes import domain_of, scheme_of
from things.errors import Forbidden
from things.identity import Principal

_USERS = frozenset({"user", "user-guid"})


class Ownership:
    """Checks registrations against the table of routes."""

    def __init__(self, settings: NodeSettings, routes: Routes) -> None:
        self._settings = settings
        self._routes = routes

    def check(self, url: str, terms: Iterable[str], caller: NodeSession) -> None:
        """Raise Forbidden unless `caller` may register `url`, to be found by `terms`."""
        if scheme_of(url) in RESERVED:
            raise Forbidden(f"{url[:80]!r} is the node's own")
        if self._settings.compatible:
            return
        if not self._routes.belongs(url, caller):
            raise Forbidden(f"{url[:80]!r} belongs to somebody else")
        for term in terms:
            user = self._user(term)
            if user is not None and user != caller.principal.account:
                raise Forbidden(f"{term[:80]!r} is another account's")

    def may_change(self, url: str, owner: Principal, caller: NodeSession) -> bool:
        """Whether `caller` may change what `owner` registered: it is the same account, both are guests, or the address
        is the caller's by now."""
        own = caller.principal
        if self._settings.compatible or owner.is_same(own):
            return True
        if owner.is_guest and own.is_guest:
            return True
        return self._routes.is_held_by(url, own) is True

    def is_overtaken(self, url: str, owner: Principal) -> bool:
        """Whether the address has come to belong to another account than the one that registered it."""
        if self._settings.compatible or owner.is_guest:
            return False
        return self._routes.is_held_by(url, owner) is False

    def _user(self, term: str) -> str | None:
        """The account that a user's address of this domain names."""
        if scheme_of(term) not in _USERS or domain_of(term) != self._settings.domain:
            return None
        return term.partition("://")[2].partition("/")[2].partition("/")[0]
