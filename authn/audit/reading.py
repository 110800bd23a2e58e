"""Acts as they stand in the files, all classes in one order. Only the files that are needed are read."""

import heapq
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from authn.audit.acts import Class
from authn.audit.chain import files_of, first_seq, folder_of


def read(
    root: Path, *, after: int | None = None, limit: int = 100, class_: Class | None = None
) -> list[dict[str, object]]:
    """Those after a `seq`, or else the latest; of one class or of all, in order."""
    found: list[list[dict[str, object]]] = []
    for one in (class_,) if class_ is not None else Class:
        folder = folder_of(root, one)
        found.append(_latest(folder, limit) if after is None else _after(folder, after, limit))
    merged = list(heapq.merge(*found, key=_seq))
    return merged[-limit:] if after is None else merged[:limit]


def _latest(folder: Path, limit: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in reversed(files_of(folder)):
        found = [*_acts(path, -1, limit), *found]
        if len(found) >= limit:
            break
    return found[-limit:]


def _after(folder: Path, after: int, limit: int) -> list[dict[str, object]]:
    files = files_of(folder)
    found: list[dict[str, object]] = []
    for path, following in zip_longest(files, files[1:]):
        begins = following and first_seq(following)
        if begins and begins <= after + 1:
            continue
        for act in _acts(path, after):
            found.append(act)
            if len(found) >= limit:
                return found
    return found


def _acts(path: Path, after: int, last: int | None = None) -> Iterator[dict[str, object]]:
    lines = path.read_bytes().splitlines()
    for line in lines if last is None else lines[-last:]:
        try:
            act = json.loads(line)
            wanted = act["seq"] > after
        except (ValueError, KeyError, TypeError):
            continue  # `verify` is who tells of it
        if wanted:
            yield act


def _seq(act: dict[str, object]) -> int:
    return int(str(act["seq"]))
