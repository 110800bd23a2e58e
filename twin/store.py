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

from things.errors import SkepError
from twin.database import Database, open_database
from twin.directory import DirectoryStore
from twin.history import HistoryStore, open_history
from twin.ledger import LedgerStore
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
) -> AsyncIterator[Twin]:
    """Open the stores of a home. Raises StorageDamaged for what cannot be trusted, StorageFailed, StorageFull."""
    reserve = Reserve(home / "reserve", reserve_bytes)
    if not await anyio.to_thread.run_sync(reserve.restore):
        log.warning("no space can be set aside for bad days", extra={"home": str(home), "bytes": reserve_bytes})
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(home / "twin.db", MIGRATIONS, database_url=database_url, reserve=reserve)
        )
        history = await stack.enter_async_context(
            open_history(home / "history", reserve=reserve, durable=durable_history)
        )
        directory = await DirectoryStore.load(database, clock)
        values = await LatestValues.load(database, history.read, lambda thing_id: directory.get(thing_id) is not None)
        twin = Twin(
            directory=directory,
            values=values,
            history=history,
            ledger=await LedgerStore.load(database),
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
                await checkpoints.write()


class _Checkpoints:
    """Writes latest values from time to time, marked with a history row that was committed a while ago.

    Between the commit of a row and the moment its value is taken lies a step or two of the loop, so the newest row is
    never a safe mark; the one of the time before is. What is replayed twice changes nothing.
    """

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._safe = twin.values.checkpointed_row

    async def run(self, interval_s: float) -> None:
        """Go on until cancelled."""
        while True:
            seen = self._twin.history.last_row
            await anyio.sleep(interval_s)
            self._safe = max(self._safe, seen)
            await self.write()

    async def write(self) -> None:
        """Write now; a store that cannot is said so, and tried again the next time."""
        try:
            await self._twin.values.checkpoint(self._safe)
        except SkepError as error:
            log.warning("latest values were not written", extra={"reason": error.detail})
