"""The files of one class: every line holds the SHA-256 of the line before and the gateway's signature.

`{folder}/000001.jsonl` and so on, the oldest dropped when there are too many. The first line of each file states how
the log stands (`"act":"log"`): from which line on it is there, so that lines that were dropped on purpose can be told
from lines that somebody took away; the public key of what follows; and the id of the log, which is another after a
restore, since lines written after the backup are gone then.

Lines of version 1 had no signature but a hash of themselves. A log of that version goes on under signed lines, the
first of which holds the SHA-256 of the last of them as it stands.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from authn.audit.acts import Class, text
from authn.audit.signing import LINE, Signer
from things.whole_files import sync

MAX_FILE_BYTES = 8 << 20
MAX_FILES = {Class.ADMINISTRATION: 32, Class.USE: 16, Class.ACCESS: 8, Class.REFUSALS: 4}
GENESIS = "0" * 64
STATEMENT = "log"
"""The act of lines that say how the log stands."""
RESTORED = "restored"
"""The outcome of one that follows a restore."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of a chain: its number, the SHA-256 of it as it stands, and the number of the first."""

    seq: int
    line: str
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a line with the act `log` says."""

    log: str
    first: int
    key: str


class Chain:
    """The writing end of one class. Lines get numbers from its owner, who has one row of them for all classes."""

    def __init__(self, folder: Path, class_: Class, signer: Signer) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._class = class_
        self._signer = signer
        self.head: Head | None = None
        self.statement: Statement | None = None
        """The last one; None for a chain that begins, or was never signed."""
        self._number = 1
        self._resume()

    def append(
        self, acts: Sequence[Mapping[str, object]], seq: int, *, at: str, log_id: str, restored: bool = False
    ) -> int:
        """Write acts, numbered from `seq` on, and sync them; the number that comes next. All or none are written. At
        the beginning of a file, or where the log's id or key is new, a statement comes first, dated `at`. `restored`:
        the id is new for that. Raises OSError."""
        number, path = self._number, self._path(self._number)
        if path.exists() and path.stat().st_size >= MAX_FILE_BYTES:
            number += 1
            path = self._path(number)
        begins = not path.exists()
        kept = files_of(self._folder)[-(MAX_FILES[self._class] - 1) :] if begins else files_of(self._folder)
        last, statement, lines = self.head, self.statement, list[bytes]()
        first = (first_seq(kept[0]) if kept else None) or seq
        stated = Statement(log=log_id, first=first, key=self._signer.public)
        if begins or statement is None or (statement.log, statement.key) != (stated.log, stated.key):
            acts = [_statement(stated, statement, at, self._class, restored), *acts]
            statement = stated
        if not acts:
            return seq
        for act in acts:
            line = self._signed({"seq": seq, "v": 2, **act, "prev": last.line if last else GENESIS})
            lines.append(line)
            last, seq = Head(seq, line_hash(line), first), seq + 1
        _append_all(path, b"".join(line + b"\n" for line in lines))
        # They stand from now on, whatever becomes of the rest: written again, they would follow themselves.
        self._number, self.head, self.statement = number, last, statement
        if begins:
            self._tidy(int(kept[0].stem if kept else path.stem))
        return seq

    def _tidy(self, first: int) -> None:
        """Make the name of a new file last, and drop those before the `first` that is kept; what fails is logged."""
        try:
            sync(self._folder)
            for old in files_of(self._folder):
                if int(old.stem) < first:
                    old.unlink()
        except OSError as error:
            log.warning(
                "the folder of the audit log could not be tidied",
                extra={"folder": self._folder.name, "error": str(error)},
            )

    def holds(self, head: Head) -> bool:
        """Whether a line is here as it was, or was dropped for its age."""
        for path in reversed(files_of(self._folder)):
            first = first_seq(path)
            if first is None or first > head.seq:
                continue
            return any(
                line_hash(line) == head.line
                for line in path.read_bytes().splitlines()
                if line.startswith(b'{"seq":%d,' % head.seq)
            )
        return self.statement is not None and head.seq < self.statement.first

    def _signed(self, body: Mapping[str, object]) -> bytes:
        whole = text(body).encode()
        return sealed(whole, self._signer.signature(LINE, whole))

    def _resume(self) -> None:
        """Where the chain stands. A torn last line (power cut) is moved aside, since the next would join it."""
        files = files_of(self._folder)
        if not files:
            return
        path = files[-1]
        content = path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn:
            path.with_suffix(".torn").write_bytes(torn)
            os.truncate(path, len(whole) + len(newline))
            log.warning("the audit log ended in half a line, which was moved aside", extra={"file": str(path)})
        self._number = int(path.stem)
        for candidate in (path, *reversed(files[:-1])):
            lines = candidate.read_bytes().splitlines()
            if not lines:
                continue
            self.head = Head(_seq_of(lines[-1]) or len(lines), line_hash(lines[-1]), first_seq(files[0]) or 1)
            found = (statement_of(line) for line in reversed(lines) if b'"act":"log"' in line)
            self.statement = next((one for one in found if one is not None), None)
            return

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.jsonl"


def files_of(folder: Path) -> list[Path]:
    """The files of one chain, oldest first."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))


def folder_of(root: Path, class_: Class) -> Path:
    """Where a class has its files: that of administration, as all had before there were classes, the root itself."""
    return root if class_ is Class.ADMINISTRATION else root / class_


def first_seq(path: Path) -> int | None:
    """The number of a file's first line; None if that is no line."""
    with path.open("rb") as file:
        return _seq_of(file.readline())


def line_hash(line: bytes) -> str:
    """What the next line, or an anchor, holds of a line."""
    return hashlib.sha256(line).hexdigest()


def sealed(body: bytes, signature: str) -> bytes:
    """A line: what was signed, with the signature as its last member."""
    return body[:-1] + b',"sig":"' + signature.encode() + b'"}'


def unsealed(line: bytes) -> tuple[bytes, str] | None:
    """What was signed, and the signature; None for a line that has none."""
    body, found, rest = line.rpartition(b',"sig":"')
    if not found or not rest.endswith(b'"}'):
        return None
    return body + b"}", rest[:-2].decode("ascii", "replace")


def statement_of(line: bytes) -> Statement | None:
    """What a line says of the log; None if it is none that does."""
    try:
        act = json.loads(line)
        if act["act"] != STATEMENT or act["by"] != "skep" or act["v"] != 2:
            return None
        details = act["details"]
        return Statement(log=str(details["log"]), first=int(details["from"]), key=str(details["key"]))
    except (ValueError, KeyError, TypeError):
        return None


def _statement(
    stated: Statement, before: Statement | None, at: str, class_: Class, restored: bool
) -> dict[str, object]:
    outcome = "ok"
    if restored and (before is None or before.log != stated.log):
        outcome = RESTORED
    elif before is not None and before.key != stated.key:
        outcome = "new key"
    details = {"log": stated.log, "from": str(stated.first), "key": stated.key}
    return {"at": at, "class": str(class_), "act": STATEMENT, "by": "skep", "outcome": outcome, "details": details}


def _append_all(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            with os.fdopen(os.dup(descriptor), "ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.ftruncate(descriptor, size)  # half a group must not stay: it will be written again
            raise
    finally:
        os.close(descriptor)


def _seq_of(line: bytes) -> int | None:
    try:
        found = json.loads(line)["seq"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None
