"""What can happen to a SQLite file: ways to damage one, by name."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

Damage = Callable[[Path], None]
PAGE, FRAME, LOG_HEAD = 4096, 4096 + 24, 32
_KINDS = {5: "inner", 13: "leaf", 2: "index inner", 10: "index leaf"}


def missing(path: Path) -> None:
    for part in ("", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


def empty(path: Path) -> None:
    missing(path)
    path.touch(mode=0o600)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 8192 * 4096 or 2048])


def foreign(path: Path) -> None:
    missing(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE guests (name TEXT)")


def flipped(seed: int, low: int = 100, high: int | None = None) -> Damage:
    """Twelve bits between two places of a file, anywhere without."""

    def flip(path: Path) -> None:
        chance, content = random.Random(seed), bytearray(path.read_bytes())
        if len(content) <= low:
            content += bytes(low)
        for _ in range(12):
            content[chance.randrange(low, min(high or len(content), len(content)))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)

    return flip


def page_flipped(kind: str, seed: int) -> Damage:
    """Twelve bits of one page of a kind."""

    def flip(path: Path) -> None:
        number = random.Random(seed).choice(pages(path)[kind])
        flipped(seed, (number - 1) * PAGE, number * PAGE)(path)

    return flip


def pages(path: Path) -> dict[str, list[int]]:
    """The pages of a file by kind; what is none of these is overflow, free, or not used yet."""
    content, found = path.read_bytes(), dict[str, list[int]]()
    for number in range(2, len(content) // PAGE + 1):
        found.setdefault(_KINDS.get(content[(number - 1) * PAGE], "overflow"), []).append(number)
    return {"schema": [1], **found}


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def frames(path: Path) -> int:
    """How many pages the log of a store holds."""
    return (log_of(path).stat().st_size - LOG_HEAD) // FRAME if log_of(path).exists() else 0


def log_cut(kept: int | None = None) -> Damage:
    """The log without the frames behind so many; the half without a number."""

    def cut(path: Path) -> None:
        content = log_of(path).read_bytes()
        number = frames(path) // 2 if kept is None else kept
        log_of(path).write_bytes(content[: LOG_HEAD + number * FRAME])

    return cut


def log_flipped(path: Path) -> None:
    content = bytearray(log_of(path).read_bytes())
    content[LOG_HEAD + 24 + 100] ^= 4
    log_of(path).write_bytes(content)


def log_gone(path: Path) -> None:
    log_of(path).unlink()


def killed_copy(home: Path, to: Path) -> None:
    """A home in use, as a kill leaves it: whatever is committed is in its files, and in the system's memory of them."""
    shutil.copytree(home, to, ignore=lambda _folder, names: {name for name in names if name.endswith(".sock")})
