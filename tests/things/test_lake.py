"""Where values land, and what a manifest may say."""

from typing import Any

import pytest

from things.errors import NewerSchema, StorageDamaged
from things.lake import (
    TIME_MAX,
    TIME_MIN,
    Commit,
    Part,
    Placed,
    Quality,
    agent_of,
    commit_document,
    commit_of,
    day_of,
    placed,
    snapshot_of,
)
from things.messages import JSONValue

TYPE, HUGE = int(Quality.TYPE), int(Quality.HUGE)


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (21.5, None, Placed(value_double=21.5)),
        (21, None, Placed(value_double=21.0, value_long=21)),
        (21, "integer", Placed(value_double=21.0, value_long=21)),
        (21, "number", Placed(value_double=21.0)),
        (21.0, "integer", Placed(value_double=21.0, value_long=21)),
        (21.5, "integer", Placed(value_double=21.5, quality=TYPE)),
        (True, "boolean", Placed(value_bool=True)),
        (True, "number", Placed(value_bool=True, quality=TYPE)),
        ("on", "string", Placed(value_string="on")),
        ("on", "number", Placed(value_string="on", quality=TYPE)),
        ({"a": [1]}, "object", Placed(value_json='{"a":[1]}')),
        ([1, 2], None, Placed(value_json="[1,2]")),
        ([1, 2], "object", Placed(value_json="[1,2]", quality=TYPE)),
        (None, "null", Placed(value_json="null")),
        (None, "number", Placed(value_json="null", quality=TYPE)),
        (2**63 - 1, "integer", Placed(value_double=float(2**63), value_long=2**63 - 1)),
        (2**53 + 1, "number", Placed(value_double=2.0**53, value_long=2**53 + 1)),
        (2**53, "number", Placed(value_double=2.0**53)),
        (2**63, "integer", Placed(value_double=float(2**63), value_string=str(2**63), quality=HUGE)),
        (-(10**400), None, Placed(value_string=str(-(10**400)), quality=HUGE)),
        (float("inf"), "number", Placed(value_string="inf", quality=HUGE)),
        (float("nan"), None, Placed(value_string="nan", quality=HUGE)),
    ],
)
def test_a_value_lands_in_one_column_by_its_declared_or_own_type(
    value: JSONValue, declared: str | None, expected: Placed
) -> None:
    assert placed(value, declared) == expected


def test_agents_are_known_by_their_twins_only() -> None:
    assert agent_of("dtw:agent1:lamp") == "agent1"
    assert agent_of("urn:dev:1") is None
    assert agent_of("dtw:broken") is None


def test_days_are_utc_also_before_1970() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(-1) == "1969-12-31"
    assert (day_of(TIME_MIN), day_of(TIME_MAX)) == ("0001-01-01", "9999-12-31")
    assert day_of(1_767_268_799_999_999) == "2026-01-01"


PART = Part(path="readings/gateway=gw/day=2026-01-01/part-1.parquet", rows=3, sha256="ab", first=1, last=3)


def test_a_commit_survives_the_manifest() -> None:
    commit = Commit(
        gateway="gw", seq=4, first=1, last=3, parts=(PART,), replaces=("readings/old",), at=7, marks={"things": 2}
    )

    assert commit_of(commit_document(commit), "x") == commit
    assert (PART.table, PART.gateway, PART.day) == ("readings", "gw", "2026-01-01")


@pytest.mark.parametrize(
    "change",
    [
        {"seq": None},
        {"parts": [{"path": "../outside", "rows": 1, "sha256": "", "first": 1, "last": 1}]},
        {"parts": [{"path": "/etc/passwd", "rows": 1, "sha256": "", "first": 1, "last": 1}]},
        {"parts": 7},
        {"skep.schema": "one"},
        {"marks": []},
    ],
)
def test_a_commit_that_is_none_is_refused(change: dict[str, Any]) -> None:
    document = {**commit_document(Commit(gateway="gw", seq=1, first=1, last=3, parts=(PART,))), **change}

    with pytest.raises(StorageDamaged):
        commit_of(document, "x")


def test_a_commit_of_a_newer_schema_is_refused_as_such() -> None:
    document = {**commit_document(Commit(gateway="gw", seq=1, first=1, last=3)), "skep.schema": 99}

    with pytest.raises(NewerSchema):
        commit_of(document, "x")


def test_unknown_members_of_a_commit_are_ignored() -> None:
    document = {**commit_document(Commit(gateway="gw", seq=1, first=1, last=3)), "later": True}

    assert commit_of(document, "x").last == 3


def test_a_snapshot_is_what_the_commits_amount_to() -> None:
    other = Part(path="readings/merged", rows=3, sha256="cd", first=1, last=3)
    commits = [
        Commit(gateway="gw", seq=1, first=1, last=3, parts=(PART,), marks={"things": 1}),
        Commit(gateway="gw", seq=2, first=4, last=3, parts=(other,), replaces=(PART.path,)),
    ]

    snapshot = snapshot_of("gw", commits)

    assert (snapshot.seq, snapshot.sealed, snapshot.parts, snapshot.marks) == (2, 3, (other,), {"things": 1})


def test_a_missing_commit_is_damage_not_a_smaller_lake() -> None:
    commits = [Commit(gateway="gw", seq=seq, first=1, last=3) for seq in (1, 3)]

    with pytest.raises(StorageDamaged, match="lacks commit 2"):
        snapshot_of("gw", commits)
    with pytest.raises(StorageDamaged, match="holds a commit of 'gw'"):
        snapshot_of("other", commits)
