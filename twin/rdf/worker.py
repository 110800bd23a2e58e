"""The index process: `python -m twin.rdf.worker`, which keeps the statements of all descriptions and answers queries.

It reads frames (a length in four bytes, then JSON) from its standard input: `{"put": thing id, …}`, `{"remove": thing
id}`, `{"ask": number, "query", "accepted", "sight"}`. Each query is carried out in a process forked from this one, over
what was put before it, bounded by processor time, memory and time; the index feels nothing of it. Answers are frames on
the standard output, `{"number", "bytes", …}` with that many bytes behind, or `{"number", "error": {"code", "detail"}}`.
The process ends with its input.
"""

import os
import resource
import selectors
import signal
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic_core import from_json

from things.errors import Invalid, SkepError, TooLarge, Unavailable
from things.jsontext import encode
from twin.rdf.queries import answered
from twin.rdf.store import MAX_STATEMENTS, IndexStore

MAX_CPU_S = 5
MAX_S = 20
"""Of one query, by the clock: it may have to wait for a processor."""
MAX_MEMORY_BYTES = 536_870_912
"""Of address space beyond the index."""
NICENESS = 5
_PIECE_BYTES = 1_048_576
_TOO_LONG = frozenset({signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM})


@dataclass(slots=True)
class _Asked:
    """A query under way in a process of its own."""

    number: int
    pid: int
    pieces: list[bytes] = field(default_factory=list)


def main() -> None:
    """Keep the index and answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = os.dup(1)
    # Whatever a library prints goes elsewhere.
    os.dup2(2, 1)
    index, selector, unread = IndexStore(), selectors.DefaultSelector(), bytearray()
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                piece = os.read(0, _PIECE_BYTES)
                if not piece:
                    return
                unread += piece
                for frame in _frames(unread):
                    _take(index, frame, selector, told)
            elif piece := os.read(key.fd, _PIECE_BYTES):
                key.data.pieces.append(piece)
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                _tell(told, *_ended(key.data))


def _take(index: IndexStore, frame: dict[str, Any], selector: selectors.BaseSelector, told: int) -> None:
    if "put" in frame:
        if index.size < MAX_STATEMENTS:
            index.put(frame["put"], frame)
    elif "remove" in frame:
        index.remove(frame["remove"])
    elif index.size >= MAX_STATEMENTS:
        _tell(told, {"number": frame["ask"], **_error(Unavailable("the directory is too large to be asked in SPARQL"))})
    else:
        given, given_up = os.pipe()
        pid = os.fork()
        if not pid:
            _carry_out(index, frame, given_up)
        os.close(given_up)
        selector.register(given, selectors.EVENT_READ, _Asked(frame["ask"], pid))


def _carry_out(index: IndexStore, frame: dict[str, Any], given_up: int) -> NoReturn:
    """In the forked process: answer into the pipe, and end."""
    said = os.dup(2)
    try:
        os.nice(NICENESS)
        # The library says there what it ends of, which the answer tells in better words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with open("/proc/self/statm", "rb") as memory:
            held = int(memory.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MAX_MEMORY_BYTES, held + MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 1))
        # From here on no file and no connection can be opened, whatever a query names.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        signal.setitimer(signal.ITIMER_REAL, MAX_S)
        try:
            head, body = answered(index.seen_by(frame["sight"]), frame["query"], frame["accepted"])
        except SkepError as error:
            head, body = _error(error), b""
        except MemoryError:
            head, body = _error(TooLarge(MAX_MEMORY_BYTES, "what the query looks at")), b""
        with open(given_up, "wb") as pipe:
            pipe.write(encode(head) + b"\n" + body)
        os._exit(0)
    except BaseException:
        os.dup2(said, 2)
        traceback.print_exc()
        os._exit(1)


def _ended(asked: _Asked) -> tuple[dict[str, Any], bytes]:
    _, status = os.waitpid(asked.pid, 0)
    if status == 0:
        head, _, body = b"".join(asked.pieces).partition(b"\n")
        return {"number": asked.number, **from_json(head), "bytes": len(body)}, body
    error: SkepError
    if os.WIFEXITED(status):
        error = Unavailable("the query could not be carried out; the log says why")
    elif os.WTERMSIG(status) in _TOO_LONG:
        error = Invalid("the query looks at too much; narrow it down")
    else:
        # The library ends the process where it gets no more memory.
        error = TooLarge(MAX_MEMORY_BYTES, "what the query looks at")
    return {"number": asked.number, **_error(error)}, b""


def _frames(unread: bytearray) -> list[dict[str, Any]]:
    """The whole frames at the beginning, which are taken out."""
    frames: list[dict[str, Any]] = []
    at = 0
    while len(unread) >= at + 4:
        end = at + 4 + int.from_bytes(unread[at : at + 4], "big")
        if len(unread) < end:
            break
        frames.append(from_json(bytes(unread[at + 4 : end])))
        at = end
    del unread[:at]
    return frames


def _tell(told: int, head: dict[str, Any], body: bytes = b"") -> None:
    text = encode(head)
    whole = memoryview(len(text).to_bytes(4, "big") + text + body)
    while whole:
        whole = whole[os.write(told, whole) :]


def _error(error: SkepError) -> dict[str, Any]:
    return {"error": {"code": error.code, "detail": error.detail}}


if __name__ == "__main__":
    main()
