"""The lake process: `python -m twin.lake.worker --history DIR --lake URL --gateway ID`, requests on stdin.

pyarrow and DuckDB live here only. Whatever writes to the lake runs one after the other; reads run beside it. The
process ends when its input ends or when it had nothing to do for a while; being killed at any instant loses nothing.
"""

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Lock, get_native_id
from types import ModuleType
from typing import Any, BinaryIO

from pydantic_core import from_json, to_json

from things.errors import Invalid, Locked, SkepError
from things.lake import MANIFEST, SET_ASIDE
from twin.lake.compaction import Compactor
from twin.lake.delta_tables import DeltaTables
from twin.lake.export import export
from twin.lake.hot import HotFiles
from twin.lake.manifest import GRACE_US, Manifest
from twin.lake.mending import Mender
from twin.lake.places import LocalPlace, place_of
from twin.lake.planning import plan
from twin.lake.protocol import IDLE_S, error_of
from twin.lake.quarantine import records
from twin.lake.reader import LakeReader, Selection
from twin.lake.retention import KEPT_WINDOWS, Retention, RetentionRule
from twin.lake.sealing import Beside, Sealer
from twin.lake.upkeep import Upkeep
from twin.lake.verification import verify
from twin.lake.witness import FILE, Witness

NICENESS = 10

Answer = Any


class RuntimeClock:
    """The time of the runtime (µs UTC), as its last request told it and going on since: this machine's clock may stand
    where the runtime does not trust it. Until a request came, that of the machine."""

    def __init__(self) -> None:
        self.set(time.time_ns() // 1_000)

    def set(self, now: int) -> None:
        self._ahead = now - time.monotonic_ns() // 1_000

    def __call__(self) -> int:
        return time.monotonic_ns() // 1_000 + self._ahead


class Worker:
    """Carries out requests; made once a process. `with` members are passed as keyword arguments."""

    def __init__(
        self,
        history: Path,
        lake: str,
        gateway: str,
        clock: Callable[[], int],
        *,
        grace_us: int = GRACE_US,
        is_delta: bool = True,
    ) -> None:
        place = place_of(lake)
        self._manifest = Manifest(place, gateway, clock, grace_us=grace_us)
        self._witness = Witness(history / FILE, self._manifest)
        self._hot = HotFiles(history)
        self._reader = LakeReader(self._manifest, self._hot)
        self._sealer = Sealer(self._manifest)
        self._tables = DeltaTables(self._manifest) if is_delta else None
        self._clock = clock
        self._cleared = False

    @property
    def writes(self) -> Mapping[str, Callable[..., Answer]]:
        """Requests that change the lake."""
        return {
            "seal": self._seal,
            "compact": self._compact,
            "keep": self._keep,
            "retain": self._retain,
            "quarantine": self._quarantine,
            "mend": self._mend,
            "vacuum": self._vacuum,
        }

    @property
    def reads(self) -> Mapping[str, Callable[..., Answer]]:
        return {
            "status": self._status,
            "rows": self._rows,
            "latest": self._latest,
            "windows": self._windows,
            "rollup": self._rollup,
            "verify": self._verify,
            "plan": self._plan,
            "export": self._export,
        }

    def _seal(self, beside: list[dict[str, Any]] | None = None, up_to: int | None = None) -> Answer:
        with self._only_writer():
            return self._sealer.seal(self._hot, [Beside(**batch) for batch in beside or ()], up_to=up_to)._asdict()

    def _compact(self, days: list[str] | None = None, min_parts: int = 2) -> Answer:
        with self._only_writer():
            return Compactor(self._manifest).compact(days=days or (), min_parts=min_parts)._asdict()

    def _keep(self, budget_s: float) -> Answer:
        with self._only_writer():
            kept = Upkeep(self._manifest, self._hot).keep(budget_s)
            self._publish()
            if self._tables is not None:
                self._tables.trim()
            return kept._asdict()

    def _retain(
        self,
        rules: list[dict[str, Any]],
        windows: list[str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Answer:
        with self._only_writer():
            kept = KEPT_WINDOWS if windows is None else windows
            retention = Retention(self._manifest, [RetentionRule(**rule) for rule in rules], windows=kept)
            return retention.apply(force=force, dry_run=dry_run)._asdict()

    def _status(self) -> Answer:
        snapshot = self._manifest.snapshot()
        return {
            "gateway": snapshot.gateway,
            "seq": snapshot.seq,
            "sealed": snapshot.sealed,
            "parts": len(snapshot.parts),
            "rows": sum(part.rows for part in snapshot.parts if part.table == "readings"),
            "marks": dict(snapshot.marks),
            "set_aside": sum(part.rows for part in snapshot.parts if part.table == SET_ASIDE),
            "damaged": sum(part.rows for part in records(self._manifest, snapshot)),
        }

    def _rows(
        self,
        selection: dict[str, Any],
        limit: int = 1_000,
        after: list[int] | None = None,
        after_row: int | None = None,
        descending: bool = False,
        sealed_only: bool = True,
    ) -> Answer:
        return self._reader.rows(
            Selection(**selection),
            limit=limit,
            after=(after[0], after[1]) if after else None,
            after_row=after_row,
            descending=descending,
            sealed_only=sealed_only,
        )

    def _latest(self, selection: dict[str, Any]) -> Answer:
        return self._reader.latest(Selection(**selection))

    def _windows(self, selection: dict[str, Any], window_us: int, limit: int) -> Answer:
        return self._reader.windows(Selection(**selection), window_us, limit=limit)

    def _rollup(self, selection: dict[str, Any], window_us: int, expected_us: dict[str, int] | None = None) -> Answer:
        return self._reader.rollup(Selection(**selection), window_us, expected_us=expected_us)

    def _verify(self) -> Answer:
        return verify(self._manifest)._asdict()

    def _quarantine(self) -> Answer:
        with self._only_writer():
            return verify(self._manifest, quarantine=True)._asdict()

    def _mend(self) -> Answer:
        with self._only_writer():
            return Mender(self._manifest, self._hot).mend()._asdict()

    def _vacuum(self) -> Answer:
        with self._only_writer():
            return Compactor(self._manifest).sweep(self._manifest.snapshot())._asdict()

    def _plan(self, rules: list[dict[str, Any]] | None = None) -> Answer:
        return plan(self._manifest, self._hot, [RetentionRule(**rule) for rule in rules or ()])._asdict()

    def _export(self, selection: dict[str, Any], path: str, format: str) -> Answer:
        return export(self._reader, Selection(**selection), Path(path), format)._asdict()

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """One process at a time changes a local lake; on other filesystems the runtime's own lock has to do."""
        place = self._manifest.place
        if not isinstance(place, LocalPlace):
            with self._witnessed():
                yield
            return
        import fcntl

        folder = place.root / MANIFEST
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{self._manifest.gateway}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Locked(f"another process is writing to the lake of gateway {self._manifest.gateway!r}") from error
            with self._witnessed():
                if not self._cleared:
                    self._sealer.clear_unlisted(self._hot)
                    self._cleared = True
                yield

    @contextmanager
    def _witnessed(self) -> Iterator[None]:
        self._witness.compare(self._manifest.snapshot())
        # Before it too: what a killed process has sealed is not to be told together with what is merged now.
        with suppress(SkepError):
            self._publish()
        try:
            yield
        finally:
            self._witness.note()
        # What is sealed is sealed, whatever becomes of this; the upkeep says what is wrong.
        with suppress(SkepError):
            self._publish()

    def _publish(self) -> None:
        if self._tables is not None:
            self._tables.publish(self._manifest.snapshot())


class WithoutPandas(MetaPathFinder):
    """Keeps pandas out of this process. pyarrow imports it, where it is installed, only to ask whether a list is one of
    its arrays: that takes longer than sealing a hundred thousand rows, and 50 MB."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the lake process does without pandas", name="pandas")
        return None


def serve(worker: Worker, clock: RuntimeClock, incoming: BinaryIO, outgoing: BinaryIO, idle_s: float) -> None:
    """Answer requests, by the time that they tell `clock`, until the input ends or nothing happened for `idle_s`."""
    lock = Lock()
    running: set[Future[None]] = set()

    def answer(request_id: object, work: Callable[..., Answer], arguments: Mapping[str, Any]) -> None:
        try:
            reply = {"id": request_id, "result": work(**arguments)}
        except BaseException as failure:
            reply = {"id": request_id, "error": error_of(failure)}
        line = to_json(reply) + b"\n"
        with lock:
            outgoing.write(line)
            outgoing.flush()

    with ThreadPoolExecutor(1, "write", _step_back) as writing, ThreadPoolExecutor(2, "read") as reading:
        buffer = b""
        while True:
            ready, _, _ = select.select([incoming], [], [], idle_s)
            running = {future for future in running if not future.done()}
            if not ready:
                if running:
                    continue
                return
            chunk = os.read(incoming.fileno(), 1 << 20)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                request = from_json(line)
                name, request_id = request["do"], request["id"]
                clock.set(request["now"])
                if name in worker.writes:
                    running.add(writing.submit(answer, request_id, worker.writes[name], request.get("with", {})))
                elif name in worker.reads:
                    running.add(reading.submit(answer, request_id, worker.reads[name], request.get("with", {})))
                else:
                    answer(request_id, _unknown(name), {})


def _step_back() -> None:
    """Let this thread, and those it starts, have what processor time others leave: sealing can wait, live writes and
    reads cannot."""
    # Linux counts niceness by thread; elsewhere it would slow the reads beside.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def _unknown(name: str) -> Callable[[], Answer]:
    def refuse() -> Answer:
        raise Invalid(f"the lake process cannot do {name[:40]!r}")

    return refuse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m twin.lake.worker")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--grace", type=float, default=GRACE_US / 1e6)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--private", action="store_true", help="what is made is for its owner only")
    parser.add_argument("--no-delta", action="store_true", help="the tables get no Delta logs")
    options = parser.parse_args()
    if options.private:
        os.umask(0o077)
    sys.meta_path.insert(0, WithoutPandas())
    clock = RuntimeClock()
    grace_us = round(options.grace * 1_000_000)
    worker = Worker(
        options.history, options.lake, options.gateway, clock, grace_us=grace_us, is_delta=not options.no_delta
    )
    serve(worker, clock, sys.stdin.buffer, sys.stdout.buffer, options.idle)


if __name__ == "__main__":
    main()
