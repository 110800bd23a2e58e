"""Plays a recording through an agent: in its own time, faster, or as fast as the runtime takes it.

The values keep the times they were recorded at; only their pace changes.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from skep.agent import Agent
from skep.recording import Recording, Unreadable
from things.times import to_datetime

AS_FAST_AS_POSSIBLE = math.inf
_US = 1_000_000


@dataclass(slots=True, kw_only=True)
class Played:
    """How a replay went."""

    rows: int = 0
    values: int = 0
    unreadable: int = 0
    backward: int = 0
    """Rows older than the one before them: played at once, stored where they belong."""


async def play(
    agent: Agent,
    thing: str,
    recording: Recording,
    *,
    speed: float = 1.0,
    limit: int | None = None,
    on_row: Callable[[Played], None] | None = None,
    on_unreadable: Callable[[Unreadable], None] | None = None,
) -> Played:
    """Publish every readable row; `speed` 60 plays an hour in a minute. The agent exposes the Thing beforehand."""
    played = Played()
    loop = asyncio.get_running_loop()
    before: int | None = None
    due = loop.time()
    for row in recording.rows():
        if limit is not None and played.rows >= limit:
            break
        if isinstance(row, Unreadable):
            played.unreadable += 1
            if on_unreadable is not None:
                on_unreadable(row)
            continue
        if before is not None and row.at < before:
            played.backward += 1
        elif before is not None and speed != AS_FAST_AS_POSSIBLE:
            due += (row.at - before) / _US / speed
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
        before = row.at
        for name, value in row.values.items():
            await agent.publish(thing, name, value, created=to_datetime(row.at))
            played.values += 1
        played.rows += 1
        if played.rows % 50 == 0:
            # Nothing above need wait when all is fast: let the connection work.
            await asyncio.sleep(0)
        if on_row is not None:
            on_row(played)
    return played
