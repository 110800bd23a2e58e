"""A gateway's manifest as files: what is in a commit's file, how commits vouch for each other, and what they amount to.

Each commit holds its own digest and that of the one before; `head.json`, written after every commit, names the last. So
a commit that is lost or damaged is noticed wherever it stood: first, between others, or last. Lakes that were begun
without digests are read as they are; their next commit begins the chain.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json

from things.errors import NewerSchema, StorageDamaged
from things.jsontext import encode
from things.lake import (
    MANIFEST,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    Commit,
    Snapshot,
    commit_document,
    commit_of,
    snapshot_of,
)

HEAD = "head.json"
NOTHING = "-"
"""Stands for the digest of a commit before the first one, or of one that is not known any more."""

_NAME = re.compile(r"(checkpoint-)?(\d{12})\.json")


class Head(NamedTuple):
    """The last commit that was made."""

    seq: int
    digest: str


class Numbered(NamedTuple):
    """A file of the manifest, by its name."""

    seq: int
    is_checkpoint: bool

    @property
    def name(self) -> str:
        return f"{'checkpoint-' * self.is_checkpoint}{self.seq:012d}.json"

    @staticmethod
    def of(name: str) -> "Numbered | None":
        """None for any other file."""
        found = _NAME.fullmatch(name)
        return Numbered(int(found[2]), found[1] is not None) if found else None


def commit_text(commit: Commit) -> tuple[bytes, str]:
    """A commit as its file holds it, and its digest."""
    document = commit_document(commit)
    digest = digest_of(document)
    return encode({**document, "digest": digest}), digest


def head_text(gateway: str, head: Head) -> bytes:
    """The file that names the last commit."""
    document = {SCHEMA_KEY: SCHEMA_VERSION, "gateway": gateway, "seq": head.seq, "commit": head.digest}
    return encode({**document, "digest": digest_of(document)})


def head_of(text: bytes, gateway: str) -> Head:
    """What that file says. Raises StorageDamaged, NewerSchema."""
    path = f"{MANIFEST}/gateway={gateway}/{HEAD}"
    document = _document(text, path)
    try:
        if document[SCHEMA_KEY] > SCHEMA_VERSION:
            raise NewerSchema(path, document[SCHEMA_KEY], SCHEMA_VERSION)
        if document["digest"] != digest_of(document) or document["gateway"] != gateway:
            raise ValueError("the content is not what was written")
        return Head(int(document["seq"]), str(document["commit"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageDamaged(f"{path} is damaged: {error}") from error


def digest_of(document: Mapping[str, Any]) -> str:
    """Of everything but the member `digest` itself."""
    return hashlib.sha256(encode({key: document[key] for key in document if key != "digest"})).hexdigest()


def needed(names: Collection[str]) -> list[str]:
    """Of a manifest's files those that `snapshot_from` reads: the newest checkpoint, and the commits after it."""
    files = [found for name in names if (found := Numbered.of(name)) is not None]
    start = max((file.seq for file in files if file.is_checkpoint), default=0)
    return [file.name for file in files if file.seq > start or (file.is_checkpoint and file.seq == start)]


def snapshot_from(gateway: str, names: Collection[str], head: Head | None, read: Callable[[str], bytes]) -> Snapshot:
    """What the files of a gateway's manifest amount to. `names` were listed after `head` was read, so that it cannot
    be ahead of them; `read` gives the content of one. Raises StorageDamaged or NewerSchema rather than guess."""
    last = ""
    commits = []
    for commit, digest in _chained(gateway, names, head, read):
        commits.append(commit)
        last = digest
    return snapshot_of(gateway, commits)._replace(digest=last)


def _chained(
    gateway: str, names: Collection[str], head: Head | None, read: Callable[[str], bytes]
) -> Iterator[tuple[Commit, str]]:
    """The newest checkpoint as one commit and the commits after it, each with the digest of the commit it stands for;
    empty where that is not known."""
    files = [found for name in names if (found := Numbered.of(name)) is not None]
    start = max((file.seq for file in files if file.is_checkpoint), default=0)
    later = sorted(file.seq for file in files if not file.is_checkpoint and file.seq > start)
    missing = next((wanted for wanted, seq in enumerate(later, start + 1) if wanted != seq), None)
    newest = later[-1] if later else start
    if missing is None and head is not None and newest < head.seq:
        missing = newest + 1
    if missing is not None:
        raise StorageDamaged(f"the manifest of gateway {gateway!r} lacks commit {missing}")
    digest, is_chained = "", False
    for file in [Numbered(start, True)] * (start > 0) + [Numbered(seq, False) for seq in later]:
        path = f"{MANIFEST}/gateway={gateway}/{file.name}"
        document = _document(read(file.name), path)
        commit = commit_of(document, path)
        own = digest_of(document)
        is_intact = document["digest"] == own if "digest" in document else not commit.before
        if not is_intact or commit.seq != file.seq:
            raise StorageDamaged(f"{path} is damaged: the content is not what was written")
        if file.is_checkpoint:
            digest = "" if commit.before == NOTHING else commit.before
        else:
            if digest and commit.before not in ("", NOTHING, digest):
                raise StorageDamaged(f"{path} does not follow the commit before it, which was replaced or damaged")
            digest = own
        if head is not None and head.seq == commit.seq and digest and head.digest != digest:
            raise StorageDamaged(f"{path} is not the commit that {HEAD} names")
        is_chained = is_chained or bool(commit.before)
        yield commit, digest
    if is_chained and head is None:
        raise StorageDamaged(f"the manifest of gateway {gateway!r} lacks {HEAD}, which names its last commit")


def _document(text: bytes, path: str) -> Mapping[str, Any]:
    try:
        document = from_json(text)
    except ValueError as error:
        raise StorageDamaged(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise StorageDamaged(f"{path} is not a manifest file")
    return document
