"""What somebody has to sign to show that they hold the private key of a public one: fresh text, good once."""

import secrets
from collections.abc import Callable

from things.bounded import Recent

CHALLENGE_S = 600.0
MAX_CHALLENGES = 1_000


class Challenges:
    """Challenges by the name they were made for; the oldest go first where there are too many."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._made = Recent[tuple[str, str], float](MAX_CHALLENGES)

    def make(self, name: str) -> str:
        challenge = secrets.token_urlsafe(24)
        self._made[name, challenge] = self._monotonic()
        return challenge

    def is_met(self, name: str, challenge: str | None) -> bool:
        """Whether this is a challenge of theirs, in time; it is spent by asking."""
        made = self._made.pop((name, challenge or ""), None)
        return made is not None and self._monotonic() - made < CHALLENGE_S
