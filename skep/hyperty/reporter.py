"""The reporter's side of a synchronized object: the one writer, who says who may observe, and answers for it.

Versions rise by one with each change, so that an observer that missed some knows to read again. Children belong to
their creators: only their creators change or delete them.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from things.bounded import Recent
from things.envelopes import Envelope, refusal
from things.errors import Forbidden, Invalid, NotFound, SkepError
from things.jsontext import encode
from things.messages import JSONValue
from things.objects import change

if TYPE_CHECKING:
    from skep.hyperty.runtime import Runtime

log = logging.getLogger(__name__)

Authorise = Callable[[str], bool]
"""Whether a hyperty may observe."""

MAX_REMEMBERED = 1_000
"""Requests whose outcome is remembered, so that one that comes again has its effect once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something consumers may ask of an object. `run` takes the input and returns the output, or an awaitable of it;
    what it raises is the refusal. `input` and `output` are JSON schemas."""

    run: Callable[[JSONValue], "JSONValue | Awaitable[JSONValue]"]
    title: str = ""
    input: JSONValue = None
    output: JSONValue = None

    def affordance(self) -> dict[str, JSONValue]:
        """As a Thing Description has it."""
        members = {"title": self.title or None, "input": self.input, "output": self.output}
        return {name: value for name, value in members.items() if value is not None}


class Children:
    """Child objects by name and resource; each with its creator and value."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.values: dict[str, dict[str, JSONValue]] = {name: {} for name in names}
        self._creators: dict[tuple[str, str], str] = {}

    def take(self, name: str, envelope: Envelope) -> str:
        """Carry out a create, update or delete of a child; its resource. Raises Forbidden for all but its creator."""
        resource = envelope.body.get("resource")
        key = (name, resource if isinstance(resource, str) else f"{envelope.sender}#{envelope.id}")
        creator = self._creators.get(key)
        if creator is not None and creator != envelope.sender:
            raise Forbidden("only its creator changes a child")
        match envelope.type:
            case "create" | "update":
                if envelope.type == "update" and creator is None:
                    raise NotFound(f"there is no child {key[1]!r}")
                self._creators[key] = envelope.sender
                self.values[name][key[1]] = envelope.body.get("value")
            case "delete":
                self._creators.pop(key, None)
                self.values[name].pop(key[1], None)
            case _:
                raise Invalid(f"{envelope.type!r} is not possible at a child")
        return key[1]


class Reporter:
    """One object of ours; made by `Runtime.report`."""

    def __init__(
        self,
        runtime: "Runtime",
        name: str,
        data: Mapping[str, JSONValue],
        *,
        schema: JSONValue,
        children: Sequence[str],
        authorise: "Iterable[str] | Authorise | None",
        actions: Mapping[str, Action],
        writable: Sequence[str],
    ) -> None:
        self._runtime = runtime
        self._schema = schema
        self._allowed: Authorise
        if authorise is None:
            self._allowed = lambda hyperty: True
        elif callable(authorise):
            self._allowed = authorise
        else:
            preauthorised = self._preauthorised = set(authorise)
            self._allowed = preauthorised.__contains__
        self._ends: list[Callable[[], None]] = []
        self.name = name
        self.url = ""
        self.data: dict[str, JSONValue] = dict(data)
        self.version = 1
        self.children = Children(children)
        self.observers: set[str] = set()
        self._actions = dict(actions)
        self._writable = tuple(writable)
        self._outcomes = Recent[int | str, dict[str, JSONValue] | None](MAX_REMEMBERED)
        """By request id; None while one is carried out."""
        self.on_child: Callable[[str, str, JSONValue], None] | None = None
        """Called with name, resource and value of a child that changed; the value of a deleted one is None."""
        self._modified = self._created = _now()

    _preauthorised: set[str] | None = None

    async def create(self, scheme: str, url: str | None) -> None:
        """Get an address, listen there, and register."""
        runtime = self._runtime
        if url is None:
            self.url = (await runtime.allocate(scheme, children=self.children.names))[0]
        else:
            await runtime.claim(url)
            self.url = url
        self._ends = [
            runtime.answer(self.url, self._asked),
            runtime.answer(f"{self.url}/subscription", self._subscribing),
            *(
                runtime.answer(f"{self.url}/children/{name}", partial(self._child, name))
                for name in self.children.names
            ),
        ]
        await runtime.listen([self.url, f"{self.url}/subscription", *self._child_addresses()])
        await self._register()

    async def resume(self) -> None:
        """The node has begun anew: be known there again."""
        await self._register()

    # ------------------------------------------------------------ changing it

    async def set(self, path: str, value: JSONValue) -> None:
        """Set an attribute by its path, such as `position.x`."""
        self._change({"attribute": path, "value": value})

    async def remove(self, path: str) -> None:
        """Remove an attribute."""
        self._change({"attribute": path})

    async def add(self, path: str, *values: JSONValue) -> None:
        """Append to an array."""
        self._change({"attribute": path, "attributeType": "array", "operation": "add", "value": list(values)})

    async def take_out(self, path: str, *values: JSONValue) -> None:
        """Remove values from an array."""
        self._change({"attribute": path, "attributeType": "array", "operation": "remove", "value": list(values)})

    async def invite(self, *hyperties: str) -> None:
        """Offer the object to hyperties, which may observe it from now on."""
        if self._preauthorised is not None:
            self._preauthorised.update(hyperties)
        for hyperty in hyperties:
            body = {"source": self._runtime.url, "value": self.document(), "schema": self._schema}
            await self._runtime.ask(hyperty, "create", body, sender=f"{self.url}/subscription")

    async def delete(self) -> None:
        """End the object: its observers are notified, its registration and address go."""
        runtime = self._runtime
        runtime.tell(f"{self.url}/changes", "delete", {}, sender=f"{self.url}/subscription")
        await runtime.ask(runtime.registry, "delete", {"value": {"url": self.url}})
        await runtime.unlisten([self.url, f"{self.url}/subscription", *self._child_addresses()])
        await runtime.release([self.url])
        runtime.forget(self.url)
        self.end()

    def end(self) -> None:
        """Stop answering."""
        for end in self._ends:
            end()
        self._ends = []

    def document(self) -> dict[str, JSONValue]:
        """The whole object, as observers get it."""
        return {
            "url": self.url,
            "name": self.name,
            "reporter": self._runtime.url,
            "schema": self._schema,
            "version": self.version,
            "created": self._created,
            "lastModified": self._modified,
            "data": self.data,
            "childrens": {name: dict(found) for name, found in self.children.values.items()},
        }

    def _change(self, body: dict[str, JSONValue]) -> None:
        change(self.data, body)
        self.version += 1
        self._modified = _now()
        body = {**body, "version": self.version, "lastModified": self._modified}
        self._runtime.tell(f"{self.url}/changes", "update", body, sender=self.url)

    # ------------------------------------------------------------ what is asked of it

    def _asked(self, envelope: Envelope) -> dict[str, JSONValue] | None:
        if envelope.type in ("execute", "update"):
            if envelope.sender != f"{self._runtime.node}/requests":
                raise Forbidden("ask for it at the Thing that this object is; only the reporter changes its object")
            return self._requested(envelope)
        if envelope.type != "read":
            raise Invalid(f"{envelope.type!r} is not possible here; the reporter alone changes its object")
        if not self._allowed(_source(envelope)) and _source(envelope) not in self.observers:
            return {"code": 401, "description": "not permitted", "desc": "not permitted"}
        return {"code": 200, "value": self.document()}

    def _requested(self, envelope: Envelope) -> dict[str, JSONValue] | None:
        """A consumer's request, which the node's ledger hands over; one that comes again is not carried out again."""
        if envelope.id in self._outcomes:
            return self._outcomes[envelope.id]
        self._outcomes[envelope.id] = None
        self._runtime.spawn(self._carry_out(envelope))
        return None

    async def _carry_out(self, envelope: Envelope) -> None:
        try:
            outcome = await self._outcome(envelope)
            encode(outcome)
        except SkepError as error:
            outcome = refusal(500, error.detail)
        except Exception as error:
            log.exception("request failed", extra={"object": self.url, "request": envelope.id})
            outcome = refusal(500, f"{type(error).__name__}: {error}")
        if envelope.id in self._outcomes:
            self._outcomes[envelope.id] = outcome
        self._runtime.respond(envelope, outcome)

    async def _outcome(self, envelope: Envelope) -> dict[str, JSONValue]:
        body = envelope.body
        if envelope.type == "update":
            name = body.get("attribute")
            if name not in self._writable:
                raise Forbidden(f"{name!r} is not writable")
            self._change({"attribute": name, "value": body.get("value")})
            return {"code": 200}
        action = self._actions.get(str(body.get("method")))
        if action is None:
            raise NotFound(f"there is no action {body.get('method')!r}")
        value = action.run(body.get("params"))
        if isawaitable(value):
            self._runtime.respond(envelope, {"code": 100})
            value = await value
        return {"code": 200, "value": value}

    def _subscribing(self, envelope: Envelope) -> dict[str, JSONValue] | None:
        source = _source(envelope)
        match envelope.type:
            case "subscribe":
                if not self._allowed(source):
                    raise Forbidden("this object is not for this observer")
                self.observers.add(source)
                return {"code": 200, "value": self.document()}
            case "unsubscribe":
                self.observers.discard(source)
                return {"code": 200}
            case _:
                raise Invalid(f"{envelope.type!r} is not possible at a subscription")

    def _child(self, name: str, envelope: Envelope) -> dict[str, JSONValue] | None:
        resource = self.children.take(name, envelope)
        if self.on_child is not None:
            self.on_child(name, resource, self.children.values[name].get(resource))
        return {"code": 200, "source": self._runtime.url}

    def _child_addresses(self) -> list[str]:
        return [f"{self.url}/children/{name}" for name in self.children.names]

    async def _register(self) -> None:
        value: dict[str, Any] = {
            "url": self.url,
            "name": self.name,
            "reporter": self._runtime.url,
            "runtime": self._runtime.url,
            "schema": self._schema,
            "dataSchemes": [self._schema] if isinstance(self._schema, str) else [],
            "resources": list(self.children.names),
            "data": self.data,
            "actions": {name: action.affordance() for name, action in self._actions.items()},
            "writable": list(self._writable),
        }
        await self._runtime.ask(self._runtime.registry, "create", {"value": value})


def _source(envelope: Envelope) -> str:
    source = envelope.body.get("source")
    return source if isinstance(source, str) else envelope.sender


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
