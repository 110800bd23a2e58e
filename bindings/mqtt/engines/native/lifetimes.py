"""How links and sessions end: wills, clients that are away, and the end of a kept session.

A link that ends hands its will to the gate and tells it so, in this order; whether a will is carried out is judged when
it fires, not when it was left. Its session ends with it or is kept: then a parked link stands in for the client, until
it comes back, its time is over, or its account has no rights any more.
"""

import logging
from collections.abc import Awaitable, Sequence

from bindings.mqtt.engines.native.sessions import DepartedLink, ParkedLink, Session, Sessions, Will
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.seam import Closed, Gate, Link, Publish

log = logging.getLogger(__name__)


class Lifetimes:
    """The ends of all links and sessions of one engine."""

    def __init__(self, shared: Shared, sessions: Sessions) -> None:
        self._shared = shared
        self._sessions = sessions
        self._end = self.end
        """Made once for all that are parked."""

    def ended(self, session: Session, link: Link, reason: Closed, will: Publish | None, will_delay_s: int) -> None:
        """The link of a session ended: its will, then `Gate.closed`; the session ends too, or waits."""
        now = self._shared.now()
        session.part(self._shared.gate.published_row)
        session.link = None
        if will is not None:
            if will_delay_s and session.is_kept:
                departed = DepartedLink(
                    principal=link.principal,
                    client_id=link.client_id,
                    source=link.source,
                    protocol_level=link.protocol_level,
                )
                session.will = Will(message=will, link=departed, due=now + min(will_delay_s, session.expiry_s))
                self._sessions.watch(session, session.will.due)
            elif reason is not Closed.SHUTDOWN:
                self._fire(link, will)
        self._closed(link, reason)
        if not session.is_kept:
            self.end(session)
            return
        session.ends = now + session.expiry_s
        session.dirty = True
        self._sessions.watch(session, session.ends)
        session.parked = self._parked(session, link)
        if reason not in (Closed.TAKEN_OVER, Closed.SHUTDOWN):
            self._park(session)

    def restore(self, restored: Sequence[Session]) -> None:
        """Take up the sessions of before a restart."""
        now, published_row = self._shared.now(), self._shared.gate.published_row
        for session in restored:
            self._sessions.add(session)
            # Files of earlier versions know no cursor, and a history that was lost has rows no more that they know.
            session.cursor = min(session.position(published_row), published_row)
            if session.ends is not None:
                self._sessions.watch(session, session.ends)
            if session.will is not None:
                self._sessions.watch(session, max(session.will.due, now))
            if session.last is not None:
                session.parked, session.last = self._parked(session, session.last), None
                self._park(session)

    def tick(self, now: float) -> None:
        """Fire the wills and end the sessions whose time has come."""
        for session in self._sessions.due(now):
            if session.will is not None and session.will.due <= now:
                session.dirty = True
                self._fire_delayed(session)
            if session.ends is not None and session.ends <= now:
                self.end(session)

    def end(self, session: Session) -> None:
        """End a session without a connection; a delayed will fires with it ([MQTT-3.1.2-10])."""
        self._sessions.remove(session)
        self.unpark(session, Closed.REFUSED)
        self._fire_delayed(session)
        store = self._shared.store
        if store is not None and session.is_stored:
            session.is_stored = False
            store.forget(session.key)

    def unpark(self, session: Session, reason: Closed) -> None:
        """The client is not away any more: it is back, or will not come back."""
        parked, session.parked = session.parked, None
        if parked is not None and parked.is_known:
            self._closed(parked, reason)

    def _parked(self, session: Session, last: Link) -> ParkedLink:
        return ParkedLink(
            session=session,
            principal=last.principal,
            source=last.source,
            protocol_level=last.protocol_level,
            ended=self._end,
        )

    def _park(self, session: Session) -> None:
        """Let the session stand without its client; it ends if its account is gone."""
        parked = session.parked
        if parked is None or not session.filters:
            return
        try:
            parked.is_known = self._shared.gate.away(parked, session.filters)
        except Exception:
            log.exception("a session without its client was not taken", extra={"client": parked.client_id})
            return
        if not parked.is_known:
            self.end(session)

    def _fire_delayed(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is not None:
            self._fire(will.link, will.message)

    def _fire(self, link: Link, will: Publish) -> None:
        try:
            answer = self._shared.gate.will(link, will)
        except Exception:
            log.exception("a will was lost", extra={"client": link.client_id, "topic": will.topic})
        else:
            self._shared.start(_committed(self._shared.gate, link, will, answer))

    def _closed(self, link: Link, reason: Closed) -> None:
        """Tell the gate; what breaks there must not end the engine's own clean-up, nor its timer."""
        try:
            self._shared.gate.closed(link, reason)
        except Exception:
            log.exception("the end of a link was not taken", extra={"client": link.client_id})


async def _committed(gate: Gate, link: Link, will: Publish, answer: Awaitable[object]) -> None:
    try:
        try:
            await answer
        except Exception as error:
            gate.refused(link, will, error)
    except Exception:
        log.exception("a will could not be committed", extra={"client": link.client_id, "topic": will.topic})
