"""The life of a runtime: `run` is a whole `skep run` process; `started` is the same for tests and programs that embed
skep; `opened` serves the control socket only, for commands that find no runtime.

It is the top of the composition root: `gateway.stores` opens the stores, `gateway.assembly` puts the parts together.
"""

import asyncio
import contextlib
import gc
import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import uvloop
from anyio.abc import TaskStatus

from gateway import announcement, logs, reloading, server_certificate
from gateway.assembly import Assembly
from gateway.config import Config
from gateway.home import COMMAND, RUNTIME, prepared, write_whole
from gateway.hosts import NameFinder
from gateway.running import Running
from gateway.stores import open_stores
from gateway.supervision import READY, STOPPING, ServiceManager

log = logging.getLogger(__name__)

__all__ = ["Running", "opened", "run", "started"]

SWITCH_S = 0.0005
"""How long a thread waits for the interpreter before the one that has it is made to hand it over."""
SHUTDOWN_S = 9.0
"""From SIGTERM to the end at the latest; a supervisor kills after ten."""


@asynccontextmanager
async def started(home: Path, config: Config | None = None, *, who: str = RUNTIME) -> AsyncIterator[Running]:
    """Hold, open and serve a home for as long as the block runs. Raises Locked, ConfigInvalid, StorageDamaged,
    StorageFailed, AddressInUse."""
    async with open_stores(home, config, who) as stores:
        finder = NameFinder(stores.config.gateway.names, stores.config.gateway.public_url)
        names = await finder.find()
        assembly = Assembly(stores, names)
        await assembly.publish_services()
        await assembly.restore_presence()
        with _sole_error():
            async with anyio.create_task_group() as core:
                await core.start(_served, assembly.runtime.serve)
                await core.start(assembly.lake.serve)
                await core.start(assembly.rdf.serve)
                core.start_soon(assembly.sealing.serve)
                core.start_soon(assembly.chores.serve)
                core.start_soon(assembly.backups.serve)
                core.start_soon(finder.watch, names, assembly.renamed)
                core.start_soon(server_certificate.serve, assembly.certificates, stores.authenticator.audit)
                core.start_soon(stores.stocktaking.keep, lambda: stores.progress, stores.marks)
                try:
                    # Bindings end first: they answer what is being committed while the core still runs.
                    async with anyio.create_task_group() as servers:
                        for binding in assembly.bindings:
                            await servers.start(_served, binding.serve, assembly.runtime)
                        try:
                            yield assembly.running()
                        finally:
                            servers.cancel_scope.cancel()
                finally:
                    core.cancel_scope.cancel()


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Running]:
    """The same without listeners: only the control socket is served. For commands on a home that nobody runs."""
    config = Config.load(prepared(home))
    config = config.with_listeners(http="off", https="off", mqtt="off", mqtts="off")
    async with started(home, config, who=COMMAND) as running:
        yield running


@contextlib.contextmanager
def _sole_error() -> Iterator[None]:
    """Let one error out of its task groups as what it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        sole: BaseException = group
        while isinstance(sole, BaseExceptionGroup) and len(sole.exceptions) == 1:
            sole = sole.exceptions[0]
        if sole is group:
            raise
        raise sole from sole.__cause__


async def _served(
    serve: Callable[..., Any], *given: object, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    await serve(*given, task_status=task_status)


def run(
    home: Path,
    *,
    http: str | None = None,
    https: str | None = None,
    mqtt: str | None = None,
    mqtts: str | None = None,
    ready_file: Path | None = None,
) -> int:
    """The whole life of a runtime process: serve until SIGTERM or SIGINT, then end within 10 s; the exit code.

    Listeners given here come before those of the configuration. The ready file is written when everything listens and
    removed at the end. Raises as `started`.
    """
    config = Config.load(prepared(home)).with_listeners(http=http, https=https, mqtt=mqtt, mqtts=mqtts)
    logs.configure(config.log.level, as_json=config.log.json_lines)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(home, config, ready_file))
    return 0


async def _run(home: Path, config: Config, ready_file: Path | None) -> None:
    stop, reload, manager = asyncio.Event(), asyncio.Event(), ServiceManager()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    async with started(home, config) as running:
        keep_what_start_made()
        # A busy loop keeps the interpreter for itself between two switches, while each of its system calls wakes the
        # writer that waits for it: with the default of 5 ms dozens of times for each turn the writer gets.
        sys.setswitchinterval(SWITCH_S)
        _audit_configuration(running)
        _say(announcement.addresses(running))
        _say(announcement.invitation(running, draws=sys.stdout.isatty()))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_tell_addresses, running, ready_file)
                tasks.start_soon(reloading.serve, running, reload, manager)
                tasks.start_soon(manager.stay_alive)
                manager.tell(READY, f"STATUS={running.https or running.http or running.mqtts or running.mqtt or ''}")
                tasks.start_soon(running.stores.authenticator.watch_audit)
                await stop.wait()
                tasks.cancel_scope.cancel()
        finally:
            log.info("stopping")
            manager.tell(STOPPING)
            # Whatever hangs must not keep the process: everything acknowledged is already on disk.
            loop.call_later(SHUTDOWN_S, os._exit, 1)
            if ready_file is not None:
                await anyio.Path(ready_file).unlink(missing_ok=True)


async def _tell_addresses(running: Running, ready_file: Path | None) -> None:
    """Write the ready file, and again with the addresses that hold once the names of this machine have changed."""
    changed = asyncio.Event()
    with running.places.telling(changed.set):
        while True:
            if ready_file is not None:
                content = json.dumps(running.ready_document()).encode() + b"\n"
                await anyio.to_thread.run_sync(partial(write_whole, ready_file, content, mode=0o644))
            await changed.wait()
            changed.clear()
            _say(announcement.addresses(running))


def keep_what_start_made() -> None:
    """What start made stays; messages come and go by reference count. The default looks through all of it for every few
    hundred messages, at half the throughput. Nor is it looked through once before it is kept: that is 90 ms with 10,000
    Things, and finds a few thousand objects of imports, less than 1 MiB."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    gc.enable()


def _audit_configuration(running: Running) -> None:
    """What the process was started with: which keys are set, and a figure that changes with any of their values. The
    database's address may hold a password, and is left out."""
    changed = running.stores.config.changed()
    shown = {key: value for key, value in changed.items() if key != "database_url"}
    figure = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]
    details = {"set": " ".join(sorted(changed))}
    running.stores.authenticator.audit.record("configuration", by="skep", target=figure, details=details)


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)
