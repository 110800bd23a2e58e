"""Who wants which publications: an index whose cost per match does not grow with the number of subscriptions.

A pattern is concrete or "any" at each of four levels, so at most sixteen look-ups find every match; only the shapes in
use are tried. Most patterns are one session's alone, so that a table of sessions is made for the second.
"""

from collections.abc import Mapping

from runtime.ports import Pattern, Session
from things.addresses import Kind, TwinID

Tags = tuple[object, ...]

_Sole = tuple[Session, Tags]
_Bucket = _Sole | dict[Session, Tags]
_Shape = tuple[bool, bool, bool, bool]


class Subscriptions:
    """Patterns of sessions, each with a tag by which the session recognises its subscription."""

    def __init__(self) -> None:
        self._by_pattern: dict[Pattern, _Bucket] = {}
        self._by_session: dict[Session, tuple[Pattern, ...]] = {}
        """A pattern once for each of its tags."""
        self._shapes: dict[_Shape, int] = {}

    def add(self, session: Session, pattern: Pattern, tag: object) -> None:
        """Remember one; the same tag again changes nothing."""
        bucket = self._by_pattern.get(pattern)
        if bucket is None:
            shape = _shape(pattern)
            self._shapes[shape] = self._shapes.get(shape, 0) + 1
        tags = _tags(bucket, session)
        if tag not in tags:
            self._by_session[session] = (*self._by_session.get(session, ()), pattern)
            self._by_pattern[pattern] = _with(bucket, session, (*tags, tag))

    def remove(self, session: Session, pattern: Pattern, tag: object) -> bool:
        """Forget one; False if it was not there."""
        bucket = self._by_pattern.get(pattern)
        tags = _tags(bucket, session)
        if tag not in tags:
            return False
        standing = list(self._by_session[session])
        standing.remove(pattern)
        if standing:
            self._by_session[session] = tuple(standing)
        else:
            del self._by_session[session]
        if left := tuple(other for other in tags if other != tag):
            self._by_pattern[pattern] = _with(bucket, session, left)
        else:
            self._drop(session, pattern)
        return True

    def remove_all(self, session: Session) -> None:
        """Forget everything of a session."""
        for pattern in set(self._by_session.pop(session, ())):
            self._drop(session, pattern)

    def count(self, session: Session) -> int:
        """How many subscriptions a session holds."""
        return len(self._by_session.get(session, ()))

    def __len__(self) -> int:
        return sum(len(patterns) for patterns in self._by_session.values())

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
            if bucket is None:
                continue
            if not found:
                found = _sessions(bucket)
                continue
            if merged is None:
                merged = dict(found)
                found = merged
            for session, tags in _sessions(bucket).items():
                merged[session] = merged.get(session, ()) + tags
        return found

    def _drop(self, session: Session, pattern: Pattern) -> None:
        bucket = self._by_pattern[pattern]
        if isinstance(bucket, dict):
            del bucket[session]
            if bucket:
                return
        del self._by_pattern[pattern]
        shape = _shape(pattern)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]


def _sessions(bucket: _Bucket) -> Mapping[Session, Tags]:
    return bucket if isinstance(bucket, dict) else dict((bucket,))


def _tags(bucket: _Bucket | None, session: Session) -> Tags:
    if isinstance(bucket, dict):
        return bucket.get(session, ())
    return bucket[1] if bucket is not None and bucket[0] is session else ()


def _with(bucket: _Bucket | None, session: Session, tags: Tags) -> _Bucket:
    """The bucket with these tags for a session."""
    if isinstance(bucket, dict):
        bucket[session] = tags
        return bucket
    if bucket is None or bucket[0] is session:
        return session, tags
    return dict((bucket, (session, tags)))


def _shape(pattern: Pattern) -> _Shape:
    return (pattern.agent is None, pattern.thing is None, pattern.kind is None, pattern.name is None)
