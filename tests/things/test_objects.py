"""Changes of synchronized objects by attribute path."""

import pytest

from things.errors import Invalid
from things.messages import JSONValue
from things.objects import change

ARRAY: dict[str, JSONValue] = {"attribute": "a", "attributeType": "array"}


@pytest.mark.parametrize(
    ("before", "body", "after", "name"),
    [
        ({}, {"attribute": "a", "value": 1}, {"a": 1}, "a"),
        ({"a": 1}, {"attribute": "a", "value": None}, {"a": None}, "a"),
        ({"a": 1, "b": 2}, {"attribute": "a"}, {"b": 2}, "a"),
        ({}, {"attribute": "a.b.c", "value": 1}, {"a": {"b": {"c": 1}}}, "a"),
        ({"a": {"b": 1, "c": 2}}, {"attribute": "a.b"}, {"a": {"c": 2}}, "a"),
        ({"a": [1, 2]}, {"attribute": "a.1", "value": 3}, {"a": [1, 3]}, "a"),
        ({}, {**ARRAY, "operation": "add", "value": [1, 2]}, {"a": [1, 2]}, "a"),
        (
            {"a": [1, 2]},
            {"attribute": "a", "attributeType": "array", "operation": "remove", "value": 1},
            {"a": [2]},
            "a",
        ),
        ({"a": 1}, {"value": {"b": 2}}, {"b": 2}, None),
    ],
)
def test_a_change_does_what_it_says(
    before: dict[str, JSONValue], body: dict[str, JSONValue], after: dict[str, JSONValue], name: str | None
) -> None:
    assert change(before, body) == name
    assert before == after


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"attribute": 7, "value": 1},
        {"attribute": "", "value": 1},
        {"attribute": "n.x", "value": 1},
        {"attribute": "list.9", "value": 1},
        {"attribute": ".".join("a" * 20), "value": 1},
        {"attribute": "n", "attributeType": "array", "operation": "add", "value": 1},
    ],
)
def test_a_change_that_cannot_be_leaves_everything_as_it_was(body: dict[str, JSONValue]) -> None:
    data: dict[str, JSONValue] = {"n": 1, "list": [1]}

    with pytest.raises(Invalid):
        change(data, body)

    assert data == {"n": 1, "list": [1]}
