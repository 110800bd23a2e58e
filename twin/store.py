"""The twin's stores of one home, opened together and closed in the order that loses nothing.

`twin.db` (or the PostgreSQL database at `database_url`) holds directory, checkpointed latest values and ledger;
`history/` the hot rows. While open, latest values are checkpointed from time to time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from things.errors import SkepError, StorageDamaged
from twin.database import Database, open_database
from twin.directory import DirectoryStore
from twin.history import HistoryStore, open_history
from twin.ledger import LedgerStore
from twin.models import ModelStore
from twin.presence import PresenceStore
from twin.reserve import DEFAULT_RESERVE_BYTES, Reserve
from twin.tables import MIGRATIONS
from twin.values import LatestValues

log = logging.getLogger(__name__)

CHECKPOINT_S = 30.0
"""How often latest values are written; bounds what is replayed at start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The open stores."""

    directory: DirectoryStore
    values: LatestValues
    history: HistoryStore
    models: ModelStore
    ledger: LedgerStore
    presence: PresenceStore
    database: Database

    @property
    def failure(self) -> SkepError | None:
        """Why a store acknowledges nothing any more; None while all work."""
        return self.database.failure or self.history.failure

    @property
    def is_full(self) -> bool:
        """Whether writes are refused for lack of space."""
        return self.database.is_full or self.history.is_full


@asynccontextmanager
async def open_twin(
    home: Path,
    *,
    clock: Callable[[], int],
    database_url: str | None = None,
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    checkpoint_s: float = CHECKPOINT_S,
    durable_history: bool = True,
    commit_wait_s: float = 0.0,
    stamp: int = 0,
) -> AsyncIterator[Twin]:
    """Open the stores of a home. New files carry `stamp`, which says whose they are. Raises StorageDamaged for what
    cannot be trusted, StorageFailed, StorageFull."""
    reserve = Reserve(home / "reserve", reserve_bytes)
    if not await anyio.to_thread.run_sync(reserve.restore):
        log.warning("no space can be set aside for bad days", extra={"home": str(home), "bytes": reserve_bytes})
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(home / "twin.db", MIGRATIONS, database_url=database_url, reserve=reserve)
        )
        history = await stack.enter_async_context(
            open_history(
                home / "history",
                reserve=reserve,
                durable=durable_history,
                stamp=stamp,
                max_wait_s=commit_wait_s if durable_history else 0.0,
            )
        )
        try:
            directory = await DirectoryStore.load(database, clock)
            values = await LatestValues.load(
                database, history.read, lambda thing_id: directory.get(thing_id) is not None
            )
            models = await ModelStore.load(database, clock)
            ledger = await LedgerStore.load(database)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            # The pages are whole, and what is in them is not.
            raise StorageDamaged(f"{database.name} holds what cannot be read: {error}") from error
        twin = Twin(
            directory=directory,
            models=models,
            values=values,
            history=history,
            ledger=ledger,
            presence=PresenceStore(database),
            database=database,
        )
        checkpoints = _Checkpoints(twin)
        # A task of its own rather than a task group: a group would wrap whatever the body raises.
        checkpointing = asyncio.create_task(checkpoints.run(checkpoint_s))
        try:
            yield twin
        finally:
            checkpointing.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([checkpointing])
                await history.close()
                await checkpoints.finish()


class _Checkpoints:
    """Writes latest values from time to time, marked with the history row up to which they were taken.

    Between the commit of a row and the moment its value is taken lies a step or two of the loop: the row that is marked
    is one whose append has been answered. What is replayed twice changes nothing.
    """

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    async def run(self, interval_s: float) -> None:
        """Go on until cancelled."""
        while True:
            await anyio.sleep(interval_s)
            try:
                answered = await self._twin.history.answered()
            except SkepError:
                continue  # the store says so itself
            await self._write(answered)

    async def finish(self) -> None:
        """Write for the last time, once the history is closed: a start has nothing to read again."""
        await asyncio.sleep(0)  # those that the last commit answered
        await self._write(self._twin.history.last_row)

    async def _write(self, row: int) -> None:
        """Write now; a store that cannot is said so, and tried again the next time."""
        try:
            await self._twin.values.checkpoint(max(row, self._twin.values.checkpointed_row))
        except SkepError as error:
            log.warning("latest values were not written", extra={"reason": error.detail})
