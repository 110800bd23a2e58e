"""Whether agents are reachable, published to observers of `online` and `lastSeen` of their Things.

Presence is state of the agent, one row a change; what its Things show is computed when read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.ports import Directory, Publication
from things.addresses import Kind, TwinID
from things.identity import RESERVED_ACCOUNTS
from things.jsontext import encode
from things.messages import JSONValue
from things.times import rfc3339

ONLINE, LAST_SEEN = "online", "lastSeen"


@dataclass(frozen=True, slots=True)
class Seen:
    """One agent: reachable now or not, and since when (µs UTC)."""

    is_online: bool
    since: int


@dataclass(slots=True)
class Presence:
    """The standing presence of every agent that has ever been here."""

    directory: Directory
    publish: Callable[[Publication], None]
    clock: Callable[[], int]
    recorded: Callable[[str, Seen], None]
    """Called with each change, to be stored."""
    _agents: dict[str, Seen] = field(default_factory=dict)

    def restore(self, agent: str, since: int) -> None:
        """At start nobody is online; say when each was last seen."""
        self._agents[agent] = Seen(False, since)

    def of(self, agent: str) -> Seen | None:
        """Presence of an agent, None if it has never been here."""
        return self._agents.get(agent)

    def changed(self, agent: str, is_online: bool) -> None:
        """An agent became reachable, or no longer is."""
        standing = self._agents.get(agent)
        if standing is not None and standing.is_online == is_online:
            return
        seen = self._agents[agent] = Seen(is_online, self.clock())
        self.recorded(agent, seen)
        for thing_id in self.directory.things_of(agent):
            for publication in self.publications(thing_id):
                self.publish(publication)

    def publications(self, thing_id: str) -> Sequence[Publication]:
        """What a new observer of the Thing gets first: both properties, as they are now."""
        entry = self.directory.get(thing_id)
        seen = None if entry is None or entry.agent is None else self._agents.get(entry.agent)
        return [
            Publication(
                twin=TwinID.parse(thing_id),
                thing_id=thing_id,
                kind=Kind.PROPERTY,
                name=name,
                value=value,
                payload=encode(value),
                created=self.clock() if seen is None else seen.since,
            )
            for name, value in self.properties(thing_id).items()
        ]

    def properties(self, thing_id: str) -> dict[str, JSONValue]:
        """`online` and `lastSeen` of a Thing, under `skep:` names where its TD declares these names itself. An agent
        that never was reachable was last seen when it described the Thing."""
        entry = self.directory.get(thing_id)
        if entry is None or entry.agent is None:
            return {}
        seen = self._agents.get(entry.agent)
        # The runtime's own services are here whenever somebody can ask.
        is_online = seen.is_online if seen else entry.agent in RESERVED_ACCOUNTS
        last = self.clock() if is_online else seen.since if seen else entry.created
        own = entry.td.properties
        return {
            (f"skep:{ONLINE}" if ONLINE in own else ONLINE): is_online,
            (f"skep:{LAST_SEEN}" if LAST_SEEN in own else LAST_SEEN): rfc3339(last),
        }
