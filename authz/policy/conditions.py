"""Conditions of policies: a small tree of tests, true, false or not known yet.

    {"operation": "invoke_action", "thing": "dtw:pump:*"}                        members: all must hold
    {"time": {"between": ["22:00", "06:00"]}}                                    over midnight
    {"anyOf": [{"source": {"within": "10.0.0.0/8"}}, {"not": {"rate": {"lessThan": 60}}}]}

A plain value means equal (text may hold `*`), a list any of them. Comparisons of different kinds, and any test but
`exists` of an absent attribute, are false. Times are UTC.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from authz.patterns import RulePattern
from authz.policy.facts import ABSENT, UNKNOWN, Facts, is_attribute, is_within
from things.errors import Invalid, Problem
from things.messages import JSONValue
from things.pointers import pointer

MAX_DEPTH = 8
MAX_TESTS = 200

_FORMS = {
    "time": re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?"),
    "date": re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
}

Truth = bool | None
"""None: not known without the context of a message."""

Condition = Callable[[Facts], Truth]


@dataclass(slots=True)
class _Budget:
    tests: int = 0


def compiled(document: JSONValue, at: str) -> Condition:
    """The condition that `document` states; raises Invalid that names the place."""
    return _node(document, at, 0, _Budget())


def all_of(conditions: list[Condition]) -> Condition:
    """True if all are; false as soon as one is, whatever the others need."""

    def truth(facts: Facts) -> Truth:
        unknown = False
        for condition in conditions:
            found = condition(facts)
            if found is False:
                return False
            unknown = unknown or found is None
        return None if unknown else True

    return truth


def _any_of(conditions: list[Condition]) -> Condition:
    def truth(facts: Facts) -> Truth:
        unknown = False
        for condition in conditions:
            found = condition(facts)
            if found is True:
                return True
            unknown = unknown or found is None
        return None if unknown else False

    return truth


def _not(condition: Condition) -> Condition:
    def truth(facts: Facts) -> Truth:
        found = condition(facts)
        return None if found is None else not found

    return truth


def _node(document: JSONValue, at: str, depth: int, budget: _Budget) -> Condition:
    if depth > MAX_DEPTH:
        raise _wrong(at, f"conditions nest at most {MAX_DEPTH} deep")
    if isinstance(document, list):
        return _any_of(_nodes(document, at, depth, budget))
    if not isinstance(document, dict) or not document:
        raise _wrong(at, "a condition is an object of attributes, or a list of such objects of which one must hold")
    parts: list[Condition] = []
    for key, value in document.items():
        place = at + pointer(key)
        match key:
            case "allOf":
                parts.append(all_of(_nodes(value, place, depth, budget)))
            case "anyOf":
                parts.append(_any_of(_nodes(value, place, depth, budget)))
            case "not":
                parts.append(_not(_node(value, place, depth + 1, budget)))
            case _ if is_attribute(key):
                parts.append(_attribute(key, value, place, budget))
            case _:
                raise _wrong(place, f"there is no attribute {key[:64]!r}")
    return parts[0] if len(parts) == 1 else all_of(parts)


def _nodes(document: JSONValue, at: str, depth: int, budget: _Budget) -> list[Condition]:
    if not isinstance(document, list) or not document:
        raise _wrong(at, "a list of conditions is expected here")
    return [_node(member, at + pointer(index), depth + 1, budget) for index, member in enumerate(document)]


def _attribute(name: str, document: JSONValue, at: str, budget: _Budget) -> Condition:
    if isinstance(document, dict):
        if not document:
            raise _wrong(at, "name an operator")
        tests = [_operator(key, value, at + pointer(key), name) for key, value in document.items()]
    elif isinstance(document, list):
        tests = [_operator("in", document, at, name)]
    else:
        tests = [_operator("equals", document, at, name)]
    budget.tests += len(tests)
    if budget.tests > MAX_TESTS:
        raise _wrong(at, f"a condition holds at most {MAX_TESTS} tests")
    conditions: list[Condition] = [partial(_tested, name, operator == "exists", test) for operator, test in tests]
    return conditions[0] if len(conditions) == 1 else all_of(conditions)


def _tested(name: str, about_existence: bool, test: Callable[[JSONValue], bool], facts: Facts) -> Truth:
    value = facts.value(name)
    if value is UNKNOWN:
        return None
    if about_existence:
        return test(value is not ABSENT)
    if value is ABSENT:
        return False
    if isinstance(value, list) and name == "thingType":
        return any(test(member) for member in value)
    return test(value)  # type: ignore[arg-type]


def _operator(operator: str, operand: JSONValue, at: str, name: str) -> tuple[str, Callable[[JSONValue], bool]]:
    match operator:
        case "equals":
            return operator, _equal(operand, at)
        case "in":
            if not isinstance(operand, list) or not operand:
                raise _wrong(at, "a list with at least one value is expected here")
            tests = [_equal(member, at) for member in operand]
            return operator, lambda value: any(test(value) for test in tests)
        case "lessThan":
            bound = _comparable(operand, at, _FORMS.get(name))
            return operator, lambda value: _ordered(value, bound) and value < bound
        case "moreThan":
            bound = _comparable(operand, at, _FORMS.get(name))
            return operator, lambda value: _ordered(value, bound) and value > bound
        case "between":
            return operator, _between(operand, at, name)
        case "contains":
            return operator, lambda value: _contains(value, operand)
        case "exists":
            if not isinstance(operand, bool):
                raise _wrong(at, "true or false is expected here")
            return operator, lambda value: value is operand
        case "within":
            return operator, _within(operand, at)
        case _:
            raise _wrong(at, f"there is no operator {operator[:64]!r}")


def _equal(operand: JSONValue, at: str) -> Callable[[JSONValue], bool]:
    if isinstance(operand, str):
        if "*" in operand:
            try:
                pattern = RulePattern.parse(operand)
            except Invalid as error:
                raise _wrong(at, error.detail) from error
            return lambda value: isinstance(value, str) and pattern.matches(value)
        return lambda value: value == operand
    if isinstance(operand, dict | list):
        raise _wrong(at, "text, a number, true, false or null is expected here")
    # In Python true equals 1; in JSON it does not.
    return lambda value: value == operand and isinstance(value, bool) == isinstance(operand, bool)


def _between(operand: JSONValue, at: str, name: str) -> Callable[[JSONValue], bool]:
    if not isinstance(operand, list) or len(operand) != 2:
        raise _wrong(at, "a list of two bounds is expected here: the first included, the second not")
    low, high = (_comparable(bound, at, _FORMS.get(name)) for bound in operand)
    if isinstance(low, str) != isinstance(high, str):
        raise _wrong(at, "both bounds must be numbers or both text")
    if name == "time" and low > high:  # type: ignore[operator]
        return lambda value: _ordered(value, low) and (value >= low or value < high)  # type: ignore[operator]
    if low > high:  # type: ignore[operator]
        raise _wrong(at, "the first bound is above the second")
    return lambda value: _ordered(value, low) and low <= value < high  # type: ignore[operator]


def _within(operand: JSONValue, at: str) -> Callable[[JSONValue], bool]:
    texts = operand if isinstance(operand, list) else [operand]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise _wrong(at, "a network is expected here, such as 192.168.0.0/16")
    try:
        networks = [ipaddress.ip_network(str(text)) for text in texts]
    except ValueError as error:
        raise _wrong(at, str(error)) from error
    return lambda value: any(is_within(value, network) for network in networks)


def _comparable(operand: JSONValue, at: str, form: re.Pattern[str] | None = None) -> int | float | str:
    if form is not None and not (isinstance(operand, str) and form.fullmatch(operand)):
        raise _wrong(at, "this is not how times (23:59 or 23:59:00) and dates (2026-12-31) are written here")
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise _wrong(at, "a number or text is expected here")
    return operand


def _ordered(value: object, bound: int | float | str) -> bool:
    """Whether value and bound are of a kind that can be compared."""
    if isinstance(bound, str):
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _contains(value: JSONValue, part: JSONValue) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    if isinstance(value, dict):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and part in value


def _wrong(at: str, detail: str) -> Invalid:
    return Invalid(f"{at}: {detail}", [Problem(pointer=at, detail=detail)])
