"""The sessions of the node: opened, lost, taken up again, ended, and found again after a restart.

A session outlives its connection by the resume window, and the runtime's process: what it holds is in the node's file
(`journal`), and after a restart, a crash included, it stands as if its connection had been lost at that moment.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from bindings.messaging_node.journal import Journal
from bindings.messaging_node.requests import HypertyRequests
from bindings.messaging_node.routes import Routes
from bindings.messaging_node.sessions import TOKEN_CHARS, NodeSession, fresh_token, token_hash
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import KeptSession
from bindings.messaging_node.twins import Twins
from runtime.ports import Sink
from things.envelopes import Envelope, read
from things.errors import QueueFull, SkepError, Unauthenticated
from things.identity import AccountType, Principal
from things.jsontext import decode
from things.names import GUEST_PREFIX

log = logging.getLogger(__name__)

GUEST_ROLE = "guest"
_GUESTS_COUNT_AS = 10


class Runtimes:
    """The register of sessions. `ended` is told of each that ends, `undelivered` of each message it never got."""

    def __init__(
        self,
        settings: NodeSettings,
        routes: Routes,
        journal: Journal,
        twins: Twins,
        sink: Callable[[], Sink],
        *,
        requests: HypertyRequests,
        ended: Callable[[NodeSession], Awaitable[None]],
        undelivered: Callable[[Envelope], None],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._journal = journal
        self._twins = twins
        self._sink = sink
        self._requests = requests
        self._ended = ended
        self._undelivered = undelivered
        self._sessions: dict[str, NodeSession] = {}
        self._by_token: dict[str, NodeSession] = {}
        """Sessions by the hashes of their tokens."""
        self._away: dict[str, dict[NodeSession, None]] = {}
        """Sessions that wait for their clients by account, guests as one; longest first."""
        self._is_over = False
        self._cut_off: list[NodeSession] = []
        """Sessions that the runtime ended; what they registered is looked after by `collect`."""

    def get(self, session_id: str) -> NodeSession | None:
        return self._sessions.get(session_id)

    def everyone(self) -> Iterable[NodeSession]:
        return self._sessions.values()

    def at(self, address: str) -> NodeSession | None:
        """The session whose own address this is, which only its client knows."""
        runtime_url, slash, token = address.rpartition("/")
        session = self._by_token.get(token_hash(token)) if slash and len(token) == TOKEN_CHARS else None
        return session if session is not None and session.runtime_url == runtime_url else None

    # ------------------------------------------------------------ coming

    def guest(self) -> Principal:
        """Who an unknown runtime is: its name can be no account's, and its role may send messages, nothing more."""
        return Principal(account=f"{GUEST_PREFIX}{secrets.token_hex(6)}", type=AccountType.CONSUMER, role=GUEST_ROLE)

    def opened(
        self, principal: Principal, runtime_url: str, *, source: str | None, with_token: bool, is_kept: bool = True
    ) -> tuple[NodeSession, str | None]:
        """Begin a session; its token is known to its client only. Raises QueueFull when there are too many, Conflict
        if the runtime is another account's."""
        if len(self._sessions) >= self._settings.max_sessions:
            raise QueueFull("the node", self._settings.max_sessions, "sessions")
        sink = self._sink()
        token = fresh_token() if with_token else None
        session = self._made(principal, runtime_url, None if token is None else token_hash(token), sink.new_id())
        session.source, session.is_kept = source, is_kept
        self._register(session)
        self._add(session)
        self._journal.opened(session)
        for address in (runtime_url, f"{runtime_url}/sm"):
            self._routes.settle(address, session)
        return session, token

    def taken_up(self, principal: Principal, runtime_url: str, *, source: str | None) -> tuple[NodeSession, str] | None:
        """The session that a runtime of this account lost its connection to, under a new token; None if there is none.
        A guest is known by nothing but its token, so it gets none back without. Raises QueueFull."""
        lost = [
            one
            for one in self._routes.holders.at(runtime_url)
            if one.principal.is_same(principal) and one.runtime_url == runtime_url
        ]
        lost = [one for one in lost if one.away_until is not None and one.token_hash is not None]
        if not lost:
            return None
        session = max(lost, key=lambda one: one.away_until or 0)
        # From now on it is nobody else's to take up.
        self.resumed(session, principal, source=source)
        if session.token_hash is not None:
            self._by_token.pop(session.token_hash, None)
        token = fresh_token()
        session.token_hash = token_hash(token)
        self._by_token[session.token_hash] = session
        self._journal.opened(session)
        return session, token

    def found(self, session_address: str, principal: Principal | None, is_local: bool) -> tuple[NodeSession, Principal]:
        """The session whose address this is, and as whom its client comes back: the same account; a guest, whoever
        knows its token and is on this machine. Raises Unauthenticated."""
        session = self.at(session_address)
        if session is None or session.is_ended:
            raise Unauthenticated("there is no such session; open a new one")
        if session.principal.is_guest:
            if not is_local:
                raise Unauthenticated("without an account, only runtimes on this machine are admitted")
            return session, session.principal
        if principal is None or not principal.is_same(session.principal):
            raise Unauthenticated("this session is somebody else's")
        return session, principal

    def resumed(self, session: NodeSession, principal: Principal, *, source: str | None) -> None:
        """The client of a session is here again, as this principal. Raises QueueFull."""
        session.principal, session.source = principal, source
        self._register(session)
        self._sink().sessions.renewed(session, principal)
        self.back(session)
        self._journal.opened(session)

    def lost(self, runtime_url: str, principal: Principal, *, source: str | None) -> NodeSession | None:
        """The session without a token that a runtime of this account lost its connection to; None if there is none."""
        for session in self._routes.holders.at(runtime_url):
            known = session.principal
            is_same = known.is_same(principal) or (known.is_guest and principal.is_guest)
            if session.token_hash is None and session.away_until is not None and is_same:
                self.resumed(session, known if known.is_guest else principal, source=source)
                return session
        return None

    def back(self, session: NodeSession) -> None:
        """It has a connection again."""
        if session.away_until is not None:
            session.away_until = None
            self._waits_no_more(session)
            self._journal.away(session)
            self._requests.back(session)

    def restore(self, kept: Sequence[KeptSession]) -> None:
        """Take up what an earlier run left. Whose account is gone, or whose time is over, does not come back."""
        now = self._sink().clock()
        for one in kept:
            row = one.row
            principal: Principal | None = row.principal
            if not row.principal.is_guest:
                principal = self._sink().authenticator.standing(row.principal)
            until = self._until() if row.until is None else row.until
            session = self._made(principal or row.principal, row.runtime_url, row.token_hash, row.session_id)
            if principal is None or until <= now:
                self._journal.ended(session)
                continue
            session.away_until = until
            self._routes.restore(session, one.held, one.heard)
            self._add(session)
            self._journal.away(session)
            with suppress(QueueFull):
                # Over its account's bound of sessions it waits for its client, and tries again then.
                self._register(session)
            self._waits(session)

    # ------------------------------------------------------------ going

    def away(self, session: NodeSession) -> None:
        """Its last connection is lost; it may come back for a while."""
        if not session.is_ended and not session.wires and not self._is_over:
            session.away_until = self._until()
            self._journal.away(session)
            self._requests.away(session)
            self._waits(session)

    async def end(self, session: NodeSession, reason: str) -> None:
        """Free everything a session has. Whoever waits for an answer to what it never got is told that nobody did."""
        if session.is_ended:
            return
        self._cut(session, reason)
        await self._look_after(session)

    async def _look_after(self, session: NodeSession) -> None:
        try:
            await self._ended(session)
        except SkepError as error:
            log.error("registrations not updated", extra={"code": error.code, "detail": error.detail})

    async def collect(self) -> None:
        """End those whose time is over."""
        while self._cut_off:
            await self._look_after(self._cut_off.pop())
        now = self._sink().clock()
        for session in [one for one in self._sessions.values() if one.away_until is not None]:
            if session.away_until is not None and session.away_until <= now:
                await self.end(session, "stale")

    def revoked(self, covers: Callable[[Principal], bool]) -> None:
        """End those that wait for their clients without being known to the runtime, which ends the others."""
        for session in [one for one in self._sessions.values() if not one.is_registered and covers(one.principal)]:
            self._cut(session, "revoked")
            self._cut_off.append(session)

    def shut_down(self) -> None:
        """The runtime stops; sessions stay in the file."""
        self._is_over = True
        for session in tuple(self._sessions.values()):
            for wire in tuple(session.wires):
                wire.end(1001, "shut-down")
            self._unregister(session)

    def _cut(self, session: NodeSession, reason: str) -> None:
        session.is_ended = True
        self._waits_no_more(session)
        self._sessions.pop(session.session_id, None)
        if session.token_hash is not None:
            self._by_token.pop(session.token_hash, None)
        self._routes.free(session)
        self._journal.ended(session)
        session.asked.clear()
        self._unregister(session)
        for text in session.drop():
            self._undelivered(read(decode(text, max_bytes=len(text))))
        for wire in tuple(session.wires):
            wire.end(1000 if reason == "closed" else 1013 if reason == "queue-full" else 1008, reason)
        if reason not in ("closed", "stale", "done"):
            log.info("session ended", extra={"session": session.session_id, "reason": reason})

    def _closed_by_runtime(self, session: NodeSession, reason: str) -> None:
        """The runtime ends a session: its account is revoked, or it does not read. One whose token expired may come
        back with a fresh one."""
        if session.is_ended:
            return
        if reason == "token-expired":
            self._unregister(session)
            for wire in tuple(session.wires):
                wire.end(1008, reason)
            session.away_until = session.away_until or self._until()
            self._journal.away(session)
            self._waits(session)
        else:
            self._cut(session, reason)
            self._cut_off.append(session)

    # ------------------------------------------------------------

    def _made(self, principal: Principal, runtime_url: str, hashed: str | None, session_id: str) -> NodeSession:
        return NodeSession(
            session_id=session_id,
            principal=principal,
            runtime_url=runtime_url,
            token_hash=hashed,
            source=None,
            settings=self._settings,
            on_publication=self._twins.publication,
            on_request=self._requests.request,
            on_status=self._twins.status,
            on_closed=self._closed_by_runtime,
        )

    def _add(self, session: NodeSession) -> None:
        self._sessions[session.session_id] = session
        if session.token_hash is not None:
            self._by_token[session.token_hash] = session

    def _register(self, session: NodeSession) -> None:
        sessions = self._sink().sessions
        if session.is_registered:
            if session.away_until is not None:
                sessions.opened(session)
            return
        sessions.opened(session)
        session.is_registered = True
        sessions.take_reports(session)
        self._twins.resumed(session)

    def _unregister(self, session: NodeSession) -> None:
        if session.is_registered:
            session.is_registered = False
            self._sink().sessions.closed(session)

    def _waits(self, session: NodeSession) -> None:
        """Its client is away: it counts with those of its account that wait, and no more with those that are here."""
        if session.is_registered:
            self._sink().sessions.away(session)
        waiting = self._away.setdefault(_waits_as(session), {})
        waiting[session] = None
        most = self._settings.max_away_of_account * (_GUESTS_COUNT_AS if session.principal.is_guest else 1)
        if len(waiting) > most:
            oldest = next(iter(waiting))
            self._cut(oldest, "too-many-away")
            self._cut_off.append(oldest)

    def _waits_no_more(self, session: NodeSession) -> None:
        waiting = self._away.get(_waits_as(session), {})
        waiting.pop(session, None)
        if not waiting:
            self._away.pop(_waits_as(session), None)

    def _until(self) -> int:
        return self._sink().clock() + int(self._settings.resume_s * 1_000_000)


def _waits_as(session: NodeSession) -> str:
    return GUEST_ROLE if session.principal.is_guest else f"account {session.principal.account}"
