"""Writing rights to disk: whole, synced, and under their name only when complete."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` with `content` in one step."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
