"""The subscription index against a naive oracle."""

import sys
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from runtime.ports import Pattern, Publication, Session
from runtime.publications.subscriptions import Subscriptions
from tests.runtime.doubles import RecordingSession
from things.addresses import Kind, TwinID

_AGENTS = ("a", "b")
_THINGS = ("x", "y")
_NAMES = ("n", "m")

patterns = st.builds(
    Pattern,
    st.sampled_from((None, *_AGENTS)),
    st.sampled_from((None, *_THINGS)),
    st.sampled_from((None, Kind.EVENT, Kind.PROPERTY)),
    st.sampled_from((None, *_NAMES)),
)
publications = st.builds(
    lambda agent, thing, kind, name: Publication(
        twin=TwinID.of(agent, thing),
        thing_id=f"dtw:{agent}:{thing}",
        kind=kind,
        name=name,
        value=1,
        payload=b"1",
        created=0,
    ),
    st.sampled_from(_AGENTS),
    st.sampled_from(_THINGS),
    st.sampled_from((Kind.EVENT, Kind.PROPERTY)),
    st.sampled_from(_NAMES),
)


@dataclass(frozen=True)
class Step:
    adds: bool
    session: int
    pattern: Pattern
    tag: int


steps = st.lists(st.builds(Step, st.booleans(), st.integers(0, 2), patterns, st.integers(0, 1)), max_size=30)


def _matches(pattern: Pattern, publication: Publication) -> bool:
    asked = (publication.twin.account, publication.twin.thing, publication.kind, publication.name)
    return all(want is None or want == have for want, have in zip(pattern, asked, strict=True))


@given(steps, publications)
def test_index_finds_exactly_the_sessions_and_tags_a_scan_would_find(
    todo: list[Step], publication: Publication
) -> None:
    sessions: list[Session] = [RecordingSession(f"s{number}") for number in range(3)]
    index = Subscriptions()
    model: set[tuple[int, Pattern, int]] = set()

    for step in todo:
        key = (step.session, step.pattern, step.tag)
        if step.adds:
            index.add(sessions[step.session], step.pattern, step.tag)
            model.add(key)
        else:
            assert index.remove(sessions[step.session], step.pattern, step.tag) == (key in model)
            model.discard(key)

    expected: dict[Session, list[object]] = {}
    for number, pattern, tag in model:
        if _matches(pattern, publication):
            expected.setdefault(sessions[number], []).append(tag)
    found = {
        session: sorted(tags, key=str)
        for session, tags in index.match(publication.twin, publication.kind, publication.name).items()
    }
    assert found == {session: sorted(tags, key=str) for session, tags in expected.items()}
    assert len(index) == len(model)


def test_a_session_that_ends_leaves_nothing_behind() -> None:
    session = RecordingSession("s")
    index = Subscriptions()
    index.add(session, Pattern("a"), 1)
    index.add(session, Pattern("a"), 2)
    index.add(session, Pattern(None, "x"), 1)

    index.remove_all(session)

    assert len(index) == 0
    assert index.count(session) == 0
    assert not index.match(TwinID.of("a", "x"), Kind.EVENT, "n")


def test_a_session_that_takes_everything_back_leaves_nothing_behind() -> None:
    session = RecordingSession("s")
    index = Subscriptions()
    before = sys.getrefcount(session)
    for tag in (1, 2):
        index.add(session, Pattern("a"), tag)

    for tag in (1, 2):
        index.remove(session, Pattern("a"), tag)

    assert index.count(session) == 0
    assert sys.getrefcount(session) == before
