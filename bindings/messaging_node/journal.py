"""What sessions hold, on its way into the file: changes are noted as they happen and written in groups.

While one group is written and synced the next one gathers, so that many small changes share one commit. What has to be
answered after its change is committed waits here, in order; nobody waits who changed nothing.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.store import NodeStore, SessionRow, Step
from things.errors import SkepError, StorageFailed

MAX_WAITING = 20_000
"""Changes that may wait for a slow disk before those who make them have to."""

Then = Callable[[SkepError | None], None]
"""Runs once, when everything noted before is committed (None) or with why it could not be."""


class Journal:
    """Notes of changes, for sessions that may come back; those of a single exchange are not kept."""

    def __init__(self, store: NodeStore) -> None:
        self._store = store
        self._steps: list[Step] = []
        self._then: list[Then] = []
        self._wake = asyncio.Event()
        self.noted = 0
        """Changes so far: whoever sees it unchanged need not wait for a commit."""

    # ------------------------------------------------------------ what changed

    def opened(self, session: NodeSession) -> None:
        self._note(session, self._store.session_put(_row(session)))

    def away(self, session: NodeSession) -> None:
        """Its connection was lost, or it is back: how long it is kept."""
        self._note(session, self._store.session_away(session.session_id, session.away_until))

    def ended(self, session: NodeSession) -> None:
        for step in self._store.session_dropped(session.session_id):
            self._note(session, step)

    def held(self, session: NodeSession, address: str, key: str | None = None) -> None:
        is_claimed = address in session.claimed
        self._note(session, self._store.address_held(session.session_id, address, is_claimed, key))

    def released(self, session: NodeSession, address: str) -> None:
        self._note(session, self._store.address_released(session.session_id, address))

    def heard(self, session: NodeSession, address: str) -> None:
        self._note(session, self._store.address_heard(session.session_id, address))

    def unheard(self, session: NodeSession, address: str) -> None:
        self._note(session, self._store.address_unheard(session.session_id, address))

    def _note(self, session: NodeSession, step: Step) -> None:
        if session.is_kept:
            self.noted += 1
            self._steps.append(step)
            self._wake.set()

    # ------------------------------------------------------------ committing

    def after(self, then: Then) -> None:
        """Call `then` when everything noted so far is committed."""
        self._then.append(then)
        self._wake.set()

    async def committed(self) -> None:
        """Returns when everything noted so far is committed; raises StorageFull, StorageFailed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: SkepError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.after(ended)
        await done

    async def room(self) -> None:
        """Returns when not too much waits to be written: whoever changes more is read more slowly."""
        while len(self._steps) > MAX_WAITING:
            with suppress(SkepError):
                await self.committed()

    async def serve(self) -> None:
        """Write what is noted, for ever."""
        while True:
            await self._wake.wait()
            await self.write()

    async def write(self) -> None:
        """Write what is noted now."""
        self._wake.clear()
        steps, self._steps = self._steps, []
        waiting, self._then = self._then, []
        failure: SkepError | None = StorageFailed("the node stopped before this was stored")
        try:
            if steps:
                await self._store.write(steps)
            failure = None
        except SkepError as error:
            failure = error
        finally:
            for then in waiting:
                then(failure)


def _row(session: NodeSession) -> SessionRow:
    return SessionRow(
        session_id=session.session_id,
        token_hash=session.token_hash,
        runtime_url=session.runtime_url,
        principal=session.principal,
        until=session.away_until,
    )
