"""Simple XPath over Things: what the standard library understands of it.

Every Thing is an element `thing` below the root, members are elements by their name, and items of an array repeat the
element. Paths, `//`, `*`, `[child]`, `[child='text']` and positions are understood; texts compare as JSON writes them.
Runs in the search process: nothing here bounds what a query looks at.
"""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from things.errors import Invalid
from things.jsontext import encode

_POSITION = re.compile(r"\[\s*(?:\d|last)")


class XPath:
    """A query. Raises Invalid for what is not one."""

    def __init__(self, text: str) -> None:
        path = text.removeprefix("/things")
        path = f".{path}" if path.startswith("/") else path
        self._path = path.replace("/text()", "")
        self.is_of_each = _POSITION.search(text) is None
        """Whether what is found among many Things is what is found in each, one after the other."""
        _found(ElementTree.Element("things"), self._path)

    def find(self, root: Any) -> Iterator[Any]:
        """The values that the query selects among the Things of a list, in order."""
        values: dict[ElementTree.Element, Any] = {}
        top = ElementTree.Element("things")
        for thing in root:
            _grow(top, "thing", thing, values)
        return (values[element] for element in _found(top, self._path) if element in values)


def _found(top: ElementTree.Element, path: str) -> Iterator[ElementTree.Element]:
    try:
        yield from top.iterfind(path)
    except Exception as error:
        # The library says nothing of what it raises for paths that are none: TypeError and StopIteration are among it.
        raise Invalid(f"not an XPath query that is understood here: {str(error)[:200]}") from error


def _grow(parent: ElementTree.Element, name: str, value: Any, values: dict[ElementTree.Element, Any]) -> None:
    if isinstance(value, list):
        for item in value:
            _grow(parent, name, item, values)
        return
    # `@` would read as an attribute; the members of JSON-LD keep their name without it, too.
    element = ElementTree.SubElement(parent, name.removeprefix("@"))
    values[element] = value
    if isinstance(value, dict):
        for key, child in value.items():
            _grow(element, key, child, values)
    else:
        element.text = value if isinstance(value, str) else encode(value).decode()
