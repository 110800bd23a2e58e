"""Message ids seen lately, so that a repeated message is recognised even where it does not say when it happened."""

MAX_RECENT = 100_000
RECENT_US = 600_000_000

Series = tuple[str, str, str]
Identity = tuple[int, Series]
"""A hashed message id and the series it was for."""


class RecentIDs:
    """Row ids by identity, at least for the given number of ids and time, at most for twice as many; used by the writer
    thread alone.

    Two generations instead of an order by age: forgetting costs nothing per id.
    """

    def __init__(self, *, max_ids: int = MAX_RECENT, max_age_us: int = RECENT_US) -> None:
        self._max_ids = max_ids
        self._max_age_us = max_age_us
        self._began = 0
        self._young: dict[Identity, int] = {}
        self._old: dict[Identity, int] = {}

    def find(self, identity: Identity) -> int | None:
        """The row that has this message."""
        return self._young.get(identity) or self._old.get(identity)

    def add(self, identity: Identity, row_id: int) -> None:
        """Remember a row."""
        self._young[identity] = row_id

    def forget(self, identity: Identity) -> None:
        """The row was not stored after all."""
        self._young.pop(identity, None)

    def turn(self, now: int) -> None:
        """Let the older generation go when the younger one is large or old enough; called once a group."""
        if len(self._young) >= self._max_ids or abs(now - self._began) > self._max_age_us:
            self._old, self._young, self._began = self._young, {}, now
