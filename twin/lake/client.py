"""The runtime's side of its lake process: starts it when there is work, asks, and lets it end when idle.

Every request is idempotent, so one that a dying process left unanswered is asked again of the next, once. `serve` owns
the process; requests wait for it under a deadline.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.abc import ByteSendStream, Process, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic_core import from_json, to_json

from things.errors import SkepError, TimedOut, Unavailable
from things.records import HistoryQuery, Row
from twin.lake.protocol import IDLE_S, MAX_LINE_BYTES, raised

log = logging.getLogger(__name__)

READ_S = 60.0
WRITE_S = 3600.0
"""Deadlines of one request: a first sealing of a long history, or a compaction, may take long."""
GRACE_S = 86_400.0
"""How long replaced files stay for readers that hold a snapshot."""
MAX_WAITING = 64
"""Requests at the same time; more are refused as unavailable rather than queued for ever."""


@dataclass(slots=True, eq=False)
class _Request:
    line: bytes
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Mapping[str, Any] | None = None
    tries: int = 0


def is_installed() -> bool:
    """Whether the lake process has what it imports: an installation without its dependencies has not."""
    return find_spec("pyarrow") is not None and find_spec("duckdb") is not None


class LakeClient:
    """Asks the lake process of one gateway. Start `serve` in a task group first."""

    def __init__(
        self,
        *,
        history: Path,
        lake: Path | str,
        gateway: str,
        clock: Callable[[], int],
        idle_s: float = IDLE_S,
        grace_s: float = GRACE_S,
        is_private: bool = False,
        is_delta: bool = True,
    ) -> None:
        """`clock` (µs UTC) is the one by which commits are stamped and files grow old. `is_private`: what the process
        makes is for its owner only, whatever the mask says. `is_delta`: its tables get Delta logs."""
        self._command = [
            sys.executable,
            "-m",
            "twin.lake.worker",
            *("--history", str(history), "--lake", str(lake), "--gateway", gateway),
            *("--idle", str(idle_s), "--grace", str(grace_s)),
            *(["--private"] if is_private else []),
            *([] if is_delta else ["--no-delta"]),
        ]
        self._clock = clock
        self._asked: dict[int, _Request] = {}
        self._next = 0
        self._work = anyio.Event()
        self._stream: ByteSendStream | None = None
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the running lake process; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the process whenever there is something to ask, until cancelled; what waits then fails."""
        task_status.started()
        try:
            while True:
                await self._work.wait()
                self._work = anyio.Event()
                if self._asked:
                    await self._run()
        finally:
            for asked in list(self._asked.values()):
                asked.answer = {"error": {"code": "unavailable", "detail": "the runtime is shutting down"}}
                asked.done.set()

    async def seal(self, beside: Sequence[Mapping[str, Any]] = (), *, up_to: int | None = None) -> Mapping[str, Any]:
        """Seal hot rows above the mark: `{first, last, rows, parts, bytes, commits}`. `beside` are batches
        `{"table": "things"|"presence"|"requests", "mark": int, "rows": [...]}` sealed with them."""
        return await self._report("seal", {"beside": list(beside), "up_to": up_to}, WRITE_S)

    async def status(self) -> Mapping[str, Any]:
        """`{gateway, seq, sealed, parts, rows, marks}`; `sealed` is the last sealed row id."""
        return await self._report("status", {}, READ_S)

    async def read(
        self, query: HistoryQuery, *, sealed_only: bool = True, before_row: int | None = None
    ) -> Sequence[Row]:
        """Rows from the lake, like `History.read`, below `before_row`; with hot rows above the mark unless
        `sealed_only`."""
        found = await self._ask(
            "rows",
            {
                "selection": _selection(query, before_row),
                "limit": query.limit,
                "after": query.after,
                "after_row": query.after_row,
                "descending": query.descending,
                "sealed_only": sealed_only,
            },
            READ_S,
        )
        return [_row(row) for row in found]

    async def latest(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        """The newest sealed row, by (created, row id), of every series the query names, below `before_row`."""
        found = await self._ask("latest", {"selection": _selection(query, before_row)}, READ_S)
        return [_row(row) for row in found]

    async def windows(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        """Sums of readings, hot and sealed, by series and window, at most `query.limit`: `{thing_id, kind, name, begin,
        count, avg, min, max, sum, first, last}`; `begin` is µs UTC, first and last are JSON text."""
        asked = {"selection": _selection(query), "window_us": window_us, "limit": query.limit}
        found: Sequence[Mapping[str, Any]] = await self._ask("windows", asked, READ_S)
        return found

    async def rollup(
        self, query: HistoryQuery, window_us: int, *, expected_us: Mapping[str, int] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Roll-ups of numeric readings, hot and sealed, in the columns of `things.lake.ROLLUPS_COLUMNS`;
        `window_start` is µs UTC. `expected_us` is the expected interval by name."""
        asked = {"selection": _selection(query), "window_us": window_us, "expected_us": dict(expected_us or {})}
        found: Sequence[Mapping[str, Any]] = await self._ask("rollup", asked, READ_S)
        return found

    async def compact(self, *, days: Sequence[str] = (), min_parts: int = 2) -> Mapping[str, Any]:
        """Merge small files: `{commits, merged, written, removed}`."""
        return await self._report("compact", {"days": list(days), "min_parts": min_parts}, WRITE_S)

    async def keep(self, *, budget_s: float) -> Mapping[str, Any]:
        """Merge what is worth merging, for so long, and remove what was replaced before the grace period: the members
        of `twin.lake.upkeep.Kept`."""
        return await self._report("keep", {"budget_s": budget_s}, WRITE_S)

    async def retain(
        self,
        rules: Sequence[Mapping[str, Any]],
        *,
        windows: Sequence[str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Remove what the rules (`{"thing_id", "name", "days", "bytes"}`, any left out) no longer keep; roll-ups of
        `windows` stay: `{days, rows, files, rolled_up}`. Raises Conflict for data never rolled up, unless `force`."""
        asked = {
            "rules": [dict(rule) for rule in rules],
            "windows": None if windows is None else list(windows),
            "force": force,
            "dry_run": dry_run,
        }
        return await self._report("retain", asked, WRITE_S)

    async def verify(self, *, quarantine: bool = False) -> Mapping[str, Any]:
        """Check every file: `{parts, rows, problems, unlisted, quarantined}`; `quarantine` takes damaged ones out."""
        return await self._report("quarantine" if quarantine else "verify", {}, WRITE_S)

    async def mend(self) -> Mapping[str, Any]:
        """Make damaged parts again from rows that are still hot: `{parts, rows, from_copies, left}`."""
        return await self._report("mend", {}, WRITE_S)

    async def vacuum(self) -> Mapping[str, Any]:
        """Remove what was replaced before the grace period: `{files, bytes}`."""
        return await self._report("vacuum", {}, WRITE_S)

    async def plan(self, rules: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any]:
        """Sizes now and in a year under these rules; the members of `twin.lake.planning.Plan`."""
        return await self._report("plan", {"rules": [dict(rule) for rule in rules]}, READ_S)

    async def export(self, query: HistoryQuery, path: Path, format: str) -> Mapping[str, Any]:
        """Write readings, hot and sealed, to a file as csv, jsonl, arrow or parquet: `{path, rows, bytes}`."""
        asked = {"selection": _selection(query), "path": str(path), "format": format}
        return await self._report("export", asked, WRITE_S)

    async def _report(self, do: str, arguments: Mapping[str, Any], deadline_s: float) -> Mapping[str, Any]:
        report: Mapping[str, Any] = await self._ask(do, arguments, deadline_s)
        return report

    async def _ask(self, do: str, arguments: Mapping[str, Any], deadline_s: float) -> Any:
        if not is_installed():
            raise Unavailable("sealed history needs pyarrow and DuckDB, which are not installed: pip install skep")
        if len(self._asked) >= MAX_WAITING:
            raise Unavailable("too many requests wait for the lake process")
        self._next += 1
        number = self._next
        asked = _Request(line=to_json({"id": number, "do": do, "with": arguments, "now": self._clock()}) + b"\n")
        self._asked[number] = asked
        self._work.set()
        try:
            if self._stream is not None:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    asked.tries += 1
                    await self._stream.send(asked.line)
            with anyio.move_on_after(deadline_s):
                await asked.done.wait()
            if asked.answer is None:
                raise TimedOut(f"the lake process did not answer {do!r} within {deadline_s:g} s")
        finally:
            self._asked.pop(number, None)
        if "error" in asked.answer:
            raise raised(asked.answer["error"])
        return asked.answer["result"]

    async def _run(self) -> None:
        try:
            process = await anyio.open_process(self._command, stderr=None)
        except OSError as error:
            self._fail(Unavailable(f"the lake process cannot be started: {error}"))
            return
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._stream = process.stdin
            await self._ask_again(process.stdin)
            await self._receive(BufferedByteReceiveStream(process.stdout))
        finally:
            self._stream = self._process = None
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                if process.returncode is None:
                    process.kill()
                await process.wait()
                await process.aclose()
        if process.returncode:
            log.warning("the lake process ended unexpectedly", extra={"returncode": process.returncode})
        self._give_up_on_repeated()
        if self._asked:
            self._work.set()

    async def _ask_again(self, stream: ByteSendStream) -> None:
        for asked in list(self._asked.values()):
            asked.tries += 1
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.send(asked.line)

    async def _receive(self, stream: BufferedByteReceiveStream) -> None:
        while True:
            try:
                line = await stream.receive_until(b"\n", MAX_LINE_BYTES)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                return
            except anyio.DelimiterNotFound:
                log.error("the lake process gave an answer that is too long")
                return
            answer = from_json(line)
            asked = self._asked.get(answer["id"])
            if asked is not None:
                asked.answer = answer
                asked.done.set()

    def _give_up_on_repeated(self) -> None:
        for asked in self._asked.values():
            if asked.tries > 1 and not asked.done.is_set():
                asked.answer = {"error": {"code": "unavailable", "detail": "the lake process ended twice at this"}}
                asked.done.set()

    def _fail(self, failure: SkepError) -> None:
        for asked in self._asked.values():
            asked.answer = {"error": {"code": failure.code, "detail": failure.detail}}
            asked.done.set()


def _row(found: Sequence[Any]) -> Row:
    return Row._make([*found[:6], found[6].encode(), *found[7:]])


def _selection(query: HistoryQuery, before_row: int | None = None) -> dict[str, Any]:
    return {
        "things": list(query.things),
        "names": list(query.names),
        "kind": None if query.kind is None else str(query.kind),
        "start": query.start,
        "end": query.end,
        "before_row": before_row,
    }
