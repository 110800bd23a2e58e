"""One account, what it left behind, and how its right ended; drawn at random."""

import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

AFTER = "after"
"""What is published once all rights have ended."""

CREDENTIALS = ("token", "password", "login", "certificate")
BEARER = ("token", "login")

ENDING = ("disable", "remove", "remake", "credential", "one", "everything")
"""Those that leave nobody to come: `remake` makes another account of the name, `one` revokes the very credential."""
REVOCATIONS = (*ENDING, "role none", "demote", "rule", "policy")
"""Those that take the right to the Thing."""


@dataclass(frozen=True, slots=True)
class Act:
    """What is put off: by which credentials, and which revocations end the right to it."""

    name: str
    credentials: Sequence[str] = CREDENTIALS
    revocations: Sequence[str] = REVOCATIONS
    is_agents: bool = False


ACTS = (
    Act("will"),
    Act("delayed will"),
    Act("request by MQTT"),
    Act("request by HTTP"),
    Act("parked queue"),
    Act("slow body", BEARER),
    Act("open MQTT connection"),
    Act("event stream"),
    Act("stream by ticket", BEARER),
    Act("long poll"),
    Act("web thing subscription"),
    Act("open web thing socket"),
    Act("node subscription"),
    Act("open node session"),
    Act("away node session"),
    Act("node registration", revocations=ENDING),
    Act("node message that waits", revocations=(*ENDING, "role none")),
    Act("refresh token", ("login",), ENDING),
    Act("agent's will", ("token", "certificate"), ENDING, is_agents=True),
    Act("agent's delayed will", ("token", "certificate"), ENDING, is_agents=True),
    Act("agent's open connection", ("token", "certificate"), ENDING, is_agents=True),
    Act("key for provisioning", ("key",), ENDING, is_agents=True),
)


@dataclass(slots=True, eq=False)
class Case:
    """One account with one act; `heard` is what came of it once its right had ended."""

    name: str
    credential: str
    act: Act
    revocation: str
    secret: str = ""
    tls: ssl.SSLContext | None = None
    revoked_at: int = 0
    heard: list[str] = field(default_factory=list)
    finish: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What can be tried only after the revocation."""

    def hear(self, value: object) -> None:
        """An event that was published; those of before were its to hear."""
        if str(value).startswith(AFTER):
            self.heard.append(str(value))

    def __str__(self) -> str:
        return f"{self.name}: {self.act.name} by {self.credential}, then {self.revocation}"


def drawn(rng: random.Random, count: int) -> list[Case]:
    """Every act and revocation in turn first, in random company; then at random."""
    pairs = [(act, revocation) for act in ACTS for revocation in act.revocations]
    rng.shuffle(pairs)
    # One of each act before a second one of any.
    seen: dict[str, int] = {}
    ranked = []
    for act, revocation in pairs:
        seen[act.name] = seen.get(act.name, 0) + 1
        ranked.append((seen[act.name], act, revocation))
    ranked.sort(key=lambda one: one[0])
    cases = []
    for number in range(count):
        _, act, revocation = ranked[number] if number < len(ranked) else rng.choice(ranked)
        cases.append(Case(f"eve-{number}", rng.choice(act.credentials), act, revocation))
    return cases
