"""JSON Merge Patch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from things.merge_patch import difference, merged


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], {"b": 1}, {"b": 1}),
        ({"a": 1}, ["c"], ["c"]),
        ({"a": 1}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_patch_changes_what_it_names(target: Any, patch: Any, result: Any) -> None:
    assert merged(target, patch) == result


def test_flag_is_not_taken_for_a_number() -> None:
    assert difference({"a": 1, "b": [0]}, {"a": True, "b": [False]}) == {"a": True, "b": [False]}


_json = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
_documents = st.dictionaries(st.sampled_from("abcd"), _json, max_size=4)


@given(_documents, _documents)
def test_difference_leads_from_one_document_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = difference(old, new)

    assert repr(sorted(merged(old, patch))) == repr(sorted(new))
    assert merged(old, patch) == new
    assert difference(new, new) == {}
