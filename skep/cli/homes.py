"""Which data folder a command means that names none."""

import os
from pathlib import Path


def default_home() -> Path:
    """$SKEP_HOME, else ~/.skep."""
    return Path(os.environ.get("SKEP_HOME") or "~/.skep").expanduser()
