"""Who may come in: CONNECT and re-authentication are put to the gate, and a session is found or made.

Nothing is looked up before the gate has answered, so a stranger touches nobody's session.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from bindings.mqtt.engines.codec.packets import Connect
from bindings.mqtt.engines.codec.properties import Property
from bindings.mqtt.engines.codec.reasons import Reason
from bindings.mqtt.engines.native.connack import accepting
from bindings.mqtt.engines.native.lifetimes import Lifetimes
from bindings.mqtt.engines.native.negotiated import Terms
from bindings.mqtt.engines.native.sessions import Session, Sessions
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.seam import Closed, Hello, Limits, Link
from things.identity import Principal, shown_certificate

log = logging.getLogger(__name__)


class Applicant(Protocol):
    """The connection that a CONNECT came on."""

    source: str | None
    terms: Terms

    @property
    def certificate(self) -> dict[str, Any] | None:
        """What the client has shown, if it has: the TLS context has verified it."""
        ...

    @property
    def is_waiting(self) -> bool:
        """It can still be opened: the client is there, or has left packets that count."""
        ...

    def refuse(self, reason: Reason, level: int, detail: str = "") -> None:
        """Answer CONNECT with a refusal and close; MQTT 5 hears the detail."""

    def open(self, principal: Principal, connect: Connect, session: Session, connack: bytes, *, resumed: bool) -> None:
        """Become the link of `session`."""

    def fail(self) -> None:
        """Close: something went wrong on our side."""


class Admission:
    """The way into the sessions of one engine."""

    def __init__(
        self,
        shared: Shared,
        sessions: Sessions,
        lifetimes: Lifetimes,
        response_information: Callable[[Principal], str],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`response_information`: what a client is told if it asks where answers may go (MQTT 5)."""
        self._shared = shared
        self._sessions = sessions
        self._lifetimes = lifetimes
        self._response_information = response_information
        self._is_stopping = is_stopping

    async def admit(self, applicant: Applicant, connect: Connect) -> None:
        """Open the connection's link, or refuse it."""
        hello = _hello(connect, self._shared.limits, applicant.source, applicant.certificate)
        try:
            async with asyncio.timeout(self._shared.limits.connect_timeout_s):
                admitted = await self._shared.gate.admit(hello)
        except TimeoutError:
            applicant.refuse(Reason.SERVER_BUSY, connect.level)
            return
        except Exception:
            log.exception("admitting a client failed", extra={"source": applicant.source})
            applicant.refuse(Reason.SERVER_UNAVAILABLE, connect.level)
            return
        if not applicant.is_waiting:
            return
        if self._is_stopping():
            applicant.refuse(Reason.SERVER_SHUTTING_DOWN, connect.level)
        elif isinstance(admitted, Principal):
            self._open(applicant, connect, admitted, hello)
        elif admitted is None or (connect.level != 5 and admitted.reason_code != Reason.SERVER_BUSY):
            # 3.1.1 has no code for what is wrong with a will.
            applicant.refuse(Reason.NOT_AUTHORIZED, connect.level)
        else:
            applicant.refuse(Reason(admitted.reason_code), connect.level, admitted.reason)

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        """Ask the gate for the principal of a fresh token."""
        try:
            async with asyncio.timeout(self._shared.limits.connect_timeout_s):
                return await self._shared.gate.reauthenticate(link, data)
        except TimeoutError:
            log.warning("re-authentication took too long", extra={"client": link.client_id})
        except Exception:
            log.exception("re-authentication failed", extra={"client": link.client_id})
        return None

    def _open(self, applicant: Applicant, connect: Connect, principal: Principal, hello: Hello) -> None:
        """Find or make the session, in one step: take-over ends the older link first."""
        if not self._connack(applicant, connect, principal, hello, resumed=False):
            applicant.refuse(Reason.PACKET_TOO_LARGE, connect.level)
            return
        sessions, lifetimes = self._sessions, self._lifetimes
        key = (principal.account, hello.client_id)
        session = sessions.get(key)
        if session is not None and session.link is not None:
            self._shared.counts["taken-over"] += 1
            session.link.close(Closed.TAKEN_OVER)
            session = sessions.get(key)
        if session is not None and connect.clean_start:
            lifetimes.end(session)
            session = None
        resumed = session is not None
        if session is None:
            if not self._has_room(principal.account):
                self._shared.counts["too-many-links"] += 1
                applicant.refuse(Reason.QUOTA_EXCEEDED, connect.level)
                return
            session = Session(key, hello.session_expiry_s)
            sessions.add(session)
        lifetimes.unpark(session, Closed.TAKEN_OVER)
        session.expiry_s = hello.session_expiry_s
        session.will = None
        session.dirty = True
        connack = self._connack(applicant, connect, principal, hello, resumed=resumed)
        try:
            applicant.open(principal, connect, session, connack, resumed=resumed)
        except Exception:
            log.exception("opening a link failed", extra={"client": hello.client_id})
            applicant.fail()

    def _connack(
        self, applicant: Applicant, connect: Connect, principal: Principal, hello: Hello, *, resumed: bool
    ) -> bytes:
        return accepting(
            connect,
            applicant.terms,
            self._shared.limits,
            client_id=hello.client_id,
            expiry_s=hello.session_expiry_s,
            response_information=self._response_information(principal),
            resumed=resumed,
        )

    def _has_room(self, account: str) -> bool:
        sessions = self._sessions
        if sessions.held(account) < self._shared.limits.max_links_per_account:
            return True
        # A client that makes up ids would lock its account out with what it left behind.
        oldest = sessions.oldest_parted(account)
        if oldest is None:
            return False
        self._lifetimes.end(oldest)
        return True


def _hello(connect: Connect, limits: Limits, source: str | None, certificate: dict[str, Any] | None) -> Hello:
    given, longest_s = connect.properties, limits.max_session_expiry_s
    if connect.level == 4:
        expiry_s = 0 if connect.clean_start else longest_s
    else:
        expiry_s = min(given.get(Property.SESSION_EXPIRY, 0), longest_s)
    return Hello(
        client_id=connect.client_id or f"auto-{secrets.token_urlsafe(12)}",
        user_name=connect.user_name,
        password=connect.password,
        protocol_level=connect.level,
        clean_start=connect.clean_start,
        session_expiry_s=expiry_s,
        will=connect.will,
        source=source,
        certificate=shown_certificate(certificate),
        auth_method=given.get(Property.AUTH_METHOD),
        auth_data=given.get(Property.AUTH_DATA),
    )
