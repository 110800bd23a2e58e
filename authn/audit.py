"""The audit log: one JSON line per security act, each holding the hash of the one before.

`record` never blocks: lines are numbered and queued in order, and one thread writes and syncs them in groups, at most
five times a second unless somebody waits. What `flush` has waited for is on disk. Changing, removing or inserting a
line breaks the chain at that place, which `verify` names. Values are cut and escaped, so that no name can begin a line
of its own, and members that look like secrets are left out.
"""

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from things.times import rfc3339
from things.whole_files import sync

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 32
MAX_QUEUED = 10_000
MAX_VALUE_CHARS = 256
MAX_DETAILS = 20
GATHER_S = 0.2
"""How long acts lie until they are written together: each sync holds up the commits of all other stores."""

_GENESIS = "0" * 64
_SECRET_WORDS = ("password", "secret", "token", "code", "key_pem", "private")
_SECRET_EXCEPT = ("tokenid",)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `verify` found; `file` and `line` name the first bad place, counted from 1."""

    intact: bool
    acts: int
    file: str | None = None
    line: int | None = None
    reason: str | None = None
    last_hash: str = _GENESIS


class Audit:
    """The writing end; opened once per process. On overflow acts are dropped, counted, and the gap is recorded."""

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._clock = clock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._queue: deque[dict[str, object]] = deque()
        self._wake = threading.Condition()
        self._done = 0
        self._taken = 0
        self._dropped = 0
        self._stopped = False
        self._awaited = 0
        self.failed = False
        """The last attempt to write failed (full disk); acts wait in the queue and are tried again."""
        self._number, self._seq, self._hash = self._resume()
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def record(
        self,
        act: str,
        *,
        by: str,
        target: str = "",
        outcome: str = "ok",
        source: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Note an act: what, by whom, upon what, how it ended."""
        line: dict[str, object] = {"v": 1, "at": rfc3339(self._clock()), "act": _plain(act), "by": _plain(by)}
        if target:
            line["target"] = _plain(target)
        line["outcome"] = _plain(outcome)
        if source is not None:
            line["source"] = _plain(source)
        if details:
            line["details"] = {
                _plain(key): _plain(value)
                for key, value in list(details.items())[:MAX_DETAILS]
                if not _is_secret(str(key))
            }
        with self._wake:
            if len(self._queue) >= MAX_QUEUED:
                self._dropped += 1
                return
            self._queue.append(line)
            self._taken += 1
            if len(self._queue) == 1:
                self._wake.notify_all()

    async def flush(self, timeout_s: float = 10) -> None:
        """Return when everything recorded so far is on disk; raises TimeoutError."""
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(None, self._wait, timeout_s), timeout_s + 1)

    def close(self) -> None:
        """Write what is queued and stop."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        self._thread.join(timeout=10)

    def verify(self) -> Verdict:
        """Check the chain of all files as they are on disk."""
        return verify(self._folder)

    def read(self, *, after: int | None, limit: int) -> list[dict[str, object]]:
        """Acts that are on disk."""
        return read(self._folder, after=after, limit=limit)

    def _wait(self, timeout_s: float) -> None:
        with self._wake:
            wanted = self._taken
            self._awaited += 1
            self._wake.notify_all()
            try:
                if not self._wake.wait_for(lambda: self._done >= wanted, timeout_s):
                    raise TimeoutError("the audit log could not be written in time")
            finally:
                self._awaited -= 1

    def _write_all(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stopped)
                self._wake.wait_for(lambda: self._awaited or self._stopped, GATHER_S)
                group = list(self._queue)
                if not group:
                    return
                dropped = self._dropped
            if dropped:
                group.append({"v": 1, "at": rfc3339(self._clock()), "act": "audit-gap", "by": "skep",
                              "outcome": "lost", "details": {"acts": str(dropped)}})  # fmt: skip
            try:
                self._append(group)
            except OSError:
                if not self.failed:
                    log.exception("the audit log cannot be written; acts wait in memory")
                self.failed = True
                with self._wake:
                    if self._stopped:
                        return
                    self._wake.wait(1.0)
                continue
            self.failed = False
            with self._wake:
                written = len(group) - bool(dropped)
                for _ in range(written):
                    self._queue.popleft()
                self._dropped -= dropped
                self._done += written
                self._wake.notify_all()

    def _append(self, group: list[dict[str, object]]) -> None:
        number, seq, last = self._number, self._seq, self._hash
        path = self._path(number)
        if path.exists() and path.stat().st_size >= MAX_FILE_BYTES:
            number += 1
            path = self._path(number)
        lines = []
        for act in group:
            seq += 1
            body = {"seq": seq, **act, "prev": last}
            last = _hash_of(body)
            lines.append(_text({**body, "hash": last}))
        existed = path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                with os.fdopen(os.dup(descriptor), "ab") as file:
                    file.write("".join(f"{line}\n" for line in lines).encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                os.ftruncate(descriptor, size)  # half a group must not stay: it will be written again
                raise
        finally:
            os.close(descriptor)
        if not existed:
            sync(self._folder)
            self._drop_oldest(number)
        self._number, self._seq, self._hash = number, seq, last

    def _drop_oldest(self, newest: int) -> None:
        for path in _files(self._folder):
            if int(path.stem) <= newest - MAX_FILES:
                path.unlink()

    def _resume(self) -> tuple[int, int, str]:
        """Where the chain stands. A torn last line (power cut) is moved aside, since the next would join it."""
        files = _files(self._folder)
        if not files:
            return 1, 0, _GENESIS
        path = files[-1]
        content = path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn:
            path.with_suffix(".torn").write_bytes(torn)
            os.truncate(path, len(whole) + len(newline))
            log.warning("the audit log ended in half a line, which was moved aside", extra={"file": str(path)})
        for candidate in (path, *reversed(files[:-1])):
            lines = candidate.read_bytes().splitlines()
            if not lines:
                continue
            try:
                last = json.loads(lines[-1])
                return int(path.stem), int(last["seq"]), str(last["hash"])
            except (ValueError, KeyError, TypeError):
                # The chain shows the damage to `verify` for good; writing goes on behind it.
                log.error("the audit log was changed from outside", extra={"file": str(candidate)})
                return int(path.stem), len(lines), hashlib.sha256(lines[-1]).hexdigest()
        return int(path.stem), 0, _GENESIS

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.jsonl"


def verify(folder: Path) -> Verdict:
    """Check every line of every file, oldest first. Old files may have been dropped; then the first line is trusted."""
    last: str | None = None
    seq = acts = 0
    for path in _files(folder):
        content = path.read_bytes()
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            broken = partial(Verdict, intact=False, file=path.name, line=number, acts=acts, last_hash=last or _GENESIS)
            try:
                act = json.loads(line)
                claimed, previous, this = act.pop("hash"), act["prev"], act["seq"]
            except (ValueError, KeyError, TypeError, AttributeError):
                return broken(reason="not an audit line")
            if last is None:
                last, seq = (_GENESIS, 0) if this == 1 else (previous, this - 1)
            if this != seq + 1:
                return broken(reason=f"act {seq + 1} is missing")
            if previous != last:
                return broken(reason="does not follow the line before")
            if _hash_of(act) != claimed or _text({**act, "hash": claimed}).encode() != line:
                return broken(reason="was changed")
            last, seq, acts = claimed, this, acts + 1
        if content and not content.endswith(b"\n"):
            return Verdict(intact=False, acts=acts, file=path.name, line=content.count(b"\n") + 1,
                           reason="ends in half a line", last_hash=last or _GENESIS)  # fmt: skip
    return Verdict(intact=True, acts=acts, last_hash=last or _GENESIS)


def read(folder: Path, *, after: int | None = None, limit: int = 100) -> list[dict[str, object]]:
    """Acts as they stand in the files, in order: those after a `seq`, or else the latest."""
    found: deque[dict[str, object]] = deque(maxlen=limit if after is None else None)
    for path in _files(folder):
        for line in path.read_bytes().splitlines():
            try:
                act = json.loads(line)
                wanted = after is None or act["seq"] > after
            except (ValueError, KeyError, TypeError):
                continue  # `verify` is who tells of it
            if wanted:
                found.append(act)
                if after is not None and len(found) >= limit:
                    return list(found)
    return list(found)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))


def _hash_of(act: Mapping[str, object]) -> str:
    return hashlib.sha256(_text(act).encode()).hexdigest()


def _text(act: Mapping[str, object]) -> str:
    # ASCII only: JSON escapes control characters but would let U+2028 and bidirectional marks through.
    return json.dumps(act, ensure_ascii=True, separators=(",", ":"))


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def _is_secret(key: str) -> bool:
    name = key.lower()
    return name not in _SECRET_EXCEPT and any(word in name for word in _SECRET_WORDS)
