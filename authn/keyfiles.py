"""Files written whole; secrets with mode 0600, and refused when somebody else could have read them."""

import os
import stat
from pathlib import Path

from things.errors import ConfigInvalid


def make_private_folder(folder: Path) -> None:
    """Create `folder` for the owner alone; an existing one must not be open to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise ConfigInvalid(f"{folder} holds secrets and others may enter it; run: chmod 700 {folder}")


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `path` in one step with `content`, synced before it has its name: a reader, or a power cut, finds the
    old or the new content and nothing between. Readable by the owner only, unless `mode` says otherwise."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the mask of the process says
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_private(path: Path) -> bytes:
    """The content of a secret file; raises ConfigInvalid if anybody but the owner may read or change it."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ConfigInvalid(f"{path} is a secret and others may read it (mode {mode:03o}); run: chmod 600 {path}")
        return file.read()


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
