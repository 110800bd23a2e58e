"""What SIGHUP makes a runtime read again while it runs: the log, limits of senders and requests, roles, rules and
policies, and certificates.

Each by itself: what cannot be read stays as it was and is said. All other keys count from the next start, and those
that were changed are named.
"""

import asyncio
import logging

import anyio.to_thread

from gateway import logs
from gateway.config import Config
from gateway.core_settings import core_settings
from gateway.running import Running
from gateway.supervision import ServiceManager
from things.errors import SkepError

log = logging.getLogger(__name__)

READ_AGAIN = (
    "log",
    *(f"limits.{one}" for one in ("messages_per_second", "message_burst", "bytes_per_second", "byte_burst", "roles")),
    *(f"requests.{one}" for one in ("expires_s", "deadline_s", "max_waiting_per_agent", "max_waiting_per_caller")),
)
"""Keys, and sections, that count at once."""
_LISTENERS = ("http.http", "http.https", "mqtt.mqtt", "mqtt.mqtts")
"""The command line may have said other ones at the start."""


async def serve(running: Running, asked: asyncio.Event, manager: ServiceManager) -> None:
    """Read again whenever it was asked for, until cancelled."""
    while True:
        await asked.wait()
        asked.clear()
        with manager.reloading():
            await reload(running)


async def reload(running: Running) -> None:
    """Read again, once."""
    stores, failed, later = running.stores, list[str](), list[str]()
    try:
        config = await anyio.to_thread.run_sync(Config.load, stores.home)
        logs.configure(config.log.level, as_json=config.log.json_lines)
        running.runtime.take_limits(core_settings(config))
        later = _later(stores.config, config)
    except (SkepError, OSError) as error:
        failed.append(f"skep.toml: {error}")
    try:
        await stores.authorizer.reload()
    except (SkepError, OSError) as error:
        failed.append(f"policies: {error}")
    else:
        failed += [f"policies: {stores.authorizer.problem}"] if stores.authorizer.problem else []
    try:
        await anyio.to_thread.run_sync(running.certificates.read)
        running.certificates.serve()
    except SkepError as error:
        failed.append(f"certificates: {error}")
    said = {"failed": "; ".join(failed), "later": " ".join(later)}
    details = {name: text for name, text in said.items() if text}
    stores.authenticator.audit.record("reloaded", by="skep", details=details)
    if later:
        log.warning("changed keys count from the next start", extra={"keys": " ".join(later)})
    if failed:
        log.error("not everything was read again", extra={"failed": "; ".join(failed)})
    else:
        log.info("log level, limits, policies and certificates were read again")


def _later(started: Config, config: Config) -> list[str]:
    """The keys that differ from those of the start and are not read again."""
    old, new = started.changed(), config.changed()
    differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}.difference(_LISTENERS)
    return sorted(key for key in differing if not any(key == one or key.startswith(f"{one}.") for one in READ_AGAIN))
