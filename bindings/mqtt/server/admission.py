"""Who may come in: CONNECT and re-authentication are put to the gate, and a session is found or made.

Nothing is looked up before the gate has answered, so a stranger touches nobody's session.
"""

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from bindings.mqtt.seam import Closed, Hello
from bindings.mqtt.server.packets import Connect
from bindings.mqtt.server.properties import Property
from bindings.mqtt.server.reasons import Reason
from bindings.mqtt.server.sessions import Session
from things.identity import Principal

if TYPE_CHECKING:
    from bindings.mqtt.server.connection import Connection
    from bindings.mqtt.server.engine import NativeEngine

log = logging.getLogger(__name__)


async def admit(engine: "NativeEngine", connection: "Connection", connect: Connect) -> None:
    """Open the connection's link, or refuse it."""
    hello = _hello(engine, connection, connect)
    try:
        async with asyncio.timeout(engine.limits.connect_timeout_s):
            principal = await engine.gate.admit(hello)
    except TimeoutError:
        connection.refuse(Reason.SERVER_BUSY, connect.level)
        return
    except Exception:
        log.exception("admitting a client failed", extra={"source": connection.source})
        connection.refuse(Reason.SERVER_UNAVAILABLE, connect.level)
        return
    if not connection.is_waiting:
        return
    if engine.is_stopping:
        connection.refuse(Reason.SERVER_SHUTTING_DOWN, connect.level)
    elif principal is None:
        connection.refuse(Reason.NOT_AUTHORIZED, connect.level)
    else:
        _open(engine, connection, connect, principal, hello)


async def reauthenticate(engine: "NativeEngine", connection: "Connection", data: bytes) -> None:
    """Ask the gate for the principal of a fresh token."""
    principal = None
    try:
        async with asyncio.timeout(engine.limits.connect_timeout_s):
            principal = await engine.gate.reauthenticate(connection, data)
    except TimeoutError:
        log.warning("re-authentication took too long", extra={"client": connection.client_id})
    except Exception:
        log.exception("re-authentication failed", extra={"client": connection.client_id})
    connection.reauthenticated(principal)


def _hello(engine: "NativeEngine", connection: "Connection", connect: Connect) -> Hello:
    given, longest_s = connect.properties, engine.limits.max_session_expiry_s
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
        source=connection.source,
        certificate_name=_common_name(connection.certificate),
        auth_method=given.get(Property.AUTH_METHOD),
        auth_data=given.get(Property.AUTH_DATA),
    )


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    """Of the client's certificate; the TLS context has verified it."""
    for relative_name in (certificate or {}).get("subject", ()):
        for name, value in relative_name:
            if name == "commonName":
                return str(value)
    return None


def _open(
    engine: "NativeEngine", connection: "Connection", connect: Connect, principal: Principal, hello: Hello
) -> None:
    """Find or make the session, in one step: take-over ends the older link first."""
    sessions = engine.sessions
    key = (principal.account, hello.client_id)
    session = sessions.get(key)
    if session is not None and session.link is not None:
        engine.counts["taken-over"] += 1
        session.link.close(Closed.TAKEN_OVER)
        session = sessions.get(key)
    if session is not None and connect.clean_start:
        engine.lifetimes.end(session)
        session = None
    resumed = session is not None
    if session is None:
        if not _has_room(engine, principal.account):
            engine.counts["too-many-links"] += 1
            connection.refuse(Reason.QUOTA_EXCEEDED, connect.level)
            return
        session = Session(key, hello.session_expiry_s)
        sessions.add(session)
    engine.lifetimes.unpark(session, Closed.TAKEN_OVER)
    session.expiry_s = hello.session_expiry_s
    session.will = None
    session.dirty = True
    try:
        connection.open(principal, connect, session, resumed=resumed)
    except Exception:
        log.exception("opening a link failed", extra={"client": hello.client_id})
        connection.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)


def _has_room(engine: "NativeEngine", account: str) -> bool:
    sessions = engine.sessions
    if sessions.held(account) < engine.limits.max_links_per_account:
        return True
    # A client that makes up ids would lock its account out with what it left behind.
    oldest = sessions.oldest_parted(account)
    if oldest is None:
        return False
    engine.lifetimes.end(oldest)
    return True
