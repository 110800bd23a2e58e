"""JSONPath (RFC 9535) over JSON values, bounded: names, indexes, slices, wildcards, descendants and filters.

Of the functions, `length`, `count` and `value` are known; `match` and `search` are not, since they would run regular
expressions of strangers. Every node that is looked at costs one step of a budget.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from things.errors import Invalid

MAX_QUERY_CHARS = 2_000
MAX_STEPS = 2_000_000
MAX_NESTING = 24

_NOTHING = object()
"""What a path that leads nowhere compares as."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?)"
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)"
    r"|(?P<mark>\.\.|&&|\|\||==|!=|<=|>=|[$@.\[\]*?:,()<>!]))",
    re.DOTALL,
)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

Selector = Callable[["_Run", Any], Iterator[Any]]
Value = Callable[["_Run", Any], Any]
Test = Callable[["_Run", Any], bool]


@dataclass(slots=True)
class _Run:
    """One evaluation: the root and what may still be spent."""

    root: Any
    steps: int = MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise Invalid("the query looks at too much; narrow it down")


@dataclass(frozen=True, slots=True)
class _Segment:
    selectors: tuple[Selector, ...]
    descends: bool

    def nodes(self, run: _Run, node: Any) -> Iterator[Any]:
        for one in _descendants(run, node) if self.descends else (node,):
            for selector in self.selectors:
                yield from selector(run, one)


@dataclass(frozen=True, slots=True)
class _Path:
    """A query, absolute (`$`) or relative to the node under test (`@`)."""

    segments: tuple[_Segment, ...]
    is_absolute: bool

    def nodes(self, run: _Run, node: Any) -> list[Any]:
        found = [run.root if self.is_absolute else node]
        for segment in self.segments:
            found = [one for parent in found for one in segment.nodes(run, parent)]
        return found

    def value(self, run: _Run, node: Any) -> Any:
        """The only node's value; nothing if there is none or more than one."""
        found = self.nodes(run, node)
        return found[0] if len(found) == 1 else _NOTHING


class JSONPath:
    """A parsed query. Raises Invalid for what is not one."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_QUERY_CHARS:
            raise Invalid(f"a query has at most {MAX_QUERY_CHARS} characters")
        self._path = _Parser(text).parse()

    def find(self, root: Any) -> list[Any]:
        """The values that the query selects, in order. Raises Invalid when it would look at too much."""
        return self._path.nodes(_Run(root), root)


# ---------------------------------------------------------------- selecting


def _descendants(run: _Run, node: Any) -> Iterator[Any]:
    run.spend()
    yield node
    for child in _children(node):
        yield from _descendants(run, child)


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _name(name: str) -> Selector:
    def select(run: _Run, node: Any) -> Iterator[Any]:
        run.spend()
        if isinstance(node, dict) and name in node:
            yield node[name]

    return select


def _index(index: int) -> Selector:
    def select(run: _Run, node: Any) -> Iterator[Any]:
        run.spend()
        if isinstance(node, list) and -len(node) <= index < len(node):
            yield node[index]

    return select


def _slice(start: int | None, end: int | None, step: int | None) -> Selector:
    def select(run: _Run, node: Any) -> Iterator[Any]:
        if isinstance(node, list) and step != 0:
            run.spend(len(node))
            yield from node[start:end:step]

    return select


def _wildcard(run: _Run, node: Any) -> Iterator[Any]:
    for child in _children(node):
        run.spend()
        yield child


def _filtered(test: Test) -> Selector:
    def select(run: _Run, node: Any) -> Iterator[Any]:
        for child in _children(node):
            run.spend()
            if test(run, child):
                yield child

    return select


# ---------------------------------------------------------------- comparing


def _equal(left: Any, right: Any) -> bool:
    if left is _NOTHING or right is _NOTHING:
        return left is right
    # In JSON true is not 1.
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _less(left: Any, right: Any) -> bool:
    both_text = isinstance(left, str) and isinstance(right, str)
    if both_text or (_is_number(left) and _is_number(right)):
        return bool(left < right)
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: _less(left, right) or _equal(left, right),
    ">=": lambda left, right: _less(right, left) or _equal(left, right),
}


def _length(value: Any) -> Any:
    return len(value) if isinstance(value, str | list | dict) else _NOTHING


# ---------------------------------------------------------------- parsing


class _Parser:
    """Recursive descent over the tokens of one query."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def parse(self) -> _Path:
        self._expect("$")
        path = self._path(is_absolute=True)
        if self._at != len(self._tokens):
            self._fail("the query goes on where it should end")
        return path

    def _path(self, *, is_absolute: bool) -> _Path:
        segments = []
        while True:
            if self._take(".."):
                segments.append(_Segment(self._after_dot(descends=True), True))
            elif self._take("."):
                segments.append(_Segment(self._after_dot(descends=False), False))
            elif self._take("["):
                segments.append(_Segment(self._bracket(), False))
            else:
                return _Path(tuple(segments), is_absolute)

    def _after_dot(self, *, descends: bool) -> tuple[Selector, ...]:
        if descends and self._take("["):
            return self._bracket()
        if self._take("*"):
            return (_wildcard,)
        kind, text = self._next()
        if kind == "mark" and text == "@":
            # `@type` is everywhere in Thing Descriptions; strictly it would have to stand in brackets and quotes.
            kind, text = self._next()
            return (_name("@" + text),) if kind == "name" else self._fail("a name is needed after '@'")
        return (_name(text),) if kind == "name" else self._fail("a name or * is needed after the dot")

    def _bracket(self) -> tuple[Selector, ...]:
        selectors = [self._selector()]
        while self._take(","):
            selectors.append(self._selector())
        self._expect("]")
        return tuple(selectors)

    def _selector(self) -> Selector:
        if self._take("*"):
            return _wildcard
        if self._take("?"):
            return _filtered(self._any())
        kind, text = self._peek()
        if kind == "string":
            self._at += 1
            return _name(_unquoted(text))
        start = self._integer()
        if not self._take(":"):
            return _index(start) if start is not None else self._fail("a name, index, slice, * or ? is needed")
        end = self._integer()
        step = self._integer() if self._take(":") else None
        return _slice(start, end, step)

    def _integer(self) -> int | None:
        kind, text = self._peek()
        if kind != "number" or not text.lstrip("-").isdigit():
            return None
        self._at += 1
        return int(text)

    def _any(self) -> Test:
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail("nested too deep")
        tests = [self._all()]
        while self._take("||"):
            tests.append(self._all())
        self._depth -= 1
        return tests[0] if len(tests) == 1 else lambda run, node: any(test(run, node) for test in tests)

    def _all(self) -> Test:
        tests = [self._basic()]
        while self._take("&&"):
            tests.append(self._basic())
        return tests[0] if len(tests) == 1 else lambda run, node: all(test(run, node) for test in tests)

    def _basic(self) -> Test:
        if self._take("!"):
            test = self._basic()
            return lambda run, node: not test(run, node)
        if self._take("("):
            test = self._any()
            self._expect(")")
            return test
        left, path = self._operand()
        kind, text = self._peek()
        if kind == "mark" and text in _COMPARISONS:
            self._at += 1
            right, _ = self._operand()
            compare = _COMPARISONS[text]
            return lambda run, node: compare(left(run, node), right(run, node))
        if path is None:
            self._fail("a comparison is needed")
        return lambda run, node: bool(path.nodes(run, node))

    def _operand(self) -> tuple[Value, _Path | None]:
        kind, text = self._next()
        if kind == "number":
            number = int(text) if text.lstrip("-").isdigit() else float(text)
            return _constant(number), None
        if kind == "string":
            return _constant(_unquoted(text)), None
        if kind == "name":
            if text in ("true", "false", "null"):
                return _constant({"true": True, "false": False, "null": None}[text]), None
            return self._function(text), None
        if text in ("@", "$"):
            path = self._path(is_absolute=text == "$")
            return path.value, path
        return self._fail("a path or a value is needed")

    def _function(self, name: str) -> Value:
        if name not in ("length", "count", "value"):
            self._fail(f"there is no function {name[:40]!r} here")
        self._expect("(")
        value, path = self._operand()
        self._expect(")")
        if name == "length":
            return lambda run, node: _length(value(run, node))
        if path is None:
            self._fail(f"{name} takes a path")
        if name == "count":
            return lambda run, node: len(path.nodes(run, node))
        return path.value

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, mark: str) -> bool:
        if self._peek() != ("mark", mark):
            return False
        self._at += 1
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(f"{mark!r} is needed")

    def _fail(self, why: str) -> NoReturn:
        found = self._peek()[1]
        raise Invalid(
            f"not a JSONPath query: {why}, before {found[:40]!r}" if found else f"not a JSONPath query: {why}"
        )


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Invalid(f"not a JSONPath query: {text[at : at + 20]!r} is not expected")
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _unquoted(token: str) -> str:
    found = []
    at = 1
    while at < len(token) - 1:
        char = token[at]
        if char != "\\":
            found.append(char)
        elif token[at + 1] == "u":
            digits = token[at + 2 : at + 6]
            if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
                raise Invalid("not a JSONPath query: \\u needs four hexadecimal digits")
            found.append(chr(int(digits, 16)))
            at += 5
        else:
            found.append(_ESCAPES.get(token[at + 1], token[at + 1]))
            at += 1
        at += 1
    return "".join(found)


def _constant(value: Any) -> Value:
    return lambda run, node: value
