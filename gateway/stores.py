"""What one home holds, opened: its stores, its accounts, its rights.

They are opened in the order in which they need each other and closed in the other one; one process at a time holds a
home.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from authn.audit import Syslog, Witness, WitnessFile
from authn.authenticator import LocalAuthenticator
from authn.throttle import LoginBudgets
from authz.authorizer import LocalAuthorizer
from bindings.messaging_node.store import NodeStore
from bindings.mqtt.engines.native import SessionStore
from gateway.config import Config
from gateway.home import RUNTIME, close_to_others, gateway_id, held, prepared, refuse_unfinished
from gateway.inventory import ACCOUNTS, HISTORY, RESTORED, TWIN, Marks
from gateway.schemas import due, note_begun, note_finished
from gateway.stocktaking import AUTHORITY, CONVENIENCES, KEYS, RIGHTS, ROW_IDS, Stocktaking
from gateway.timekeeping import FILE as CLOCK_FILE
from gateway.timekeeping import Timekeeping
from runtime.clocks import IDs, wall_clock
from runtime.core import Clocks
from runtime.ports import Directory
from things.errors import StorageDamaged, StorageFailed, StorageFull
from twin.store import Twin, open_twin

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The opened stores of one home."""

    home: Path
    config: Config
    clocks: Clocks
    time: Timekeeping
    twin: Twin
    authenticator: LocalAuthenticator
    authorizer: LocalAuthorizer
    stocktaking: Stocktaking

    @property
    def progress(self) -> object:
        """Differs whenever `marks` do."""
        history = self.twin.history
        return (
            history.last_row,
            len(history.days),
            self.twin.ledger.last_seq,
            self.twin.directory.last_change,
            self.authenticator.revision,
        )

    def marks(self) -> dict[str, Marks]:
        """How far the stores have come."""
        return _marks(self.home, self.config, self.authenticator, self.twin)


@asynccontextmanager
async def open_stores(home: Path, config: Config | None, who: str = RUNTIME) -> AsyncIterator[Stores]:
    """Hold a home and open its stores for as long as the block runs. Raises Locked, ConfigInvalid, StorageDamaged."""
    home = prepared(home)
    with held(home, who):
        close_to_others(home)
        refuse_unfinished(home)
        config = config or Config.load(home)
        stocktaking = Stocktaking(home, is_on_server=bool(config.database_url))
        stocktaking.before_opening()
        await stocktaking.try_conveniences({"node.db": _open_node, "mqtt-sessions.db": _open_sessions})
        note_begun(home, due(home, config))
        try:
            time = Timekeeping(home)
        except StorageDamaged as error:
            # Only what former runs saw of the time is lost.
            stocktaking.set_aside(CLOCK_FILE, error.detail)
            time = Timekeeping(home)
        authenticator = LocalAuthenticator.open(
            home,
            clock=time.now,
            database_url=config.database_url,
            budgets=LoginBudgets.per_minute(config.security.login_attempts_per_minute),
            access_s=config.security.access_token_s,
            refresh_s=config.security.refresh_token_s,
            least_revision=stocktaking.least(ACCOUNTS, "revision"),
        )
        with contextlib.closing(authenticator):
            async with open_twin(
                home,
                clock=time.now,
                database_url=config.database_url,
                durable_history=config.history.durable,
                commit_wait_s=config.history.commit_wait_s,
                stamp=stocktaking.inventory.stamp,
            ) as twin:
                note_finished(home)
                stocktaking.note_gateway(gateway_id(home))
                authenticator.audit.anchor_to(
                    _witnesses(config),
                    gateway=gateway_id(home),
                    every_s=config.audit.anchor_s,
                    restored=any(one.startswith(RESTORED) for one in stocktaking.inventory.asked),
                )
                stocktaking.after_opening(_marks(home, config, authenticator, twin), twin.history.damaged)
                twin.ledger.skip(stocktaking.seq_reserve)
                twin.history.on_drop(lambda file: stocktaking.forget(f"{HISTORY}/{file.path.name}"))
                for asked in stocktaking.asked():
                    authenticator.audit.record("stores", by="skep", target=asked)
                authorizer = LocalAuthorizer.open(
                    home,
                    account_type=authenticator.type_of,
                    clock=time.now,
                    thing_types=partial(_types_of, twin.directory),
                    identity_of=authenticator.identity_of,
                    policies=Path(config.security.policies) if config.security.policies else None,
                )
                authenticator.administration.is_role = authorizer.has_role
                authenticator.administration.added = authorizer.account_added
                time.stamped(twin.values.last_received)
                steady = time.resume(is_awaited=await twin.ledger.next_due() is not None)
                # Noted at once: what is asked in a run of seconds keeps its time too.
                _note(time)
                stores = Stores(
                    home=home,
                    config=config,
                    clocks=Clocks(now=time.now, steady=steady, new_id=IDs()),
                    time=time,
                    twin=twin,
                    authenticator=authenticator,
                    authorizer=authorizer,
                    stocktaking=stocktaking,
                )
                try:
                    yield stores
                finally:
                    _note(time)
            stocktaking.close(stores.marks())


def _marks(home: Path, config: Config, authenticator: LocalAuthenticator, twin: Twin) -> dict[str, Marks]:
    found: dict[str, Marks] = {
        ACCOUNTS: {"revision": authenticator.revision, "accounts": len(authenticator.register.accounts)},
        TWIN: {
            "seq": twin.ledger.last_seq,
            "change": twin.directory.last_change,
            "things": len(twin.directory.ids()),
        },
    }
    files = twin.history.days
    for file in files:
        # Without a sync for each commit a power cut may take the newest, and nobody was promised anything else.
        last = file.last if config.history.durable or file is not files[-1] else file.first - 1
        found[f"{HISTORY}/{file.path.name}"] = {"first": file.first, "last": last}
    if files:
        found[ROW_IDS] = {"last": twin.history.last_row}
    if (home / RIGHTS).exists():
        found[RIGHTS] = {}
    found[KEYS] = {}
    if (home / AUTHORITY).exists():
        found[AUTHORITY] = {}
    found |= {name: {} for name in CONVENIENCES if (home / name).exists()}
    return found


def _witnesses(config: Config) -> list[Witness]:
    """Whom the configuration names. Raises ConfigInvalid."""
    found: list[Witness] = []
    if config.audit.witness is not None:
        found.append(WitnessFile(Path(config.audit.witness)))
    if config.audit.syslog is not None:
        found.append(Syslog(config.audit.syslog))
    return found


async def _open_node(path: Path) -> None:
    store = NodeStore(path)
    await store.open()
    await store.close()


async def _open_sessions(path: Path) -> None:
    async with SessionStore(path, wall_clock):
        pass


def _note(time: Timekeeping) -> None:
    try:
        time.note()
    except (StorageFailed, StorageFull) as error:
        # A full disk stops neither a start nor an end.
        log.error("the time is not noted", extra={"detail": error.detail})


def _types_of(directory: Directory, thing_id: str) -> tuple[str, ...] | None:
    entry = directory.get(thing_id)
    return entry.td.types if entry else None
