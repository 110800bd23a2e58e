"""The search process: `python -m bindings.http.search_worker`, one search after the other on its standard input.

A search is a line `{"language", "query"}`, answered by a line `{}` if it is one; then come Things, each as JSON text
behind its length in four bytes, up to a length of 0. The answer is a line `{"bytes"}` with that many bytes of JSON
behind it, or `{"error": {"code", "detail"}}`; it may come before the last Thing, and the rest is then passed over. With
`"last": true` in it the process ends.

What a search may take is bounded here, by processor time and memory, where nobody else feels it. The process ends with
its input.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from types import FrameType
from typing import Any, BinaryIO

from pydantic_core import from_json

from bindings.http.jsonpath import JSONPath
from bindings.http.xpath import XPath
from things.errors import Invalid, SkepError, TooLarge
from things.jsontext import encode

MAX_ANSWER_BYTES = 16_777_216
MAX_WHOLE_BYTES = 67_108_864
"""Of Things that a query must see together, as `$[0]` or `$..*`; those that ask each by itself have no such bound."""
MAX_MEMORY_BYTES = 1_610_612_736
"""Address space: values take many times their text."""
MAX_CPU_S = 5.0
NICENESS = 10

LANGUAGES: dict[str, Callable[[str], JSONPath | XPath]] = {"jsonpath": JSONPath, "xpath": XPath}


class _Spent(BaseException):
    """The processor time is spent; not an exception that a library would take for its own."""


def main() -> None:
    """Answer searches until the input ends."""
    given, output = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    signal.signal(signal.SIGPROF, _spend)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while line := given.readline():
        asked = from_json(line)
        try:
            query = LANGUAGES[asked["language"]](asked["query"])
        except SkepError as error:
            _send(output, {"error": _document(error)})
            continue
        _send(output, {})
        things = _things(given)
        answer, body = _answer(query, things)
        _send(output, answer, body)
        if "last" in answer:
            return
        for _ in things:
            pass


def _answer(query: JSONPath | XPath, things: Iterator[bytes]) -> tuple[dict[str, Any], bytes]:
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
            body = _collected(query, things)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return {"bytes": len(body)}, body
    except SkepError as refused:
        return {"error": _document(refused)}, b""
    # Either may have come in the middle of reading a Thing.
    except _Spent:
        error: SkepError = Invalid("the query looks at too much; narrow it down")
    except MemoryError:
        error = TooLarge(MAX_MEMORY_BYTES, "what the query looks at")
    return {"error": _document(error), "last": True}, b""


def _collected(query: JSONPath | XPath, things: Iterator[bytes]) -> bytes:
    """What is found, as a JSON array. Raises TooLarge once it is too much."""
    found: list[bytes] = []
    size = 2
    for value in _found(query, things):
        text = encode(value)
        size += len(text) + 1
        if size > MAX_ANSWER_BYTES:
            raise TooLarge(MAX_ANSWER_BYTES, "answer")
        found.append(text)
    return b"[%s]" % b",".join(found)


def _found(query: JSONPath | XPath, things: Iterator[bytes]) -> Iterator[Any]:
    if query.is_of_each:
        return chain.from_iterable(query.find([from_json(text)]) for text in things)
    together: list[Any] = []
    size = 0
    for text in things:
        size += len(text)
        if size > MAX_WHOLE_BYTES:
            raise TooLarge(MAX_WHOLE_BYTES, "the directory, for a query that does not begin with $[*] or $[?…],")
        together.append(from_json(text))
    return query.find(together)


def _things(given: BinaryIO) -> Iterator[bytes]:
    while size := int.from_bytes(given.read(4), "big"):
        yield given.read(size)


def _send(output: BinaryIO, answer: dict[str, Any], body: bytes = b"") -> None:
    output.write(encode(answer) + b"\n")
    output.write(body)
    output.flush()


def _document(error: SkepError) -> dict[str, str]:
    return {"code": error.code, "detail": error.detail}


def _spend(_signal: int, _frame: FrameType | None) -> None:
    raise _Spent


if __name__ == "__main__":
    main()
