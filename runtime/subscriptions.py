"""Who wants which publications: an index whose cost per match does not grow with the number of subscriptions.

A pattern is concrete or "any" at each of four levels, so at most sixteen look-ups find every match; only the shapes in
use are tried.
"""

from collections.abc import Mapping, Sequence

from runtime.ports import Pattern, Session
from things.addresses import Kind, TwinID

Tags = tuple[object, ...]

_Shape = tuple[bool, bool, bool, bool]


class Subscriptions:
    """Patterns of sessions, each with a tag by which the session recognises its subscription."""

    def __init__(self) -> None:
        self._by_pattern: dict[Pattern, dict[Session, Tags]] = {}
        self._by_session: dict[Session, tuple[Pattern, ...]] = {}
        self._shapes: dict[_Shape, int] = {}
        self._counts: dict[Session, int] = {}

    def add(self, session: Session, pattern: Pattern, tag: object) -> None:
        """Remember one; the same tag again changes nothing."""
        bucket = self._by_pattern.get(pattern)
        if bucket is None:
            bucket = self._by_pattern[pattern] = {}
            shape = _shape(pattern)
            self._shapes[shape] = self._shapes.get(shape, 0) + 1
        tags = bucket.get(session, ())
        if tag not in tags:
            if not tags:
                self._by_session[session] = (*self._by_session.get(session, ()), pattern)
            bucket[session] = (*tags, tag)
            self._counts[session] = self._counts.get(session, 0) + 1

    def remove(self, session: Session, pattern: Pattern, tag: object) -> bool:
        """Forget one; False if it was not there."""
        bucket = self._by_pattern.get(pattern)
        tags = bucket.get(session, ()) if bucket else ()
        if bucket is None or tag not in tags:
            return False
        left = tuple(other for other in tags if other != tag)
        self._counts[session] -= 1
        if left:
            bucket[session] = left
        else:
            self._drop(session, pattern, bucket)
        return True

    def remove_all(self, session: Session) -> None:
        """Forget everything of a session."""
        for pattern in self._by_session.pop(session, ()):
            self._drop(session, pattern, self._by_pattern[pattern])
        self._counts.pop(session, None)

    def count(self, session: Session) -> int:
        """How many subscriptions a session holds."""
        return self._counts.get(session, 0)

    def patterns(self, session: Session) -> Sequence[Pattern]:
        """What a session asked for."""
        return self._by_session.get(session, ())

    def __len__(self) -> int:
        return sum(self._counts.values())

    def match(self, twin: TwinID, kind: Kind, name: str) -> Mapping[Session, Tags]:
        """The sessions that asked for a twin's series, each with the tags of all its subscriptions that match."""
        agent, thing = twin.account, twin.thing
        found: Mapping[Session, Tags] = {}
        merged: dict[Session, Tags] | None = None
        for any_agent, any_thing, any_kind, any_name in self._shapes:
            bucket = self._by_pattern.get(
                Pattern(
                    None if any_agent else agent,
                    None if any_thing else thing,
                    None if any_kind else kind,
                    None if any_name else name,
                )
            )
            if not bucket:
                continue
            if not found:
                found = bucket
                continue
            if merged is None:
                merged = dict(found)
                found = merged
            for session, tags in bucket.items():
                merged[session] = merged.get(session, ()) + tags
        return found

    def _drop(self, session: Session, pattern: Pattern, bucket: dict[Session, Tags]) -> None:
        bucket.pop(session, None)
        patterns = self._by_session.get(session)
        if patterns is not None:
            if left := tuple(other for other in patterns if other != pattern):
                self._by_session[session] = left
            else:
                del self._by_session[session]
        if not bucket:
            del self._by_pattern[pattern]
            shape = _shape(pattern)
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]


def _shape(pattern: Pattern) -> _Shape:
    return (pattern.agent is None, pattern.thing is None, pattern.kind is None, pattern.name is None)
