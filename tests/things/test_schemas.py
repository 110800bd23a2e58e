"""Data schemas: compiled when used, bounded, and free of references."""

import pytest

from things.errors import Invalid
from things.schemas import MAX_PATTERN_CHARS, MAX_PROBLEMS, DataSchema, pattern_fault, value_type


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ({"type": "integer"}, 3.0, 3.5),
        ({"type": "number", "exclusiveMinimum": 0}, 0.1, 0),
        ({"type": "boolean"}, True, 1),
        ({"type": "null"}, None, 0),
        ({"type": "string", "minLength": 2}, "ab", "a"),
        ({"type": "string", "pattern": "^[0-9a-f]{4}$"}, "00ff", "xyz"),
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z", "noon"),
        ({"const": {"a": 1}}, {"a": 1}, {"a": 2}),
        ({"enum": ["a", None]}, None, "b"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None, 3),
        ({"type": "array", "items": {"type": "number"}, "maxItems": 2}, [1, 2], [1, "2"]),
        ({"type": "array", "items": [{"type": "number"}, {"type": "string"}]}, [1, "a"], ["a", 1]),
        ({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}, {"a": 1, "b": 2}, {"b": 2}),
        ({"type": "object", "additionalProperties": False, "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
        ({"type": "object", "patternProperties": {"^x": {"type": "number"}}}, {"x1": 1}, {"x1": "a"}),
        ({"unit": 7, "forms": "nonsense", "definitions": 7}, "anything", ...),
    ],
)
def test_value_fits_or_not(definition: dict[str, object], good: object, bad: object) -> None:
    schema = DataSchema(definition)

    schema.check(good)  # type: ignore[arg-type]
    if bad is not ...:
        with pytest.raises(Invalid):
            schema.check(bad)  # type: ignore[arg-type]


def test_every_problem_is_told_with_its_place() -> None:
    schema = DataSchema({"type": "object", "properties": {"a/b": {"type": "number"}, "c": {"type": "string"}}})

    with pytest.raises(Invalid) as refused:
        schema.check({"a/b": "x", "c": 1}, "input")

    assert {problem.pointer for problem in refused.value.problems} == {"/a~1b", "/c"}


def test_number_of_problems_is_bounded() -> None:
    schema = DataSchema({"type": "array", "items": {"type": "string"}})

    assert len(schema.problems(list(range(1_000)))) == MAX_PROBLEMS


def test_pattern_schemas_are_compiled_again_when_others_took_their_place() -> None:
    schemas = [DataSchema({"type": "string", "pattern": f"^{number}$"}) for number in range(300)]

    for _ in range(2):
        for number, schema in enumerate(schemas):
            assert schema.is_valid(str(number))
            assert not schema.is_valid("x")


@pytest.mark.parametrize(
    "text", ["^[a-z]+$", r"^\d{3}-\d{4}$", r"^[A-Za-z0-9._-]{1,255}$", "x" * MAX_PATTERN_CHARS, ""]
)
def test_ordinary_patterns_run(text: str) -> None:
    assert pattern_fault(text) is None


@pytest.mark.parametrize("text", ["(", r"(a)\1", "(?<=a)b", "(x{1000}){1000}", "x" * (MAX_PATTERN_CHARS + 1)])
def test_patterns_that_could_hold_the_loop_are_refused(text: str) -> None:
    assert pattern_fault(text)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"type": "number"}, "number"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, 2.5]}, "number"),
        ({"enum": [1, "a"]}, None),
        ({"const": True}, "boolean"),
        ({"const": None}, "null"),
        ({}, None),
    ],
)
def test_type_of_values_is_declared_or_evident(definition: dict[str, object], expected: str | None) -> None:
    assert value_type(definition) == expected
