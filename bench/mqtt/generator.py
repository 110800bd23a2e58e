"""The load generator: `load.c`, compiled on demand into a folder of its own."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("load.c")
TOPIC = "bench/t"
"""What its topics begin with, if it is not told otherwise; a number follows."""


def compiled() -> Path:
    """The generator's executable; compiled once for each version of the source."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("the load generator is C: install a compiler (on Debian: apt install gcc libc6-dev) and run again")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"skep-load-{digest}"
    if not target.exists():
        built = target.with_suffix(".new")
        done = subprocess.run(
            [compiler, "-O2", "-o", str(built), str(SOURCE)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"the load generator does not compile:\n{done.stderr}")
        built.replace(target)
    return target


def run(port: int, mode: str, **options: int | str) -> dict[str, float]:
    """One load against a server on loopback; its figures."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [str(compiled()), "127.0.0.1", str(port), mode, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"load {mode} {' '.join(arguments)}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def held(port: int, **options: int | str) -> "subprocess.Popen[str]":
    """Connections that stay open; the first line of output comes when all are up. End it with `terminate`."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [str(compiled()), "127.0.0.1", str(port), "idle", *arguments], stdout=subprocess.PIPE, text=True
    )
