"""What SIGHUP makes a runtime read again while it runs: the log level, roles, rules and policies, and certificates.

Each by itself: what cannot be read stays as it was and is said. All other keys count from the next start.
"""

import asyncio
import logging

import anyio.to_thread

from gateway import logs
from gateway.config import Config
from gateway.running import Running
from gateway.supervision import ServiceManager
from things.errors import SkepError

log = logging.getLogger(__name__)


async def serve(running: Running, asked: asyncio.Event, manager: ServiceManager) -> None:
    """Read again whenever it was asked for, until cancelled."""
    while True:
        await asked.wait()
        asked.clear()
        with manager.reloading():
            await reload(running)


async def reload(running: Running) -> None:
    """Read again, once."""
    stores, failed = running.stores, []
    try:
        config = await anyio.to_thread.run_sync(Config.load, stores.home)
        logs.configure(config.log.level, as_json=config.log.json_lines)
    except (SkepError, OSError) as error:
        failed.append(f"skep.toml: {error}")
    try:
        await stores.authorizer.reload()
    except (SkepError, OSError) as error:
        failed.append(f"policies: {error}")
    else:
        failed += [f"policies: {stores.authorizer.problem}"] if stores.authorizer.problem else []
    try:
        running.certificates.reload()
    except (SkepError, OSError) as error:  # of ssl too
        failed.append(f"certificates: {error}")
    stores.authenticator.audit.record("reloaded", by="skep", details={"failed": "; ".join(failed)} if failed else {})
    if failed:
        log.error("not everything was read again", extra={"failed": "; ".join(failed)})
    else:
        log.info("log level, policies and certificates were read again")
