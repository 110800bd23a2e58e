"""Files of secrets: read only if nobody but the owner can have read or changed them."""

import os
import stat
from pathlib import Path

from things.errors import ConfigInvalid


def make_private_folder(folder: Path) -> None:
    """Create `folder` for the owner alone; an existing one must not be open to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise ConfigInvalid(f"{folder} holds secrets and others may enter it; run: chmod 700 {folder}")


def read_private(path: Path) -> bytes:
    """The content of a secret file; raises ConfigInvalid if anybody but the owner may read or change it."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ConfigInvalid(f"{path} is a secret and others may read it (mode {mode:03o}); run: chmod 600 {path}")
        return file.read()
