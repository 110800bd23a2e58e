"""Presence of agents: one row a change, kept for the lake; the last one of each is what a start begins from."""

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from twin.database import Database
from twin.tables import PresenceRow, table

_PRESENCE = table(PresenceRow)


class PresenceStore:
    """The presence table of the twin's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, agent: str, is_online: bool, at: int) -> None:
        """Store one change (`at` in µs UTC)."""
        await self._database.submit(
            lambda connection: connection.execute(_PRESENCE.insert().values(agent=agent, online=is_online, at=at))
        )

    async def last_seen(self) -> Mapping[str, int]:
        """When each agent was last heard of."""

        def found(connection: Connection) -> dict[str, int]:
            newest = select(func.max(_PRESENCE.c.change)).group_by(_PRESENCE.c.agent)
            rows = connection.execute(select(_PRESENCE.c.agent, _PRESENCE.c.at).where(_PRESENCE.c.change.in_(newest)))
            return {row.agent: row.at for row in rows}

        return await self._database.read(found)
