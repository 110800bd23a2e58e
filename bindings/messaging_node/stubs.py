"""Stubs by the domain they lead to: the look-up behind `resolve(address)`, and the catalogue that tells what it knows.

The stub to the node's own domain ships with it and is described at
`hyperty-catalogue://catalogue.{D}/.well-known/protocolstub/default`, where identity profiles point. A domain without a
stub is refused by a code of its own, so that a sender can tell "no way there" from "nobody there".
"""

from collections.abc import Iterator, Mapping, Sequence

from bindings.messaging_node.connectors import Body, Stub
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.envelopes import Envelope, Unknown, served_domain
from things.errors import NoStub, NotFound


class Stubs:
    """The look-up. `foreign` are stubs by domain; none ship yet."""

    def __init__(self, domain: str, foreign: Mapping[str, Stub]) -> None:
        self._domain = domain
        self._foreign = foreign

    def __iter__(self) -> Iterator[tuple[str, Stub]]:
        """Foreign domains and what leads there."""
        return iter(self._foreign.items())

    def resolve(self, address: str) -> Stub | None:
        """The stub that leads to an address nobody here holds; None if it would be here. Raises NoStub."""
        domain = served_domain(address)
        if domain in ("", self._domain):
            return None
        stub = self._foreign.get(domain)
        if stub is None:
            raise NoStub(domain)
        return stub


class Catalogue:
    """Describes the stub to this node, for runtimes that look for one."""

    def __init__(self, settings: NodeSettings) -> None:
        base = f"hyperty-catalogue://catalogue.{settings.domain}/.well-known/protocolstub"
        self._descriptor: Body = {
            "name": "skep-node",
            "version": "1",
            "domain": settings.domain,
            "protocol": "wss",
            "path": "/ws",
            "session": "mn:/session",
        }
        self.addresses: Sequence[str] = (f"{base}/default", f"{base}/{settings.domain}")

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        if envelope.type != "read":
            raise Unknown(f"the catalogue is read, not asked by {envelope.type!r}")
        if envelope.to.rstrip("/") not in self.addresses:
            raise NotFound("Not Found")
        return {"code": 200, "value": dict(self._descriptor)}
