"""Shared subscriptions (`$share/{group}/{filter}`): each publication goes to one session of an account's group.

A group is a session of its own in the runtime's register, under the account of its members, so that matching and
permission are decided once and the choice among the members is all that happens here: round robin, skipping those
whose link takes nothing. What a member has not confirmed when it leaves goes to another.

While all members are away the group has a position in history, as a session has: the first that comes back is given
what was told since, and until it has caught up it is given what is new, too. The position is written from time to time;
after a kill a group goes on a moment earlier, and its members get some of it again.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from bindings.mqtt.clients import BINDING, ClientSession, subscribe_patterns
from bindings.mqtt.engines.seam import Grant, SubscribeOptions
from bindings.mqtt.positions import Positions
from bindings.mqtt.topics import SharedFilter, parse_filter
from runtime.ports import Publication, Request, Sessions
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.identity import Principal

MAX_UNCONFIRMED = 10_000
"""Publications that a group gave to members and would give to others; more than that stay with who has them."""


class Key(NamedTuple):
    """Groups of one name belong together only within an account and for one filter."""

    account: str
    filter: str


class Group:
    """The members of one group that are connected (`runtime.ports.Session`)."""

    binding = BINDING
    source = None
    place = None

    def __init__(self, session_id: str, principal: Principal) -> None:
        self.session_id = session_id
        self.principal = principal
        self.members: OrderedDict[ClientSession, SubscribeOptions] = OrderedDict()
        self.catching_up: ClientSession | None = None
        """The member that is given what the group has missed."""
        self.caught_up_to = 0
        """How far it has come."""
        self._unconfirmed: dict[int, tuple[ClientSession, Publication]] = {}
        """What members were given, by row."""

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        behind = self.catching_up
        if behind is not None:
            if behind.link.is_behind:
                behind.deliver(publication, (self.members[behind],))
                return
            self.catching_up = None
        row_id = publication.row_id
        for member, options in list(self.members.items()):
            self.members.move_to_end(member)
            is_kept = bool(row_id and options.qos and len(self._unconfirmed) < MAX_UNCONFIRMED)
            if is_kept:
                self._unconfirmed[row_id] = (member, publication)
            confirmed = partial(self._unconfirmed.pop, row_id, None) if is_kept else None
            if member.deliver(publication, (options,), is_owed=False, delivered=confirmed):
                return
            self._unconfirmed.pop(row_id, None)

    def leave(self, member: ClientSession, told_row: int) -> int:
        """Remove a member; the row up to which the group has been served."""
        del self.members[member]
        if self.catching_up is member:
            self.catching_up = None
            return self.caught_up_to
        left = [publication for one, publication in self._unconfirmed.values() if one is member]
        position = self.served(told_row)
        for publication in left:
            del self._unconfirmed[publication.row_id]
            if self.members:
                self.publish(publication, ())
        return position

    def served(self, told_row: int) -> int:
        """The row up to which members have confirmed all."""
        if self.catching_up is not None and self.catching_up.link.is_behind:
            return self.caught_up_to
        return min(min(self._unconfirmed, default=told_row + 1) - 1, told_row)

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        return True

    def close(self, reason: str) -> None:
        for member in list(self.members):
            member.close(reason)


class Groups:
    """All groups of the binding."""

    def __init__(self, sessions: Sessions, new_id: Callable[[], str], positions: Positions) -> None:
        """`positions` are those of groups, by account and filter."""
        self._sessions = sessions
        self._new_id = new_id
        self._positions = positions
        self._groups: dict[Key, Group] = {}
        self._away: Counter[Key] = Counter()
        """Kept sessions without their clients that have a group among their filters."""
        self._empty: set[Key] = set()
        """Groups that nobody is connected for, though somebody was lately."""

    def join(self, member: ClientSession, text: str, parsed: SharedFilter, options: SubscribeOptions) -> Grant:
        """Add a member; the first one opens the group, and is owed what it has missed. Raises Forbidden, QueueFull.
        Latest values are not sent, as MQTT says of shared subscriptions."""
        key = Key(member.principal.account, text)
        group = self._groups.get(key)
        is_first = group is None
        if group is None:
            group = Group(self._new_id(), member.principal)
            self._sessions.opened(group)
            try:
                subscribe_patterns(self._sessions, group, parsed.shared.patterns, text)
            except BaseException:
                self._sessions.closed(group)
                raise
            self._groups[key] = group
        group.members[member] = options
        is_known, position, told_row = key in self._positions, self._positions.get(key), self._sessions.told_row
        self._empty.discard(key)
        if not is_first or not options.qos or not is_known or position >= told_row:
            return Grant(qos=options.qos)
        group.catching_up, group.caught_up_to = member, position
        return Grant(qos=options.qos, owed_since=position)

    def leave(self, member: ClientSession, text: str) -> bool:
        """Remove a member; the last one closes the group. False if it was none."""
        key = Key(member.principal.account, text)
        group = self._groups.get(key)
        if group is None or member not in group.members:
            return False
        position = group.leave(member, self._sessions.told_row)
        if not group.members:
            del self._groups[key]
            self._sessions.closed(group)
            self._positions.put(key, position)
            self._empty.add(key)
        return True

    def leave_all(self, member: ClientSession) -> None:
        """Remove a member from all its groups."""
        for key, group in list(self._groups.items()):
            if member in group.members:
                self.leave(member, key.filter)

    def away(self, account: str, filters: Mapping[str, SubscribeOptions]) -> Sequence[Key]:
        """A kept session with these filters waits for its client; the groups that wait for it."""
        keys = []
        for text, options in filters.items():
            if text.startswith("$share/") and options.qos:
                with suppress(SkepError):
                    if isinstance(parse_filter(text, account), SharedFilter):
                        key = Key(account, text)
                        keys.append(key)
                        if key not in self._positions and key not in self._groups:
                            # It was new when the runtime was killed.
                            self._positions.put(key, options.since_row)
        self._away.update(keys)
        return tuple(keys)

    def back(self, keys: Iterable[Key]) -> None:
        """A session that was away is not any more: its client is back, or it ended."""
        for key in keys:
            self._away[key] -= 1
            if not self._away[key]:
                del self._away[key]
                self._empty.add(key)

    def tick(self) -> None:
        """Note how far each group is, and forget those that nobody is in any more."""
        for key in self._empty:
            if key not in self._groups and key not in self._away:
                self._positions.drop(key)
        self._empty.clear()
        for key, group in self._groups.items():
            self._positions.put(key, group.served(self._sessions.told_row))

    def owed(self, member: ClientSession, text: str, after: int) -> bool:
        """Whether this member is given what the group of a filter has missed; it has come to row `after`."""
        group = self._groups.get(Key(member.principal.account, text))
        if group is None or group.catching_up is not member:
            return False
        group.caught_up_to = max(group.caught_up_to, after)
        return True

    def renewed(self, principal: Principal) -> None:
        """Members of this account go on under a fresh credential."""
        for key, group in self._groups.items():
            if key.account == principal.account:
                group.principal = principal
                self._sessions.renewed(group, principal)
