"""Shared subscriptions (`$share/{group}/{filter}`): each publication goes to one session of an account's group.

A group is a session of its own in the runtime's register, under the account of its members, so that matching and
permission are decided once and the choice among the members is all that is left (`bindings.mqtt.group`).

While all members are away the group has a position in history, as a session has: who comes back is given what was told
since, before what is new. The position is written from time to time; after a kill a group goes on a moment earlier, and
its members get some of it again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from bindings.mqtt.clients import ClientSession, subscribe_patterns
from bindings.mqtt.engines.seam import Grant, SubscribeOptions
from bindings.mqtt.group import Group, Start
from bindings.mqtt.missed import MissedRows
from bindings.mqtt.positions import Positions
from bindings.mqtt.topics import SharedFilter, parse_filter
from runtime.ports import Sessions
from things.errors import SkepError
from things.identity import Principal


class Key(NamedTuple):
    """Groups of one name belong together only within an account and for one filter."""

    account: str
    filter: str


class Groups:
    """All groups of the binding."""

    def __init__(
        self, sessions: Sessions, new_id: Callable[[], str], positions: Positions, rows: MissedRows, start: Start
    ) -> None:
        """`positions` are those of groups, by account and filter; `rows` is what they have missed."""
        self._sessions = sessions
        self._rows = rows
        self._start = start
        self._new_id = new_id
        self._positions = positions
        self._groups: dict[Key, Group] = {}
        self._away: Counter[Key] = Counter()
        """Kept sessions without their clients that have a group among their filters."""
        self._empty: set[Key] = set()
        """Groups that nobody is connected for, though somebody was lately."""

    def join(self, member: ClientSession, text: str, parsed: SharedFilter, options: SubscribeOptions) -> Grant:
        """Add a member; the first one opens the group, which is owed what it has missed. Raises Forbidden, QueueFull.
        Latest values are not sent, as MQTT says of shared subscriptions."""
        key = Key(member.principal.account, text)
        if (group := self._groups.get(key)) is not None:
            group.join(member, options)
            return Grant(qos=options.qos)
        patterns = parsed.shared.patterns
        group = Group(self._new_id(), member.principal, patterns, self._sessions, self._rows, self._start)
        self._sessions.opened(group)
        try:
            subscribe_patterns(self._sessions, group, patterns, text)
        except BaseException:
            self._sessions.closed(group)
            raise
        self._groups[key] = group
        group.join(member, options)
        # Who comes with QoS 0 takes part in what waits for another, and is owed nothing itself.
        if (options.qos or self._away[key]) and key in self._positions:
            position = self._positions.get(key)
            if position < self._sessions.published_row:
                group.owe(position)
        self._empty.discard(key)
        return Grant(qos=options.qos)

    def leave(self, member: ClientSession, text: str) -> bool:
        """Remove a member; the last one closes the group. False if it was none."""
        key = Key(member.principal.account, text)
        group = self._groups.get(key)
        if group is None or member not in group.members:
            return False
        group.leave(member)
        if not group.members:
            del self._groups[key]
            self._sessions.closed(group)
            self._positions.put(key, group.served)
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
            self._positions.put(key, group.served)

    def renewed(self, principal: Principal) -> None:
        """Members of this account go on under a fresh credential."""
        for key, group in self._groups.items():
            if key.account == principal.account:
                group.principal = principal
                self._sessions.renewed(group, principal)
