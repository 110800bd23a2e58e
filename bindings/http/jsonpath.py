"""JSONPath (RFC 9535) over Things, by the library `jsonpath-rfc9535`; each Thing by itself where the query allows it.

Runs in the search process: nothing here bounds what a query looks at.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from jsonpath_rfc9535 import (
    JSONPathEnvironment,
    JSONPathError,
    JSONPathNode,
    JSONPathNodeList,
    JSONPathQuery,
    JSONPathSyntaxError,
    JSONPathTypeError,
)
from jsonpath_rfc9535.filter_expressions import (
    ComparisonExpression,
    Expression,
    FilterContext,
    FilterExpressionLiteral,
    FunctionExtension,
    LogicalExpression,
    PrefixExpression,
    RelativeFilterQuery,
)
from jsonpath_rfc9535.function_extensions import ExpressionType
from jsonpath_rfc9535.parse import Parser
from jsonpath_rfc9535.segments import JSONPathChildSegment
from jsonpath_rfc9535.selectors import FilterSelector, NameSelector, WildcardSelector
from jsonpath_rfc9535.tokens import TokenStream, TokenType

from things.errors import Invalid


class _CurrentNode(RelativeFilterQuery):
    """`@` alone. The library gives the value in place of the node where that is neither an array nor an object: then
    `?@` finds no 0, and `count(@)` fails."""

    def evaluate(self, context: FilterContext) -> object:
        return JSONPathNodeList(
            [JSONPathNode(value=context.current, location=(), parent=None, root=cast(Any, context.root))]
        )


class _Parser(Parser):
    """Refuses what the library lets pass: a value that is not compared, a test that is, and `!` of `!`."""

    def parse_prefix_expression(self, stream: TokenStream) -> Expression:
        if stream.peek.type_ is TokenType.NOT:
            # RFC 9535, 2.3.5.1: `!` stands before a parenthesis, a query or a function.
            raise JSONPathSyntaxError("`!` cannot be negated", token=stream.peek)
        found = super().parse_prefix_expression(stream)
        if isinstance(found, PrefixExpression):
            self._check_test(found.right)
        return found

    def parse_infix_expression(self, stream: TokenStream, left: Expression) -> Expression:
        found = super().parse_infix_expression(stream, left)
        if isinstance(found, LogicalExpression):
            self._check_test(found.left)
            self._check_test(found.right)
        elif isinstance(found, ComparisonExpression):
            for side in (found.left, found.right):
                if isinstance(side, ComparisonExpression | LogicalExpression | PrefixExpression):
                    raise JSONPathSyntaxError("a test cannot be compared", token=side.token)
        return found

    def _check_test(self, expression: Expression) -> None:
        is_value = isinstance(expression, FilterExpressionLiteral)
        if isinstance(expression, FunctionExtension):
            function = self.env.function_extensions.get(expression.name)
            is_value = function is not None and function.return_type is ExpressionType.VALUE
        if is_value:
            raise JSONPathTypeError("a value must be compared", token=expression.token)

    def parse_relative_query(self, stream: TokenStream) -> Expression:
        found = super().parse_relative_query(stream)
        if isinstance(found, RelativeFilterQuery) and found.query.empty():
            return _CurrentNode(found.token, found.query)
        return found


class _Environment(JSONPathEnvironment):
    parser_class = _Parser


_ENVIRONMENT = _Environment()


class JSONPath:
    """A parsed query. Raises Invalid for what is not one."""

    def __init__(self, text: str) -> None:
        try:
            self._query: JSONPathQuery = _ENVIRONMENT.compile(text)
        except (JSONPathError, RecursionError) as error:
            raise Invalid(f"not a JSONPath query: {str(error)[:200] or 'nested too deep'}") from error
        self.is_of_each = text.count("$") == 1 and _selects_from_each(self._query)
        """Whether what is found among many Things is what is found in each, one after the other."""

    def find(self, root: Any) -> Iterator[Any]:
        """The values that the query selects, in order. Raises Invalid for what it cannot be asked of."""
        try:
            for node in self._query.finditer(root):
                yield node.value
        except (JSONPathError, RecursionError) as error:
            raise Invalid(f"the query cannot be answered: {str(error)[:200]}") from error


def _selects_from_each(query: JSONPathQuery) -> bool:
    """Whether the query goes first to every element alike, by `[*]` or a filter, or to a name below all of them."""
    segments = cast(Iterable[Any], query.segments)
    first = next(iter(segments), None)
    if first is None or len(first.selectors) != 1:
        return False
    (selector,) = first.selectors
    if isinstance(first, JSONPathChildSegment):
        return isinstance(selector, WildcardSelector | FilterSelector)
    return isinstance(selector, NameSelector)
