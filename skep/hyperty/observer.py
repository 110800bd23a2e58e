"""The observer's side of a synchronized object: a copy that follows its reporter, and the children it may add.

A change whose version is not the next means that some were missed; the object is then read anew.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from skep.hyperty.reporter import Children
from things.envelopes import Envelope
from things.errors import SkepError
from things.messages import JSONValue
from things.objects import change

if TYPE_CHECKING:
    from collections.abc import Callable

    from skep.hyperty.runtime import Runtime

MAX_WAITING = 10_000
"""Changes that were not taken yet; the oldest go first, since the copy holds their effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """One change of the object: which attribute, its value now (None if it went)."""

    attribute: str | None
    value: JSONValue
    is_deleted: bool = False
    """The object itself is gone."""
    child: str | None = None
    """The resource of a child that changed; `attribute` is then the children's name."""


class Observer:
    """A followed object; made by `Runtime.observe`. Iterate over it for its changes."""

    def __init__(self, runtime: "Runtime", url: str, hyperty: str, *, children: Sequence[str]) -> None:
        self._runtime = runtime
        self._ends: list[Callable[[], None]] = []
        self._changes: asyncio.Queue[ObjectChange | None] = asyncio.Queue(MAX_WAITING)
        self._reading = False
        self._early: list[Envelope] | None = []
        """Changes that came before the object itself; None once it is here."""
        self._last_child = 0
        self.url = url
        self.hyperty = hyperty
        self.data: dict[str, JSONValue] = {}
        self.version = 0
        self._created: JSONValue = None
        """When the object began; one that began again counts its versions anew."""
        self.is_deleted = False
        self.children = Children(children)

    async def begin(self) -> None:
        """Hear changes, then ask the reporter for the object; in this order none is missed."""
        runtime = self._runtime
        self._ends = [
            runtime.answer(f"{self.url}/changes", self._changed),
            *(
                runtime.answer(f"{self.url}/children/{name}", partial(self._child, name))
                for name in self.children.names
            ),
        ]
        try:
            await runtime.listen(self._addresses())
            await self._catch_up()
        except BaseException:
            self.end()
            raise

    async def resume(self) -> None:
        """The node has begun anew: ask again, and read if versions differ."""
        await self._catch_up()

    async def read(self) -> dict[str, JSONValue]:
        """The object as it is now, from its reporter. Raises TimedOut, Forbidden, NotFound."""
        answer = await self._runtime.ask(self.url, "read", {"source": self.hyperty}, sender=self.hyperty)
        value = answer.get("value")
        return value if isinstance(value, dict) else {}

    async def leave(self) -> None:
        """Stop observing."""
        runtime = self._runtime
        try:
            body: dict[str, JSONValue] = {"source": self.hyperty}
            await runtime.ask(f"{self.url}/subscription", "unsubscribe", body, sender=self.hyperty)
        finally:
            runtime.forget(f"{self.url}#{self.hyperty}")
            self.end()
            if not runtime.is_observed(self.url):
                await runtime.unlisten(self._addresses())

    def end(self) -> None:
        """Stop hearing; an iteration ends."""
        for end in self._ends:
            end()
        self._ends = []
        self._put(None)

    async def add_child(self, name: str, value: JSONValue) -> str:
        """Create a child, a chat message for example; its resource. Raises Forbidden, TimedOut."""
        self._last_child += 1
        resource = f"{self.hyperty}#{self._last_child}"
        await self._child_message("create", name, resource, value)
        return resource

    async def set_child(self, name: str, resource: str, value: JSONValue) -> None:
        """Change a child of one's own. Raises Forbidden for another's."""
        await self._child_message("update", name, resource, value)

    async def remove_child(self, name: str, resource: str) -> None:
        """Remove a child of one's own. Raises Forbidden for another's."""
        await self._child_message("delete", name, resource, None)

    def __aiter__(self) -> AsyncIterator[ObjectChange]:
        return self._iterated()

    async def _iterated(self) -> AsyncIterator[ObjectChange]:
        while (one := await self._changes.get()) is not None:
            yield one

    # ------------------------------------------------------------

    def _addresses(self) -> list[str]:
        return [f"{self.url}/changes", *(f"{self.url}/children/{name}" for name in self.children.names)]

    async def _child_message(self, type_: str, name: str, resource: str, value: JSONValue) -> None:
        body: dict[str, JSONValue] = {"resource": resource}
        if type_ != "delete":
            body["value"] = value
        await self._runtime.ask(f"{self.url}/children/{name}", type_, body, sender=self.hyperty)

    async def _catch_up(self) -> None:
        body: dict[str, JSONValue] = {"source": self.hyperty, "resume": self.version > 0}
        answer = await self._runtime.ask(f"{self.url}/subscription", "subscribe", body, sender=self.hyperty)
        value = answer.get("value")
        if not isinstance(value, dict):
            raise SkepError("the reporter answered without its object")
        self._took(value)
        early, self._early = self._early or (), None
        for envelope in early:
            version = envelope.body.get("version")
            if not isinstance(version, int) or version > self.version:
                self._changed(envelope)

    def _took(self, value: dict[str, JSONValue]) -> None:
        version = value.get("version")
        number = version if isinstance(version, int) else 0
        is_same = value.get("created") == self._created
        if is_same and number < self.version:
            return  # changes that came meanwhile are newer
        self._created = value.get("created")
        data = value.get("data")
        self.data = copy.deepcopy(data) if isinstance(data, dict) else {}
        was, self.version = self.version, number
        if was and (number != was or not is_same):
            self._put(ObjectChange(attribute=None, value=copy.deepcopy(self.data)))
        children = value.get("childrens")
        if isinstance(children, dict):
            for name, found in children.items():
                if name in self.children.values and isinstance(found, dict):
                    self.children.values[name] = dict(found)

    def _changed(self, envelope: Envelope) -> None:
        """Take one change; it is answered by nothing."""
        if envelope.type == "delete":
            self.is_deleted = True
            self._put(ObjectChange(attribute=None, value=None, is_deleted=True))
            return
        if envelope.type != "update" or envelope.sender != self.url:
            return
        if self._early is not None:
            self._early.append(envelope)
            return
        version = envelope.body.get("version")
        if isinstance(version, int):
            if version != self.version + 1:
                # Some were missed, or the reporter began again.
                self._read_again()
                return
            self.version = version
        try:
            name = change(self.data, envelope.body)
        except SkepError:
            self._read_again()
            return
        value = copy.deepcopy(self.data if name is None else self.data.get(name))
        self._put(ObjectChange(attribute=name, value=value))

    def _child(self, name: str, envelope: Envelope) -> None:
        if envelope.sender == self.hyperty:
            return  # our own echo
        try:
            resource = self.children.take(name, envelope)
        except SkepError:
            return  # the reporter refuses it, and tells its sender
        self._put(ObjectChange(attribute=name, value=self.children.values[name].get(resource), child=resource))

    def _read_again(self) -> None:
        if not self._reading:
            self._reading = True
            self._runtime.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            self._took(await self.read())
        finally:
            self._reading = False

    def _put(self, one: ObjectChange | None) -> None:
        while self._changes.full():
            self._changes.get_nowait()
        self._changes.put_nowait(one)
