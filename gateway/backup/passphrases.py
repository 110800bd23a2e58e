"""Where a passphrase comes from: a private file, or the environment; never the command line, which others can read."""

import os
from pathlib import Path

from authn.keyfiles import read_private
from things.errors import ConfigInvalid

VARIABLE = "SKEP_BACKUP_PASSPHRASE"


def passphrase_of(file: Path | None) -> str | None:
    """The first line of `file`, else the variable; None where neither says one. Raises ConfigInvalid."""
    if file is None:
        return os.environ.get(VARIABLE) or None
    try:
        lines = read_private(file.expanduser()).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"the passphrase file {file} cannot be read: {error}") from error
    if not lines or not lines[0]:
        raise ConfigInvalid(f"the first line of {file} is empty")
    return lines[0]
