"""Which data folder a command means, and as whom it works there."""

import os
from pathlib import Path

from things.errors import Forbidden


def default_home() -> Path:
    """$SKEP_HOME, else ~/.skep."""
    return Path(os.environ.get("SKEP_HOME") or "~/.skep").expanduser()


def entered_home(given: Path | None) -> Path:
    """The data folder that a command works in: the one that is given, else the default one.

    A process of root becomes the owner of the folder first, so that it leaves nothing there that a service with an
    account of its own could not read. Raises Forbidden where the system does not allow that.
    """
    home = (given or default_home()).expanduser()
    if os.geteuid() == 0 and home.is_dir() and (owner := home.stat()).st_uid != 0:
        from skep.cli.owners import become

        try:
            become(owner.st_uid, owner.st_gid)
        except OSError as error:
            raise Forbidden(
                f"{home} belongs to user {owner.st_uid}, whom this process of root may not become"
                f" ({error.strerror}); run the command as that user"
            ) from error
    return home
