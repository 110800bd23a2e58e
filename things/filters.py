"""The filter language for Things: `online and temperature > 30`, `@type = Light and not (agent = attic)`.

    filter     := conjunct { "or" conjunct }
    conjunct   := negation { "and" negation }
    negation   := "not" negation | "(" filter ")" | comparison
    comparison := field [ operator literal ]
    field      := "id" | "title" | "agent" | "@type" | "online" | "lastSeen" | property
    property   := name | "property:" name | "property:" quoted
    operator   := "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    literal    := number | quoted | word | "true" | "false" | "null"

A field alone asks whether it is true. `~` asks whether a text contains another, whatever the case. `@type` is equal to
a term if one of the Thing's types is; a word without a colon also finds it behind any prefix. Fields that a Thing does
not have are null: they equal `null` and nothing else, and compare with nothing. Parsing and evaluating are bounded, and
nothing in a filter can name anything but these fields.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, assert_never

from things.errors import Invalid, Problem
from things.messages import JSONValue

MAX_FILTER_CHARS = 1_000
MAX_COMPARISONS = 50
MAX_NESTING = 16


class Subject(StrEnum):
    """What a field is about."""

    ID = "id"
    TITLE = "title"
    AGENT = "agent"
    TYPE = "@type"
    ONLINE = "online"
    LAST_SEEN = "lastSeen"
    PROPERTY = "property"


class Operator(StrEnum):
    """How a field is compared."""

    IS = "="
    IS_NOT = "!="
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="
    CONTAINS = "~"


@dataclass(frozen=True, slots=True)
class Field:
    """What is looked up of a Thing; `name` is the property's for properties, else empty."""

    subject: Subject
    name: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field against one literal; a field that stands alone is compared with true."""

    field: Field
    operator: Operator
    value: str | float | bool | None


@dataclass(frozen=True, slots=True)
class Not:
    """Holds where `operand` does not."""

    operand: "Filter"


@dataclass(frozen=True, slots=True)
class And:
    """Holds where all operands do."""

    operands: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Holds where any operand does."""

    operands: tuple["Filter", ...]


Filter = Comparison | Not | And | Or

Lookup = Callable[[Field], JSONValue]
"""A Thing's value of a field: text for id, title, agent and lastSeen (RFC 3339), a list of texts for `@type`, a flag
for online, the latest value for properties; None for what the Thing does not have."""


def parse_filter(text: str) -> Filter:
    """The filter that `text` spells; raises Invalid naming the position of the fault."""
    if len(text) > MAX_FILTER_CHARS:
        _fail(MAX_FILTER_CHARS, f"a filter has at most {MAX_FILTER_CHARS} characters")
    return _Parser(text).parse()


def matches(filter_: Filter, lookup: Lookup) -> bool:
    """Whether the Thing that `lookup` knows passes."""
    match filter_:
        case Comparison():
            return holds(filter_, lookup(filter_.field))
        case Not(operand):
            return not matches(operand, lookup)
        case And(operands):
            return all(matches(operand, lookup) for operand in operands)
        case Or(operands):
            return any(matches(operand, lookup) for operand in operands)
        case _:
            assert_never(filter_)


def holds(comparison: Comparison, found: JSONValue) -> bool:
    """Whether a comparison holds of the value that a Thing has of its field."""
    wanted, operator = comparison.value, comparison.operator
    if comparison.field.subject is Subject.TYPE and isinstance(found, list):
        return _compare_types(operator, wanted, [item for item in found if isinstance(item, str)])
    if found is None or wanted is None:
        same = found is None and wanted is None
        return same if operator is Operator.IS else operator is Operator.IS_NOT and wanted is None and not same
    if operator is Operator.CONTAINS:
        return isinstance(found, str) and isinstance(wanted, str) and wanted.casefold() in found.casefold()
    if isinstance(found, bool) or isinstance(wanted, bool):
        equal = found is wanted
        return equal if operator is Operator.IS else operator is Operator.IS_NOT and not equal
    if isinstance(found, str) and isinstance(wanted, str):
        return _ordered(operator, (found > wanted) - (found < wanted))
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return _ordered(operator, (found > wanted) - (found < wanted))
    return operator is Operator.IS_NOT


def fields(filter_: Filter) -> set[Field]:
    """Every field that `filter_` looks at."""
    match filter_:
        case Comparison():
            return {filter_.field}
        case Not(operand):
            return fields(operand)
        case And(operands) | Or(operands):
            return set().union(*(fields(operand) for operand in operands))
        case _:
            assert_never(filter_)


def _compare_types(operator: Operator, wanted: object, types: list[str]) -> bool:
    if not isinstance(wanted, str):
        return (operator is Operator.IS_NOT) == bool(types) if wanted is None else operator is Operator.IS_NOT
    if operator is Operator.CONTAINS:
        return any(wanted.casefold() in type_.casefold() for type_ in types)
    held = wanted in types
    if not held and ":" not in wanted:
        held = any(re.split(r"[:#/]", type_)[-1] == wanted for type_ in types)
    return held if operator is Operator.IS else operator is Operator.IS_NOT and not held


def _ordered(operator: Operator, order: int) -> bool:
    match operator:
        case Operator.IS:
            return order == 0
        case Operator.IS_NOT:
            return order != 0
        case Operator.BELOW:
            return order < 0
        case Operator.AT_MOST:
            return order <= 0
        case Operator.ABOVE:
            return order > 0
        case Operator.AT_LEAST:
            return order >= 0
        case Operator.CONTAINS:
            return False
        case _:
            assert_never(operator)


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?(?![\w.:@-]))
      | (?P<property>property:"(?:[^"\\]|\\.)*"|property:'(?:[^'\\]|\\.)*')
      | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>@?[^\W\d][\w.:@/\#-]*|\d[\w.:@-]*)
      | (?P<operator>==|!=|<=|>=|[=<>~])
      | (?P<open>\()
      | (?P<close>\))
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
_SUBJECTS = {subject.value: subject for subject in Subject if subject is not Subject.PROPERTY}
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_KEYWORDS = frozenset({"and", "or", "not"})


class _Parser:
    """Recursive descent over tokens that are read one ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.comparisons = 0
        self.position = 0
        self.kind = self.token = ""
        self.start = 0
        self._advance()

    def parse(self) -> Filter:
        result = self._any(0)
        if self.kind != "end":
            _fail(self.start, f"expected 'and', 'or' or the end, not {self.token[:20]!r}")
        return result

    def _advance(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            rest = self.text[self.position :].lstrip()
            at = len(self.text) - len(rest)
            what = "a quotation that does not end" if rest[:1] in ("'", '"') else f"the character {rest[:1]!r}"
            _fail(at, f"cannot read {what}")
        self.kind = match.lastgroup
        self.token = match[self.kind]
        self.start = match.start(self.kind)
        self.position = match.end()

    def _is_keyword(self, word: str) -> bool:
        return self.kind == "word" and self.token.lower() == word

    def _any(self, depth: int) -> Filter:
        operands = [self._all(depth)]
        while self._is_keyword("or"):
            self._advance()
            operands.append(self._all(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _all(self, depth: int) -> Filter:
        operands = [self._negation(depth)]
        while self._is_keyword("and"):
            self._advance()
            operands.append(self._negation(depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _negation(self, depth: int) -> Filter:
        if depth > MAX_NESTING:
            _fail(self.start, f"nested deeper than {MAX_NESTING} levels")
        if self._is_keyword("not"):
            self._advance()
            return Not(self._negation(depth + 1))
        if self.kind == "open":
            self._advance()
            inner = self._any(depth + 1)
            if self.kind != "close":
                _fail(self.start, "expected ')'")
            self._advance()
            return inner
        return self._comparison()

    def _comparison(self) -> Comparison:
        self.comparisons += 1
        if self.comparisons > MAX_COMPARISONS:
            _fail(self.start, f"a filter has at most {MAX_COMPARISONS} comparisons")
        field = self._field()
        if self.kind != "operator":
            return Comparison(field, Operator.IS, True)
        operator = Operator("=" if self.token == "==" else self.token)
        self._advance()
        at = self.start
        value = self._literal()
        if operator is Operator.CONTAINS and not isinstance(value, str):
            _fail(at, "'~' looks for text")
        if operator not in (Operator.IS, Operator.IS_NOT) and (value is None or isinstance(value, bool)):
            _fail(at, f"{operator.value!r} does not compare with {str(value).lower()}")
        return Comparison(field, operator, value)

    def _field(self) -> Field:
        if self.kind == "property":
            field = Field(Subject.PROPERTY, _unquoted(self.token[len("property:") :]))
        elif self.kind == "word" and self.token.lower() not in _KEYWORDS and self.token not in _CONSTANTS:
            subject = _SUBJECTS.get(self.token)
            if subject is not None:
                field = Field(subject)
            elif self.token.startswith("@"):
                _fail(self.start, f"{self.token[:20]!r} is no field; did you mean '@type'?")
            else:
                field = Field(Subject.PROPERTY, self.token.removeprefix("property:"))
        else:
            _fail(self.start, "expected a field: title, agent, id, @type, online, lastSeen or a property's name")
        if field.subject is Subject.PROPERTY and not field.name:
            _fail(self.start, "the property has no name")
        self._advance()
        return field

    def _literal(self) -> str | float | bool | None:
        value: str | float | bool | None
        match self.kind:
            case "number":
                value = float(self.token) if re.search(r"[.eE]", self.token) else int(self.token)
                if value in (float("inf"), float("-inf")):
                    _fail(self.start, "the number is out of range")
            case "quoted":
                value = _unquoted(self.token)
            case "word" if self.token.lower() not in _KEYWORDS:
                value = _CONSTANTS.get(self.token, self.token)
            case _:
                _fail(self.start, "expected a number, a text, true, false or null")
        self._advance()
        return value


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL)


def _fail(position: int, detail: str) -> NoReturn:
    sentence = f"filter, character {position + 1}: {detail}"
    raise Invalid(sentence, (Problem(pointer="", detail=sentence, code="filter"),))
