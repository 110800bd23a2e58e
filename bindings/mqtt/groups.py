"""Shared subscriptions (`$share/{group}/{filter}`): each publication goes to one session of an account's group.

A group is a session of its own in the runtime's register, under the account of its members, so that matching and
permission are decided once and the choice among the members is all that happens here: round robin, skipping those
whose link takes nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bindings.mqtt.clients import BINDING, ClientSession, subscribe_patterns
from bindings.mqtt.engines.seam import Grant, SubscribeOptions
from bindings.mqtt.topics import SharedFilter
from runtime.ports import Publication, Request, Sessions
from things.delivery import DeliveryStatus
from things.identity import Principal


class Key(NamedTuple):
    """Groups of one name belong together only within an account and for one filter."""

    account: str
    filter: str


class Group:
    """The members of one group (`runtime.ports.Session`)."""

    binding = BINDING
    source = None
    place = None

    def __init__(self, session_id: str, principal: Principal) -> None:
        self.session_id = session_id
        self.principal = principal
        self.members: OrderedDict[ClientSession, SubscribeOptions] = OrderedDict()

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        for member, options in list(self.members.items()):
            self.members.move_to_end(member)
            if member.deliver(publication, (options,)):
                return

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        return True

    def close(self, reason: str) -> None:
        for member in list(self.members):
            member.close(reason)


class Groups:
    """All groups of the binding."""

    def __init__(self, sessions: Sessions, new_id: Callable[[], str]) -> None:
        self._sessions = sessions
        self._new_id = new_id
        self._groups: dict[Key, Group] = {}

    def join(self, member: ClientSession, text: str, parsed: SharedFilter, options: SubscribeOptions) -> Grant:
        """Add a member; the first one opens the group. Raises Forbidden, QueueFull. Latest values are not sent, as MQTT
        says of shared subscriptions."""
        key = Key(member.principal.account, text)
        group = self._groups.get(key)
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
        return Grant(qos=options.qos)

    def leave(self, member: ClientSession, text: str) -> bool:
        """Remove a member; the last one closes the group. False if it was none."""
        key = Key(member.principal.account, text)
        group = self._groups.get(key)
        if group is None or group.members.pop(member, None) is None:
            return False
        if not group.members:
            del self._groups[key]
            self._sessions.closed(group)
        return True

    def leave_all(self, member: ClientSession) -> None:
        """Remove a member from all its groups."""
        for key, group in list(self._groups.items()):
            if member in group.members:
                self.leave(member, key.filter)

    def renewed(self, principal: Principal) -> None:
        """Members of this account go on under a fresh credential."""
        for key, group in self._groups.items():
            if key.account == principal.account:
                group.principal = principal
                self._sessions.renewed(group, principal)
