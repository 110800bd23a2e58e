"""One shared group while any of its members is connected: who is given what, and what it has missed.

What is published goes to one member in turn, skipping those whose link takes nothing. What a member has not confirmed
when it leaves is read again and given to another, and so is what came while nobody was there: the group is behind
(`bindings.mqtt.behind`), and gives whoever has room the next of it, until it has caught up. So no member that leaves
takes along what the group is owed.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import anyio

from bindings.mqtt.behind import Behind
from bindings.mqtt.clients import BINDING, ClientSession
from bindings.mqtt.engines.seam import Closed, SubscribeOptions
from bindings.mqtt.missed import MissedRows, with_gap
from runtime.ports import Pattern, Publication, Request, Sessions
from things.delivery import DeliveryStatus
from things.identity import Principal

log = logging.getLogger(__name__)

MAX_UNCONFIRMED = 10_000
"""Rows that a group gave to members and would give to others; more than that stay with who has them."""
SLICE_STEPS = 64
"""Rows given, or passed over, in one turn of the loop."""
LOOK_S = 0.25
"""How soon a group that nobody has room for looks again, if no confirmation comes before."""

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Runs a task that ends before the binding does."""


class Group:
    """The members of one group that are connected (`runtime.ports.Session`)."""

    binding = BINDING
    source = None
    place = None

    def __init__(
        self,
        session_id: str,
        principal: Principal,
        patterns: Sequence[Pattern],
        sessions: Sessions,
        rows: MissedRows,
        start: Start,
    ) -> None:
        self.session_id = session_id
        self.principal = principal
        self.members: OrderedDict[ClientSession, SubscribeOptions] = OrderedDict()
        self._patterns = patterns
        self._sessions = sessions
        self._rows = rows
        self._start = start
        self._given: dict[int, ClientSession] = {}
        """Rows that members have and did not confirm."""
        self._behind: Behind[Publication] | None = None
        """Where it reads history; None: what is published is given at once."""
        self._once_given = 0
        """Rows up to this one were given before, and are owed only if they came back."""
        self._came_back: set[int] = set()
        """Rows that were given to members who left without confirming them."""
        self._changed = asyncio.Event()
        """Somebody may have room."""
        self._is_catching_up = False

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        if self._behind is not None and publication.row_id:
            self._behind.hold(publication)
        else:
            self._give(publication)

    def join(self, member: ClientSession, options: SubscribeOptions) -> None:
        """Add a member, or change how it takes part."""
        self.members[member] = options
        self._changed.set()

    def owe(self, position: int) -> None:
        """Give what has come since a row, before what is new."""
        self._fall_behind(Behind(position))

    def leave(self, member: ClientSession) -> None:
        """Remove a member; what it has not confirmed goes to the others."""
        del self.members[member]
        rows = [row_id for row_id, one in self._given.items() if one is member]
        for row_id in rows:
            del self._given[row_id]
        if rows:
            behind = self._behind
            self._once_given = max(self._once_given, behind.position if behind else self._sessions.published_row)
            self._came_back.update(rows)
            again = Behind[Publication](min(self._came_back) - 1)
            again.is_first = behind is not None and behind.is_first
            self._fall_behind(again)

    @property
    def served(self) -> int:
        """The row up to which members have confirmed all."""
        position = self._behind.position if self._behind is not None else self._sessions.published_row
        return min(position, min(self._given, default=position + 1) - 1)

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        return True

    def close(self, reason: str) -> None:
        for member in list(self.members):
            member.close(reason)

    # ------------------------------------------------------------ giving

    def _give(self, publication: Publication, *, is_patient: bool = False) -> bool:
        """Give it to the next member whose link takes it; `is_patient`: to one where it need not wait."""
        row_id, members, is_live = publication.row_id, self.members, self._behind is None
        for _ in range(len(members)):
            member, options = members.popitem(last=False)
            members[member] = options
            if is_patient and not member.link.has_room:
                continue
            confirmed: Callable[[], object] | None = None
            if row_id and options.qos and len(self._given) < MAX_UNCONFIRMED:
                self._given[row_id] = member
                confirmed = partial(self._given.pop if is_live else self._confirmed, row_id, None)
            if member.deliver(publication, (options,), is_owed=False, delivered=confirmed):
                return True
            self._given.pop(row_id, None)
        return False

    def _confirmed(self, row_id: int, _default: None) -> None:
        self._given.pop(row_id, None)
        self._changed.set()

    # ------------------------------------------------------------ catching up

    def _fall_behind(self, behind: Behind[Publication]) -> None:
        self._behind = behind
        if self.members and not self._is_catching_up:
            self._is_catching_up = True
            self._start(self._catch_up)

    async def _catch_up(self) -> None:
        try:
            steps = 0
            while self.members and (behind := self._behind) is not None:
                steps += 1
                if steps % SLICE_STEPS == 0:
                    await asyncio.sleep(0)
                await self._step(behind)
        except Exception:
            # What cannot be read now may be later: the group keeps its place, and its members come back.
            log.exception("what a shared group has missed cannot be read")
            for member in list(self.members):
                member.link.close(Closed.LOST)
        finally:
            self._is_catching_up = False

    async def _step(self, behind: Behind[Publication]) -> None:
        """Give one publication, or see to it that there is one and that somebody has room for it."""
        publication = behind.step()
        if publication is not None:
            if not self._is_owed(behind, publication) or self._give(publication, is_patient=True):
                self._came_back.discard(publication.row_id)
                behind.taken()
            else:
                self._changed.clear()
                with anyio.move_on_after(LOOK_S):
                    await self._changed.wait()
        elif behind.is_over:
            self._behind = None
        elif not behind.has_piece:
            await self._read(behind)

    def _is_owed(self, behind: Behind[Publication], publication: Publication) -> bool:
        if publication.row_id <= self._once_given and publication.row_id not in self._came_back:
            return False
        sessions = self._sessions
        if behind.rights is not None and behind.rights == sessions.rights:
            return True
        return sessions.may_see(self.principal, publication.thing_id, publication.kind, publication.name)

    async def _read(self, behind: Behind[Publication]) -> None:
        """Get the next piece, passing over rows of which none came back."""
        self._came_back = {row_id for row_id in self._came_back if row_id > behind.position}
        if behind.position < self._once_given:
            behind.position = min(self._came_back, default=self._once_given + 1) - 1
        behind.begin(self._sessions.rights)
        found = await self._rows.after(self, self._patterns, behind.position, is_first=behind.is_first)
        publications = found.publications
        if found.gap and publications:
            publications = (with_gap(publications[0], found.gap), *publications[1:])
        behind.came(publications, found.last_row, has_more=found.has_more)
