"""Objects of hyperties in the directory: each object that an agent or service reports is a Thing of its account.

Its TD is derived from the object's inline schema, else from the values' JSON types, and grows with the attributes that
come; actions and writable properties are those its registration names. Each change is published as a property through
the runtime's router, so it is in history, on MQTT, in event streams and in Spark. Consumers own no Things: their
objects are synchronized between hyperties, and not mirrored.
"""

import copy
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bindings.messaging_node.requests import HypertyRequests
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Pattern, Sink
from things.addresses import Kind, TwinID, own_twin
from things.envelopes import Envelope, scheme_of
from things.errors import Conflict, SkepError
from things.identity import AccountType
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin
from things.objects import change
from things.service_ids import DIRECTORY

log = logging.getLogger(__name__)

CONTEXT: tuple[JSONValue, ...] = ("https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"})
OF_OBJECTS = "skep:DataObject"
OBJECT = "skep:object"
"""The member of a TD that names the object's address; what tells two of them apart whose last part is the same."""
MAX_ATTRIBUTES = 500
_NOT_OBJECTS = frozenset({"hyperty", "hyperty-runtime", "runtime", "user", "user-guid", "domain", "global", "thing"})
_UNFIT = re.compile(r"[^A-Za-z0-9._:@-]+")
_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


@dataclass(slots=True)
class _Mirrored:
    twin: str
    title: str
    properties: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, JSONValue] = field(default_factory=dict)
    actions: dict[str, Any] = field(default_factory=dict)
    writable: set[str] = field(default_factory=set)
    """Properties whose reporter takes wishes for them."""
    derived: set[str] = field(default_factory=set)
    """Properties whose schema is what their values were like so far."""


class Mirror:
    """Keeps the objects of agents and services as Things."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink], requests: HypertyRequests) -> None:
        self._settings = settings
        self._sink = sink
        self._requests = requests
        self._objects: OrderedDict[str, _Mirrored] = OrderedDict()
        self._urls: dict[str, str] = {}
        """Which of these objects a Thing is."""

    def thing_of(self, url: str) -> str | None:
        """The Thing that an object is; None for objects that are not known here, or none."""
        found = self._objects.get(url)
        return None if found is None else found.twin

    def thing(self, url: str, reporter: NodeSession) -> str | None:
        """The Thing that an object is if this session reports it; None if it is none."""
        return own_twin(reporter.principal.account, _thing_of(url)) if _is_mirrored(url, reporter) else None

    async def check(self, url: str, reporter: NodeSession) -> None:
        """Raise Conflict if the Thing that an object would be is another object's, or none of an object."""
        twin = self.thing(url, reporter)
        if twin is None or self._urls.get(twin) == url:
            return
        if twin in self._urls:
            raise Conflict(f"{twin} is the object {self._urls[twin][:80]!r}; delete that first")
        origin = Origin(binding="node", session_id=reporter.session_id, source=reporter.source)
        try:
            td = await self._sink().call(reporter.principal, DIRECTORY, "readTD", {"thingID": twin}, origin)
        except SkepError:
            return  # there is none, or none that it may know of, which publishing it will tell
        assert isinstance(td, dict)
        types, standing = td.get("@type"), td.get(OBJECT)
        is_object = OF_OBJECTS in types if isinstance(types, list) else types == OF_OBJECTS
        if not is_object or (isinstance(standing, str) and standing != url):
            which = f"the object {standing[:80]!r}" if isinstance(standing, str) else "no object's"
            raise Conflict(f"{twin} is {which}; remove that first, or report by another address")

    async def registered(self, entry: Mapping[str, Any], caller: NodeSession) -> None:
        """An object was registered: it is a Thing from now on."""
        url = str(entry["url"])
        if not _is_mirrored(url, caller):
            return
        data = entry.get("data")
        schema = entry.get("schema")
        try:
            await self.check(url, caller)
        except Conflict:
            return  # the registry, where it is the node's own, has said so
        mirrored = self._known(url, caller)
        name = entry.get("name")
        mirrored.title = name if isinstance(name, str) and name else mirrored.title
        described = schema.get("properties") if isinstance(schema, dict) else None
        writable = entry.get("writable")
        mirrored.writable = (
            {name for name in writable if isinstance(name, str)} if isinstance(writable, list) else set()
        )
        if isinstance(described, dict):
            mirrored.properties |= {
                name: {**one, "readOnly": name not in mirrored.writable}
                for name, one in described.items()
                if isinstance(one, dict)
            }
        actions = entry.get("actions")
        mirrored.actions = dict(actions) if isinstance(actions, dict) else {}
        if isinstance(data, dict):
            mirrored.data = copy.deepcopy(data)
        await self._guarded(url, caller, self._publish(url, mirrored, caller, list(mirrored.data), always=True))
        self._requests.speak(caller, mirrored.twin, url)

    async def unregistered(self, url: str, caller: NodeSession) -> None:
        """An object is gone; its history stays."""
        mirrored = self._objects.get(url)
        twin = self.thing(url, caller)
        if twin is not None and mirrored is not None and mirrored.twin == twin:
            self._forget(url)
            self._requests.silence(caller, twin)
            await self._guarded(url, caller, self._handle(Operation.REMOVE_TD, twin, "", None, caller))

    async def changed(self, url: str, envelope: Envelope, caller: NodeSession) -> None:
        """Its reporter sent a change of an object."""
        if not _is_mirrored(url, caller):
            return
        if envelope.type == "delete":
            await self.unregistered(url, caller)
            return
        known = self._objects.get(url)
        if known is None or known.twin != self.thing(url, caller):
            try:
                await self.check(url, caller)
            except Conflict as error:
                log.info("object not mirrored", extra={"object": url, "code": error.code, "detail": error.detail})
                return
        mirrored = self._known(url, caller)
        try:
            name = change(mirrored.data, envelope.body)
        except SkepError as error:
            log.info("change not mirrored", extra={"object": url, "detail": error.detail})
            return
        names = list(mirrored.data) if name is None else [name]
        await self._guarded(url, caller, self._publish(url, mirrored, caller, names, always=False))
        if mirrored.twin not in caller.speaks_for:
            self._requests.speak(caller, mirrored.twin, url)

    def restored(self, session: NodeSession, urls: Iterable[str]) -> None:
        """After a restart: a session goes on speaking for what it had registered."""
        for url in urls:
            if _is_mirrored(url, session):
                self._requests.speak(session, own_twin(session.principal.account, _thing_of(url)), url)

    def _known(self, url: str, caller: NodeSession) -> _Mirrored:
        found = self._objects.get(url)
        twin = TwinID.of(caller.principal.account, _thing_of(url))
        if found is not None and found.twin != str(twin):
            # The address changed hands, and is another account's Thing now.
            self._forget(url)
            found = None
        if found is None:
            self._urls[str(twin)] = url
            found = self._objects[url] = _Mirrored(str(twin), twin.thing)
            pattern = Pattern(twin.account, twin.thing, Kind.PROPERTY, None)
            for latest in filter(None, self._sink().sessions.latest(caller.principal, pattern)):
                found.data[latest.name] = copy.deepcopy(latest.value)
                found.properties[latest.name] = _schema(latest.value)
                found.derived.add(latest.name)
            if len(self._objects) > self._settings.max_mirrored:
                self._forget(next(iter(self._objects)))
        self._objects.move_to_end(url)
        return found

    def _forget(self, url: str) -> None:
        del self._urls[self._objects.pop(url).twin]

    async def _publish(
        self, url: str, mirrored: _Mirrored, caller: NodeSession, names: list[str], *, always: bool
    ) -> None:
        fresh = [name for name in names if name in mirrored.data and name not in mirrored.properties]
        for name in fresh[: max(0, MAX_ATTRIBUTES - len(mirrored.properties))]:
            mirrored.properties[name] = {**_schema(mirrored.data[name]), "readOnly": name not in mirrored.writable}
            mirrored.derived.add(name)
        other = [name for name in names if name in mirrored.derived and _differs(mirrored, name)]
        for name in other:
            mirrored.properties[name] = {"readOnly": name not in mirrored.writable}
        if fresh or other or always:
            td = {
                "@context": list(CONTEXT),
                "@type": OF_OBJECTS,
                "id": url,
                OBJECT: url,
                "title": mirrored.title,
                "properties": mirrored.properties,
                **({"actions": mirrored.actions} if mirrored.actions else {}),
            }
            await self._handle(Operation.PUBLISH_TD, mirrored.twin, "", encode(td).decode(), caller)
        for name in names:
            value = copy.deepcopy(mirrored.data.get(name))
            await self._handle(Operation.PUBLISH_PROPERTY, mirrored.twin, name, value, caller)

    async def _handle(self, operation: Operation, twin: str, name: str, data: JSONValue, caller: NodeSession) -> None:
        sink = self._sink()
        await sink.handle(
            Message(
                operation=operation,
                principal=caller.principal,
                thing_id=twin,
                name=name,
                data=data,
                received=sink.clock(),
                # A change is not acknowledged, so nobody waits for its commit either.
                durable=operation is not Operation.PUBLISH_PROPERTY,
                origin=Origin(binding="node", session_id=caller.session_id, source=caller.source),
            )
        )

    async def _guarded(self, url: str, caller: NodeSession, work: Any) -> None:
        """What the directory refuses (a schema that is none, a policy) must not stop the hyperties' own exchange."""
        try:
            await work
        except SkepError as error:
            log.info(
                "object not mirrored",
                extra={"object": url, "sender": caller.principal.account, "code": error.code, "detail": error.detail},
            )


def _differs(mirrored: _Mirrored, name: str) -> bool:
    known = mirrored.properties[name].get("type")
    return known is not None and name in mirrored.data and _schema(mirrored.data[name])["type"] != known


def _is_mirrored(url: str, caller: NodeSession) -> bool:
    return caller.principal.type is not AccountType.CONSUMER and scheme_of(url) not in _NOT_OBJECTS


def _thing_of(url: str) -> str:
    """The Thing's id: what follows the domain in the object's address."""
    path = url.partition("://")[2].partition("/")[2] or url
    return _UNFIT.sub(":", path)[:128] or "object"


def _schema(value: JSONValue) -> dict[str, Any]:
    return {"type": _TYPES[type(value)], "readOnly": True}
