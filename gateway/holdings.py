"""Open and kept sessions as what lives by a credential: one kind of holding, whatever protocol they came by."""

from collections.abc import Iterable

from runtime.ports import Session
from runtime.publications.sessions import LiveSessions
from things.holdings import Holding


class SessionHoldings:
    """As `things.holdings.Holdings`."""

    def __init__(self, sessions: LiveSessions) -> None:
        self._sessions = sessions

    def held_by(self, account: str | None) -> Iterable[Holding]:
        found = self._sessions.everyone() if account is None else self._sessions.of_account(account)
        return [self._holding(session) for session in found]

    async def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        return self.close(holding_id, of=of)

    def close(self, holding_id: str, *, of: str | None) -> Holding | None:
        """End one at once."""
        for session in self._sessions.everyone() if of is None else self._sessions.of_account(of):
            if session.session_id == holding_id:
                ended = self._holding(session)
                session.close("ended")
                return ended
        return None

    def _holding(self, session: Session) -> Holding:
        principal = self._sessions.principal_of(session) or session.principal
        return Holding(
            holding_id=session.session_id,
            kind="session",
            principal=principal,
            label=session.binding,
            source=session.source,
            created=self._sessions.since(session),
            expires=principal.expires,
        )
