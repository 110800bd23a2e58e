"""Whether an audit log is as it was written, by the files (or an export) and a public key; better with anchors.

Found are lines that were changed, put in, moved or taken out: within a chain by the hash that the next line holds, at
its beginning by the last statement of where it begins, at its end and of a chain that was made anew as a whole by the
anchors of witnesses. A signature stands for all lines before its own, so that only the last of each chain and the
statements are looked at, unless one of them does not fit: then all are, to name the first bad line.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from authn.audit.acts import Class, text
from authn.audit.anchors import Anchor
from authn.audit.chain import (
    GENESIS,
    RESTORED,
    STATEMENT,
    Head,
    Statement,
    files_of,
    folder_of,
    line_hash,
    statement_of,
    unsealed,
)
from authn.audit.signing import ANCHOR, LINE, is_signed, public_key
from things.errors import Invalid

PAUSED_EVERY = 1_000
_EARLIER = 1
"""The version of lines without a signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found; `file` and `line` name the first bad place, counted from 1. `acts` leaves out what the log says
    of itself. `notes` are for people: what is no fault but should be known."""

    intact: bool
    acts: int = 0
    file: str | None = None
    line: int | None = None
    reason: str | None = None
    key: str | None = None
    heads: Mapping[Class, Head] = field(default_factory=dict)
    anchors: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    number: int
    content: bytes


class Standing(StrEnum):
    """What became of a line that a witness was told of."""

    THERE = "there"
    DROPPED = "dropped"
    """For its age."""
    LOST = "lost"
    """By a restore of an earlier backup."""
    MISSING = "missing"


class _Broken(Exception):
    def __init__(self, line: _Line | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def verify(
    root: Path,
    *,
    key: str | None = None,
    gateway: str = "",
    anchors: Sequence[Anchor] = (),
    notes: Sequence[str] = (),
    pause: Callable[[], None] | None = None,
) -> Verdict:
    """Check the files below `root`. `key`: the public key of whoever wrote the last lines, if it is known; `pause` is
    called every thousand lines, to let others have the processor."""
    for every in (False, True):
        lines = {class_: _lines_of(folder_of(root, class_), root, pause) for class_ in Class}
        verdict = _verified(
            lines, key=key, gateway=gateway, anchors=anchors, notes=notes, every=every, is_begun=bool(gateway)
        )
        if verdict.intact:
            break
    return verdict


def verify_lines(
    name: str,
    lines: Iterable[bytes],
    *,
    key: str | None = None,
    gateway: str = "",
    anchors: Sequence[Anchor] = (),
) -> Verdict:
    """Check an export, the lines of all classes in one; `name` is what it is called in the verdict."""
    apart: dict[Class, list[_Line]] = {class_: [] for class_ in Class}
    for number, line in enumerate(lines, start=1):
        try:
            class_ = Class(json.loads(line).get("class", Class.ADMINISTRATION))
        except (ValueError, AttributeError):
            return Verdict(intact=False, file=name, line=number, reason="not an audit line")
        apart[class_].append(_Line(name, number, line))
    return _verified(apart, key=key, gateway=gateway, anchors=anchors, notes=(), every=True, is_begun=True)


def _verified(
    lines: Mapping[Class, Iterable[_Line]],
    *,
    key: str | None,
    gateway: str,
    anchors: Sequence[Anchor],
    notes: Sequence[str],
    every: bool,
    is_begun: bool,
) -> Verdict:
    ours = [one for one in anchors if gateway in ("", one.gateway)]
    chains = {class_: _Checked(class_, ours, every=every) for class_ in Class}
    said = [*notes]
    if len(ours) < len(anchors):
        said.append(f"{len(anchors) - len(ours)} anchors of other gateways were left out")
    found: dict[str, Any] = {}
    try:
        for class_, chain in chains.items():
            for line in lines[class_]:
                chain.take(line)
            chain.end(key, is_begun=is_begun)
        _check_anchors(ours, chains, said)
    except _Broken as broken:
        found = {"reason": str(broken)}
        if broken.line is not None:
            found |= {"file": broken.line.file, "line": broken.line.number}
    for class_, chain in chains.items():
        said += [f"{class_}: {note}" for note in chain.notes]
    return Verdict(
        intact=not found,
        acts=sum(chain.acts for chain in chains.values()),
        key=next((chain.stated.key for chain in chains.values() if chain.stated), None),
        heads={class_: chain.head for class_, chain in chains.items() if chain.head},
        anchors=len(ours),
        notes=tuple(dict.fromkeys(said)),
        **found,
    )


def _check_anchors(anchors: Sequence[Anchor], chains: Mapping[Class, "_Checked"], notes: list[str]) -> None:
    keys = {key for chain in chains.values() for key in chain.keys}
    told: dict[Class, Head] = {}
    for anchor in anchors:
        what = f"the anchor of {anchor.at}"
        if anchor.key not in keys and not any(chain.is_restored for chain in chains.values()):
            raise _Broken(None, f"{what} is signed by a key that the log does not know")
        if not is_signed(public_key(anchor.key), ANCHOR, anchor.body, anchor.signature):
            raise _Broken(None, f"{what} is not signed by the gateway")
        for class_, head in anchor.heads.items():
            match chains[class_].standing(anchor.log, head):
                case Standing.LOST:
                    notes.append(f"what was written shortly before {anchor.at} is gone by a restore")
                case Standing.MISSING:
                    raise _Broken(None, f"{what} knows line {head.seq} of {class_}, which is not there as it was")
            if class_ in told and head.first > told[class_].seq:
                # Dropping takes one file at a time, and witnesses are told in between.
                raise _Broken(None, f"all of {class_} was dropped at once before {anchor.at}")
            told[class_] = head


class _Checked:
    """One chain, line by line."""

    def __init__(self, class_: Class, anchors: Iterable[Anchor], *, every: bool) -> None:
        self._class = class_
        self._every = every
        self._wanted = {head.seq for one in anchors for name, head in one.heads.items() if name is class_}
        self._there: dict[int, str] = {}
        self._last: _Line | None = None
        self._last_hash = ""
        self._first = 0
        self._ended: dict[str, int] = {}
        """The last line that was written while the log had an id."""
        self._earlier_hash = GENESIS
        self.is_restored = False
        self.acts = 0
        self.head: Head | None = None
        self.stated: Statement | None = None
        self.keys: list[str] = []
        self.notes: list[str] = []

    def take(self, line: _Line) -> None:
        """The next line; raises _Broken."""
        if not line.content.endswith(b"}"):
            raise _Broken(line, "ends in half a line")
        try:
            act = json.loads(line.content)
            seq, version, previous = int(act["seq"]), act["v"], str(act["prev"])
        except (ValueError, KeyError, TypeError) as error:
            raise _Broken(line, "not an audit line") from error
        if version == _EARLIER:
            self._take_earlier(line, act, seq, previous)
        else:
            self._follow(line, seq, previous)
            self._take_signed(line, act, seq)
        self._last, self._last_hash = line, line_hash(line.content)
        self.head = Head(seq, self._last_hash, self._first)
        if seq in self._wanted:
            self._there[seq] = self._last_hash
        if self.stated is not None:
            self._ended[self.stated.log] = seq
        self.acts += act.get("act") != STATEMENT

    def end(self, key: str | None, *, is_begun: bool) -> None:
        """No line comes any more; raises _Broken. `is_begun`: a gateway has been here, so that there is one."""
        if self._last is None:
            if self._wanted or is_begun:
                raise _Broken(None, f"there is not one line of {self._class}")
            return
        if self.stated is None:
            raise _Broken(self._last, "is not signed")
        self._check_signature(self._last, self.stated.key)
        if key is not None and self.stated.key != key:
            raise _Broken(self._last, "is signed by another key")
        if self._first > self.stated.first:
            raise _Broken(None, f"{self._class} begins at line {self._first}, and not at {self.stated.first}")

    def standing(self, log: str, head: Head) -> Standing:
        """What became of a line that a witness was told of when the log had the id `log`."""
        if self._there.get(head.seq) == head.line:
            return Standing.THERE
        if head.seq < self._first:
            return Standing.DROPPED
        is_former = self.stated is not None and self.stated.log != log
        if is_former and self.is_restored and head.seq > self._ended.get(log, 0):
            return Standing.LOST
        return Standing.MISSING

    def _follow(self, line: _Line, seq: int, previous: str) -> None:
        if self._last is None:
            self._first = seq
            return
        if previous != self._last_hash:
            if self.stated is not None:
                self._check_signature(self._last, self.stated.key)
            raise _Broken(line, "does not follow the line before")
        if self.head is not None and seq <= self.head.seq:
            raise _Broken(line, "has the number of an earlier line")

    def _take_signed(self, line: _Line, act: Mapping[str, object], seq: int) -> None:
        if act.get("act") == STATEMENT and (stated := statement_of(line.content)) is not None:
            self._check_signature(line, stated.key)
            if act["outcome"] == RESTORED:
                self.is_restored = True
                self.notes.append(f"restored from a backup at line {seq}, {act['at']}")
            elif self.stated is not None and stated.key != self.stated.key:
                self.notes.append(f"signed by a new key from line {seq} on, {act['at']}")
            self.stated = stated
            if stated.key not in self.keys:
                self.keys.append(stated.key)
        elif self.stated is None:
            # An export may begin anywhere; a file begins with a statement.
            raise _Broken(line, "comes before anything that says who signed it")
        elif self._every:
            self._check_signature(line, self.stated.key)

    def _take_earlier(self, line: _Line, act: dict[str, object], seq: int, previous: str) -> None:
        if self.stated is not None:
            raise _Broken(line, "is not signed")
        if self._last is None:
            self._first = seq
        elif self.head is not None and seq != self.head.seq + 1:
            raise _Broken(line, f"act {self.head.seq + 1} is missing")
        expected = self._earlier_hash if self._last is not None else (GENESIS if seq == 1 else previous)
        if previous != expected:
            raise _Broken(line, "does not follow the line before")
        claimed = str(act.pop("hash", ""))
        if hashlib.sha256(text(act).encode()).hexdigest() != claimed:
            raise _Broken(line, "was changed")
        if text({**act, "hash": claimed}).encode() != line.content:
            raise _Broken(line, "was changed")
        self._earlier_hash = claimed

    def _check_signature(self, line: _Line, key: str) -> None:
        parts = unsealed(line.content)
        try:
            good = parts is not None and is_signed(public_key(key), LINE, *parts)
        except Invalid:
            good = False
        if not good:
            raise _Broken(line, "was changed")


def _lines_of(folder: Path, root: Path, pause: Callable[[], None] | None) -> Iterator[_Line]:
    for path in files_of(folder):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if pause is not None and number % PAUSED_EVERY == 0:
                pause()
            # A whole line ends with the bracket of its act and a newline.
            yield _Line(name, number, line[:-1] if line.endswith(b"\n") else line[:-1] + b"\0")
