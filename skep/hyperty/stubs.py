"""Which stub leads where: `resolve(address)` of a hyperty runtime.

There is one stub a domain. The one to the runtime's own node (`stub.NodeStub`) ships here and is always there; others
are given to the runtime by domain. Addresses that name no domain are the own node's to know. Whoever wrote to us from a
domain without a stub is answered the way it came.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from things.bounded import Recent
from things.bus import Bus, Listener
from things.envelopes import Envelope, served_domain
from things.errors import NoStub

MAX_WAYS = 1_000
"""Foreign senders whose way back is remembered."""


class Stub(Protocol):
    """A way to the node of one domain."""

    def send(self, envelope: Envelope) -> None:
        """Take one message; it need not have gone when this returns. Raises Unavailable when too many wait."""
        ...

    async def serve(self) -> None:
        """Carry messages until cancelled."""
        ...

    async def close(self) -> None:
        """Say goodbye; what waits is sent first."""
        ...


StubFactory = Callable[[str, Listener], Stub]
"""Makes a stub for the runtime of this URL; the listener takes what arrives."""


class Stubs:
    """The stubs of one runtime, as listeners of its bus."""

    def __init__(self, runtime_url: str, listeners: Bus[Listener], arrived: Listener) -> None:
        self._runtime_url = runtime_url
        self._listeners = listeners
        self._arrived = arrived
        self._by_domain: dict[str, tuple[str, Stub]] = {}
        self._own = ""
        self._ways = Recent[str, str](MAX_WAYS)

    @property
    def all(self) -> list[Stub]:
        """Every stub, the own node's first."""
        return [stub for _, stub in self._by_domain.values()]

    def add(self, domain: str, factory: StubFactory, *, is_own: bool = False) -> Stub:
        """Make the stub to a domain and put it on the bus."""
        address = f"{self._runtime_url}/protostub/{domain}"
        stub = factory(self._runtime_url, lambda envelope: self._came(envelope, address))
        self._by_domain[domain] = (address, stub)
        self._listeners.add(address, stub.send)
        if is_own:
            self._own = domain
        return stub

    def add_all(self, factories: Mapping[str, StubFactory]) -> None:
        for domain, factory in factories.items():
            self.add(domain, factory)

    def resolve(self, address: str) -> str:
        """The address of the stub that leads to an address which is not local. Raises NoStub."""
        domain = served_domain(address) or self._own
        known = self._by_domain.get(domain)
        if known is not None:
            return known[0]
        way = self._ways.get(address)
        if way is None:
            raise NoStub(domain)
        return way

    def _came(self, envelope: Envelope, stub: str) -> None:
        domain = served_domain(envelope.sender)
        if domain and domain not in self._by_domain:
            self._ways[envelope.sender] = stub
        self._arrived(envelope)
