"""Which Things and names somebody means: `dtw:pumps:pump-1/flow`, `dtw:pumps:*`, `dtw:*`, `pumps/pump-1/flow`.

A pattern names an agent, a Thing and a name; `*` stands for any, also inside a level (`temp*`). The runtime is asked
for whole levels, the rest is sifted here.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from things.errors import BadAddress

_ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePattern:
    """One level each; `*` inside a level stands for any characters."""

    agent: str = _ALL
    thing: str = _ALL
    name: str = _ALL
    kind: str = _ALL

    @staticmethod
    def parse(text: str, *, kind: str | None = None) -> "ChangePattern":
        """`dtw:AGENT:THING[/NAME]` or `AGENT/THING[/NAME]`, missing levels being any; raises BadAddress."""
        if text.startswith("dtw:"):
            thing_id, _, name = text.partition("/")
            agent, _, thing = thing_id.removeprefix("dtw:").partition(":")
        else:
            agent, _, rest = text.partition("/")
            thing, _, name = rest.partition("/")
        if not agent or "/" in name:
            raise BadAddress(f"{text!r} names no Things; write dtw:AGENT:THING/NAME, with * for any")
        return ChangePattern(agent=agent, thing=thing or _ALL, name=name or _ALL, kind=kind or _ALL)

    def query(self) -> list[tuple[str, str]]:
        """What the runtime is asked for: levels without a wildcard."""
        levels = {"agent": self.agent, "thing": self.thing, "name": self.name, "kind": self.kind}
        return [(key, value) for key, value in levels.items() if _ALL not in value]

    def matches(self, thing_id: str, kind: str, name: str) -> bool:
        agent, _, thing = thing_id.removeprefix("dtw:").partition(":")
        return (
            fnmatchcase(agent, self.agent)
            and fnmatchcase(thing, self.thing)
            and fnmatchcase(name, self.name)
            and fnmatchcase(kind, self.kind)
        )
