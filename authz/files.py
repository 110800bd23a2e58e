"""How rights reach the disk: handed in, since whoever keeps secrets does it already."""

from pathlib import Path
from typing import Protocol


class PrivateFiles(Protocol):
    """Files of the owner alone (0600), each whole and synced before it has its name."""

    def write_private(self, path: Path, content: bytes) -> None:
        """Replace `path` with `content` in one step."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make the names in `folder` survive a power cut."""
        ...
