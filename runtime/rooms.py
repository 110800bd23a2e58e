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

from authn import keyfiles
from authn.authenticator import LocalAuthenticator
from authn.throttle import LoginBudgets
from authz.authorizer import LocalAuthorizer
from runtime.clocks import IDs
from runtime.config import Config
from runtime.core import Clocks
from runtime.home import held, prepared
from runtime.ports import Directory
from runtime.timekeeping import Timekeeping
from things.errors import StorageFailed
from twin.store import Twin, open_twin

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The opened rooms of one home."""

    home: Path
    config: Config
    clocks: Clocks
    time: Timekeeping
    twin: Twin
    authenticator: LocalAuthenticator
    authorizer: LocalAuthorizer


@asynccontextmanager
async def rooms_of(home: Path, config: Config | None) -> AsyncIterator[Rooms]:
    """Hold a home and open its rooms for as long as the block runs. Raises Locked, ConfigInvalid, StorageDamaged."""
    home = prepared(home)
    with held(home):
        config = config or Config.load(home)
        time = Timekeeping(home)
        authenticator = LocalAuthenticator.open(
            home,
            clock=time.now,
            database_url=config.database_url,
            budgets=LoginBudgets.per_minute(config.security.login_attempts_per_minute),
            access_s=config.security.access_token_s,
            refresh_s=config.security.refresh_token_s,
        )
        with contextlib.closing(authenticator):
            async with open_twin(
                home,
                clock=time.now,
                database_url=config.database_url,
                durable_history=config.history.durable,
            ) as twin:
                authorizer = LocalAuthorizer.open(
                    home,
                    files=keyfiles,
                    account_type=authenticator.type_of,
                    clock=time.now,
                    thing_types=partial(_types_of, twin.directory),
                    policies=Path(config.security.policies) if config.security.policies else None,
                )
                authenticator.administration.is_role = authorizer.has_role
                steady = time.resume(is_awaited=await twin.ledger.next_due() is not None)
                # Noted at once: what is asked in a run of seconds keeps its time too.
                _note(time)
                try:
                    yield Rooms(
                        home=home,
                        config=config,
                        clocks=Clocks(now=time.now, steady=steady, new_id=IDs()),
                        time=time,
                        twin=twin,
                        authenticator=authenticator,
                        authorizer=authorizer,
                    )
                finally:
                    _note(time)


def _note(time: Timekeeping) -> None:
    try:
        time.note()
    except StorageFailed as error:
        # A full disk stops neither a start nor an end.
        log.error("the time is not noted", extra={"detail": error.detail})


def _types_of(directory: Directory, thing_id: str) -> tuple[str, ...] | None:
    entry = directory.get(thing_id)
    return entry.td.types if entry else None
