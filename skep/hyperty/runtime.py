"""One hyperty runtime: its buses, its stub to the messaging node, and requests that end in time.

    async with Runtime("https://gateway:8443", token=…) as runtime:
        reporter = await runtime.report("weather", {"temperature": 20.5})
        await reporter.set("temperature", 21)

A sandbox posts outward always (`MiniBus`); the runtime's bus delivers what is local and asks for a stub otherwise.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from skep.hyperty.observer import Observer
from skep.hyperty.reporter import Action, Authorise, Reporter
from skep.hyperty.stub import NodeStub
from skep.hyperty.stubs import StubFactory, Stubs
from skep.urls import split_url
from things.bus import Listener, MessageBus, MiniBus
from things.envelopes import Document, Envelope, domain_of, refusal, response
from things.errors import (
    BadAddress,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    SkepError,
    TimedOut,
    Unauthenticated,
    Unavailable,
)
from things.messages import JSONValue

log = logging.getLogger(__name__)

RESPONSE_S = 15.0

_ERRORS: dict[int, type[SkepError]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: TimedOut,
    409: Conflict,
    504: Unavailable,
}

Answers = Callable[[Envelope], "dict[str, JSONValue] | None"]


class Runtime:
    """A runtime on the messaging node of `domain`, reached at `url` (http, https, ws or wss). `stubs` lead to foreign
    domains; an address of a domain that none leads to is refused (NoStub). Raises BadAddress for a malformed `url`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        domain: str = "localhost",
        runtime_url: str | None = None,
        ca: str | Path | None = None,
        stubs: Mapping[str, StubFactory] | None = None,
    ) -> None:
        self.domain = domain
        self.url = runtime_url or f"hyperty-runtime://{domain}/{uuid4()}"
        self.node = f"domain://msg-node.{domain}"
        self.registry = f"domain://registry.{domain}"
        self.bus = MessageBus(self._resolve)
        self.sandbox = MiniBus(self._outward)
        self._stubs = Stubs(self.url, self.bus.listeners, self._arrived)
        self._stub = NodeStub(_socket_url(url), self.url, token=token, ca=ca, renewed=self._renewed)
        self._stubs.add(domain, self._stub.arriving, is_own=True)
        self._stubs.add_all(stubs or {})
        self._claimed: dict[str, None] = {}
        self._objects: dict[str, Reporter | Observer] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._serving: list[asyncio.Task[None]] = []
        self._local(self.url)
        self._local(f"{self.url}/sm")

    async def __aenter__(self) -> "Runtime":
        self._serving = [asyncio.create_task(stub.serve()) for stub in self._stubs.all]
        try:
            async with asyncio.timeout(RESPONSE_S):
                await self._stub.ready()
        except BaseException as error:
            for task in self._serving:
                task.cancel()
            if isinstance(error, TimeoutError):
                raise Unavailable("the messaging node cannot be reached") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in tuple(self._objects.values()):
            one.end()
        for stub in self._stubs.all:
            await stub.close()
        tasks = [*self._work, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ hyperties and objects

    async def hyperty(self, listener: Answers | None = None) -> str:
        """Allocate an address; `listener` hears what is sent there and may return the body of a response."""
        address = (await self.allocate("hyperty"))[0]
        if listener is not None:
            self.answer(address, listener)
        else:
            self._local(address)
        return address

    async def report(
        self,
        name: str,
        data: dict[str, JSONValue],
        *,
        scheme: str = "comm",
        schema: JSONValue = None,
        children: Sequence[str] = (),
        authorise: "Iterable[str] | Authorise | None" = None,
        actions: Mapping[str, Action] | None = None,
        writable: Sequence[str] = (),
        url: str | None = None,
    ) -> Reporter:
        """Create an object and report it. `authorise` are the hyperties that may observe it, or says so by a call;
        None lets everyone. A `url` of one's own domain makes its address a lasting one. An agent's or service's object
        is a Thing: `actions` are what consumers may invoke there, `writable` the attributes they may write. Raises
        Invalid for the `url` of a foreign domain."""
        if url is not None and domain_of(url) != self.domain:
            raise Invalid(f"{url[:80]!r} is not of the domain {self.domain}")
        reporter = Reporter(
            self,
            name,
            data,
            schema=schema,
            children=children,
            authorise=authorise,
            actions=actions or {},
            writable=writable,
        )
        await reporter.create(scheme, url)
        self._objects[reporter.url] = reporter
        return reporter

    async def observe(self, url: str, *, children: Sequence[str] = ()) -> Observer:
        """Observe an object, or a Thing by `thing://{domain}/{agent}/{thing}`. Raises Forbidden, NotFound."""
        observer = Observer(self, url, await self.hyperty(), children=children)
        await observer.begin()
        self._objects[f"{url}#{observer.hyperty}"] = observer
        return observer

    async def find(self, resource: str, **criteria: JSONValue) -> dict[str, Any]:
        """Registered objects or hyperties by user, guid or name: entries of the registry by address; by an address its
        one entry. Raises NotFound; TimedOut if none is live."""
        body: dict[str, JSONValue] = {"resource": resource}
        if criteria:
            body["criteria"] = criteria
        found = await self.ask(self.registry, "read", body)
        value = found.get("value")
        return value if isinstance(value, dict) else {}

    async def execute(
        self, to: str, method: str, params: JSONValue = None, *, progress: Callable[[JSONValue], None] | None = None
    ) -> JSONValue:
        """Have something done, an action of a Thing for example; its final value. `progress` hears of steps before."""
        body: dict[str, JSONValue] = {"method": method}
        if params is not None:
            body["params"] = params
        answer = await self.ask(to, "execute", body, progress=progress)
        return answer.get("value")

    async def invoke(
        self, thing: str, action: str, data: JSONValue = None, *, progress: Callable[[JSONValue], None] | None = None
    ) -> JSONValue:
        """Invoke an action of a Thing, by `thing://{domain}/{agent}/{thing}`; its output. Raises what it ended with."""
        value = await self.execute(thing, action, data, progress=progress)
        return value.get("output") if isinstance(value, dict) else None

    # ------------------------------------------------------------ messages

    async def ask(
        self,
        to: str,
        type_: str,
        body: dict[str, JSONValue] | None = None,
        *,
        sender: str | None = None,
        wait_s: float = RESPONSE_S,
        progress: Callable[[JSONValue], None] | None = None,
    ) -> dict[str, JSONValue]:
        """Send a request and return its response's body. A provisional one begins the wait anew. Raises what a refusal
        means, TimedOut when none came."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Envelope] = loop.create_future()
        deadline = asyncio.timeout(wait_s)

        def answered(envelope: Envelope) -> None:
            if envelope.body.get("code") == 100:
                if not deadline.expired():
                    deadline.reschedule(loop.time() + wait_s)
                if progress is not None:
                    progress(envelope.body.get("value"))
            elif not answer.done():
                answer.set_result(envelope)

        document: Document = {"type": type_, "from": sender or self.url, "to": to, "body": body or {}}
        sent: Envelope | None = None
        try:
            async with deadline:
                sent = self.sandbox.post(document, answered)
                got = dict((await answer).body)
        except TimeoutError as error:
            raise TimedOut("Response timeout!") from error
        finally:
            if sent is not None:
                self.sandbox.responses.wait(sent.sender, sent.id, answered)()
        code = got.get("code")
        if isinstance(code, int) and code >= 400:
            refused = _ERRORS.get(code, SkepError)(str(got.get("description") or got.get("desc") or code))
            refused.code = str(got.get("error") or refused.code)
            raise refused
        return got

    def tell(self, to: str, type_: str, body: dict[str, JSONValue], *, sender: str) -> None:
        """Send without expecting an answer."""
        self.sandbox.post({"type": type_, "from": sender, "to": to, "body": body})

    def answer(self, address: str, listener: Answers) -> Callable[[], None]:
        """Hear what is sent to an address; what `listener` returns is the response. The returned call ends it."""

        def heard(envelope: Envelope) -> None:
            if envelope.is_response:
                return
            try:
                body = listener(envelope)
            except SkepError as error:
                body = refusal(
                    next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), 500), error.detail
                )
            if body is not None:
                self.respond(envelope, body)

        if not _is_told(address):
            self._local(address)
        return self.sandbox.listen(address, heard)

    def respond(self, envelope: Envelope, body: dict[str, JSONValue]) -> None:
        """Answer a message, now or later; by code 100 any number of times, finally by another."""
        self.sandbox.post(response(envelope, body))

    async def allocate(self, scheme: str, number: int = 1, children: Sequence[str] = ()) -> list[str]:
        """Fresh addresses from the node."""
        body: dict[str, JSONValue] = {"scheme": scheme, "value": {"number": number}}
        if children:
            body["childrenResources"] = list(children)
        return await self._allocated(body)

    async def claim(self, url: str) -> None:
        """An address of one's own choice. Raises Conflict if it is another account's."""
        await self._allocated({"value": {"allocated": [url]}})

    async def release(self, addresses: Sequence[str]) -> None:
        await self.ask(f"{self.node}/address-allocation", "delete", {"childrenResources": list(addresses)})

    async def listen(self, addresses: Sequence[str]) -> None:
        """Have the node send us what goes to these addresses. Raises Forbidden, TimedOut."""
        await self._listen(addresses)
        self._claimed.update(dict.fromkeys(addresses))

    async def unlisten(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            self._claimed.pop(address, None)
        await self.ask(f"{self.node}/sm", "unsubscribe", {"resources": list(addresses)}, sender=f"{self.url}/sm")

    def is_observed(self, url: str) -> bool:
        """Whether anyone in this runtime follows the object."""
        return any(key.startswith(f"{url}#") for key in self._objects)

    def forget(self, key: str) -> None:
        """An object is no longer reported or observed."""
        self._objects.pop(key, None)

    def spawn(self, work: Any) -> None:
        """Run work in the background for as long as the runtime runs."""
        task: asyncio.Task[None] = asyncio.ensure_future(_guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # ------------------------------------------------------------ between the buses

    def _local(self, address: str) -> None:
        receive: Listener = self._receive
        self.bus.listeners.add(address, receive)

    def _receive(self, envelope: Envelope) -> None:
        self.sandbox.receive(envelope)

    def _outward(self, envelope: Envelope) -> None:
        if not self.bus.post(envelope):
            raise NotFound(f"no stub leads to {envelope.to[:80]!r}")

    def _resolve(self, address: str) -> str | None:
        return self._stubs.resolve(address)

    def _arrived(self, envelope: Envelope) -> None:
        # From outside to the sandbox, never out again.
        self.sandbox.receive(envelope)

    async def _listen(self, addresses: Sequence[str]) -> None:
        await self.ask(
            f"{self.node}/sm", "subscribe", {"resources": list(addresses), "source": self.url}, sender=f"{self.url}/sm"
        )

    async def _allocated(self, body: dict[str, JSONValue]) -> list[str]:
        answer = await self.ask(f"{self.node}/address-allocation", "create", body)
        value = answer.get("value")
        found = value.get("allocated") if isinstance(value, dict) else None
        if not isinstance(found, list):
            raise SkepError("the node answered without addresses")
        addresses = [str(one) for one in found]
        for address in addresses:
            self._local(address)
            if domain_of(address) == self.domain:
                self._claimed[address] = None
        return addresses

    async def _renewed(self) -> None:
        """The node has forgotten our session: claim what we hold, and let objects catch up."""
        addresses = list(self._claimed)
        for start in range(0, len(addresses), 500):
            await self._listen(addresses[start : start + 500])
        for one in tuple(self._objects.values()):
            with suppress(SkepError):
                await one.resume()


def _is_told(address: str) -> bool:
    """Whether an address is heard by many: those messages go out to the node even where somebody listens here, and come
    back from it, so that everyone hears them in one order."""
    return address.endswith("/changes") or "/children/" in address


async def _guarded(work: Any) -> None:
    try:
        await work
    except SkepError as error:
        log.warning("background work failed", extra={"code": error.code, "detail": error.detail})


def _socket_url(url: str) -> str:
    """`http(s)://host:port` is the node's `/ws` there; an address with a path is taken as it is. Raises BadAddress."""
    parts, _ = split_url(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
        raise BadAddress(f"{url!r} is not the address of a messaging node; expected https://HOST:PORT")
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    return f"{scheme}://{host}/{path if slash and path else 'ws'}"
