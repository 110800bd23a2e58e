"""The Node.js packages that stand for other people's clients: installed once, by their lock file, into a cache folder.

Without Node.js, npm or a registry the tests that need them are skipped, and say why.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INSTALL_S = 180


@cache
def node_modules() -> Path:
    """The folder with the packages; skips the test where there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    folder = Path(tempfile.gettempdir()) / f"skep-clients-{os.getuid()}-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as held:
        # Tests may run in several processes.
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not install the packages within {INSTALL_S} s")
            if done.returncode:
                pytest.skip(f"npm could not install the packages: {done.stderr.strip()[-200:]}")
            (folder / "complete").touch()
    return folder / "node_modules"
