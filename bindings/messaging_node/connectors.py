"""What stands behind an address of the node: connectors to the domain's services, and the seam for foreign stubs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bindings.messaging_node.sessions import NodeSession
from things.envelopes import Envelope
from things.messages import JSONValue

Body = Mapping[str, JSONValue]
OK: Body = {"code": 200}


class Connector(Protocol):
    """One function of the node: address allocation, subscriptions, the registry, identities, policies …"""

    @property
    def addresses(self) -> Sequence[str]:
        """Where it is reached; a trailing slash is not told apart."""
        ...

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        """The body of the response, with an integer `code`; None where it answers by itself, later. Raises SkepError,
        which is answered by its code. The message has passed rates, rights and policies."""
        ...


class Stub(Protocol):
    """A way to another domain's addresses; takes what goes there. Answers come back through the node's own door."""

    async def deliver(self, envelope: Envelope, caller: NodeSession) -> None:
        """Take one message; raises SkepError (404, 408) if it cannot be delivered."""
        ...


Resolve = Callable[[str], Stub | None]
"""The stub that leads to an address nobody here holds; None if it would be here. Raises NoStub for a foreign domain
that none leads to."""
