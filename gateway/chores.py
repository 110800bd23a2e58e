"""What a gateway does from time to time: it forgets expired registrations, keeps readings and the lake within their
limits, renews its certificate, takes backups, notes the time that it has seen, and when credentials were used."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from authn.certificates import Certificates
from gateway.backup.schedule import Schedule
from gateway.backup.stillness import allowed_to_remove
from gateway.queues import Queues
from gateway.retention import Retention
from gateway.stores import Stores
from gateway.upkeep import Upkeep
from things.errors import SkepError, StorageFailed

log = logging.getLogger(__name__)

EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chores:
    """The housekeeping of one runtime."""

    stores: Stores
    certificates: Certificates
    retention: Retention
    upkeep: Upkeep
    backups: Schedule
    queues: Queues

    async def serve(self) -> None:
        """Do all of them again and again, until cancelled. What fails holds nothing else up."""
        chores: Sequence[Callable[[], Awaitable[object]]] = (
            self.stores.twin.directory.purge_expired,
            partial(self._removing, self.retention.keep),
            partial(self._removing, self.upkeep.keep),
            self._renew,
            self.backups.keep,
            self.queues.keep,
            lambda: anyio.to_thread.run_sync(self.stores.time.note),
            self.stores.authenticator.keep_house,
        )
        while True:
            await anyio.sleep(EVERY_S)
            for chore in chores:
                try:
                    await chore()
                except SkepError as error:
                    log.error("housekeeping put off", extra={"code": error.code, "detail": error.detail})
                except OSError as error:  # a full disk, at the moment a certificate is renewed
                    log.error("housekeeping put off", extra={"code": StorageFailed.code, "detail": str(error)})

    async def _removing(self, chore: Callable[[], Awaitable[object]]) -> None:
        """What lets files go waits while a backup is taken, which copies what it has listed."""
        with allowed_to_remove(self.stores.home) as allowed:
            if allowed:
                await chore()

    async def _renew(self) -> None:
        if await anyio.to_thread.run_sync(self.certificates.prepare):
            self.certificates.serve()
            log.info("server certificate renewed", extra={"until": self.certificates.expires().isoformat()})
