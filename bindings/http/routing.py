"""Which handler answers which path: a tree of segments of the path as it was sent.

Segments are matched before they are decoded, since an id may hold an encoded slash and the decoded path would split
there. Literal segments win over parameters.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from bindings.http.exchange import Exchange
from bindings.http.problems import MethodNotAllowed
from bindings.http.tickets import PARAMETER as TICKET
from things.addresses import decode_segment
from things.bounded import Bounded
from things.errors import Invalid, NotFound
from things.suggestions import did_you_mean

_REMEMBERED = 4_096
"""Paths whose route is remembered: clients ask the same ones again and again."""
_REMEMBERED_CHARS = 512

Endpoint = Callable[[Exchange], Awaitable[ASGIApp]]
"""Answers one exchange with a reply, which is an ASGI callable; refusals are raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """What the API description says of a route beyond its path."""

    tag: str = ""
    query: Sequence[str] = ()
    """Every parameter that the route reads from the query; others are refused."""
    any_query: bool = False
    """The query is not looked at, or read by the route itself."""
    body: str | None = None
    """Media type of the request body."""
    answers: Mapping[int, str] = field(default_factory=dict)
    """Media type by status; "" for none."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path; `{name}` stands for a segment. `public` routes need no credentials."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    public: bool = False
    documented: Documented = field(default_factory=Documented)

    def check_query(self, query: Iterable[str]) -> None:
        """Raises Invalid for a parameter that is not read here: a misspelt one would return everything."""
        if self.documented.any_query:
            return
        known = self.documented.query
        for name in query:
            if name not in known and name != TICKET:
                raise Invalid(f"{name[:40]!r} is no parameter of this address{did_you_mean(name, known)}")


@dataclass(slots=True)
class _Node:
    literals: dict[str, "_Node"] = field(default_factory=dict)
    parameter: "_Node | None" = None
    methods: dict[str, Route] = field(default_factory=dict)


class Routes:
    """All routes; looked up by method and raw path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all = tuple(routes)
        self._root = _Node()
        self._found = Bounded[tuple[str, bytes], tuple[Route, dict[str, str]]](_REMEMBERED)
        for route in self.all:
            self._add(route)

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route and its decoded parameters; HEAD finds what GET finds. Raises NotFound, MethodNotAllowed, and
        BadAddress for a segment that is not properly encoded."""
        found = self._found.get((method, raw_path))
        if found is None:
            found = self._searched(method, raw_path)
            if len(raw_path) <= _REMEMBERED_CHARS:
                self._found[method, raw_path] = found
        return found

    def _searched(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        segments = raw_path.decode("latin-1").split("/")[1:]
        values: list[str] = []
        node = _match(self._root, segments, 0, values)
        if node is None:
            raise NotFound("there is nothing at this path")
        route = node.methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(method, ", ".join(_allowed(node)))
        names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
        return route, {name: decode_segment(value) for name, value in zip(names, values, strict=True)}

    def allowed(self, raw_path: bytes) -> str | None:
        """The methods of a path, for OPTIONS; None if there is no such path."""
        node = _match(self._root, raw_path.decode("latin-1").split("/")[1:], 0, [])
        return ", ".join(_allowed(node)) if node else None

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        node.methods[route.method] = route


def _match(node: _Node, segments: Sequence[str], at: int, values: list[str]) -> _Node | None:
    if at == len(segments):
        return node if node.methods else None
    segment = segments[at]
    literal = node.literals.get(segment)
    if literal is not None:
        found = _match(literal, segments, at + 1, values)
        if found is not None:
            return found
    if node.parameter is None or not segment:
        return None
    values.append(segment)
    found = _match(node.parameter, segments, at + 1, values)
    if found is None:
        values.pop()
    return found


def _allowed(node: _Node) -> list[str]:
    methods = set(node.methods) | {"OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)
