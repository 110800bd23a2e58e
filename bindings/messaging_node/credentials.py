"""Tokens in messages: what a message proves of its sender before it goes on.

`accessToken` counts before the connection's own credentials; it, or the session's address as sender, is checked on
every message that brings one. Tokens are the node's business and go no further: whoever got one could use it.
"""

from collections.abc import Awaitable, Callable

from bindings.messaging_node.sessions import TOKEN_CHARS, NodeSession
from runtime.ports import Sink
from things.envelopes import Document, Envelope, read
from things.errors import Forbidden, Invalid, Unauthenticated
from things.identity import Principal
from things.messages import JSONValue

Identify = Callable[[JSONValue, Principal], Awaitable[dict[str, JSONValue]]]
"""The identity that a sender's token proves; raises Unauthenticated."""

STAMP = "validatedBy"
"""The member of an identity that only the node writes."""
_TAKEN = ("accessToken", "idToken", "auth")
_TAKEN_OF_GUESTS = ("idToken", "auth")
"""Members of a body that go no further. `auth` says that the sender was authenticated, which is not its to say."""


class Credentials:
    """Checks messages. `identify` is the identity service's."""

    def __init__(self, sink: Callable[[], Sink], identify: Identify) -> None:
        self._sink = sink
        self._identify = identify

    def check(self, envelope: Envelope, session: NodeSession) -> None:
        """Take a fresh token, and see that the session's is in time. Raises Unauthenticated, Invalid, Forbidden."""
        body = envelope.body
        token = body.get("accessToken")
        principal = session.principal
        if token is not None and not principal.is_guest:
            if not isinstance(token, str):
                raise Invalid("`accessToken` is text")
            fresh = self._sink().authenticator.verify(token)
            if fresh.account != principal.account:
                raise Unauthenticated("this token is another account's")
            if fresh.expires != principal.expires and session.is_registered:
                session.principal = principal = fresh
                self._sink().sessions.renewed(session, fresh)
        elif session.token_hash is not None:
            runtime_url, _, given = envelope.sender.rpartition("/")
            looks_like_one = runtime_url == session.runtime_url and len(given) == TOKEN_CHARS
            if looks_like_one and not session.is_address(envelope.sender):
                raise Unauthenticated("this is not the session's token")
        if principal.expires is not None and principal.expires <= self._sink().clock():
            raise Unauthenticated("the session's token has expired; send a fresh one")
        identity = body.get("identity")
        if isinstance(identity, dict) and STAMP in identity:
            raise Forbidden(f"`identity.{STAMP}` is for the node to write")

    async def passed_on(self, envelope: Envelope, session: NodeSession) -> Envelope:
        """The message as it goes on: without its tokens, and with the identity that an `idToken` proves. Raises
        Unauthenticated for one that proves nothing. A guest's `accessToken` is none of ours, and left alone."""
        taken = [name for name in _taken(session) if name in envelope.body]
        if not taken:
            return envelope
        body = {name: member for name, member in envelope.body.items() if name not in taken}
        if "idToken" in taken:
            body["identity"] = await self._identify(envelope.body["idToken"], session.principal)
        document: Document = {**envelope.document, "body": body}
        return read(document)


def _taken(session: NodeSession) -> tuple[str, ...]:
    return _TAKEN_OF_GUESTS if session.principal.is_guest else _TAKEN
