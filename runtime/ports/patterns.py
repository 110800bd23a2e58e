"""What was asked for by pattern, found by series."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from runtime.ports.clients import Pattern
from things.addresses import TwinID

T = TypeVar("T")


class ByPattern(Generic[T]):
    """Things asked for, each by a pattern. A pattern is concrete or any at each of four levels, so at most sixteen
    look-ups find all that match a series, however many there are."""

    def __init__(self, asked: Iterable[tuple[Pattern, T]]) -> None:
        self._asked: dict[tuple[str | None, ...], list[T]] = {}
        for pattern, what in asked:
            self._asked.setdefault(pattern, []).append(what)
        self._shapes = {(a is None, t is None, k is None, n is None) for a, t, k, n in self._asked}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def matching(self, twin: TwinID, kind: str, name: str) -> Sequence[T]:
        """What asks for a series."""
        found: list[T] = []
        for any_agent, any_thing, any_kind, any_name in self._shapes:
            pattern = (
                None if any_agent else twin.account,
                None if any_thing else twin.thing,
                None if any_kind else kind,
                None if any_name else name,
            )
            # A pattern is a tuple, and a kind its text.
            found += self._asked.get(pattern, ())
        return found
