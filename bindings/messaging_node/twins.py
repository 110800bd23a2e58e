"""Things as data objects: `dtw:{agent}:{thing}` is `thing://{D}/{agent}/{thing}`.

| message | becomes |
| --- | --- |
| read | latest values: all properties, or the one named by `attribute` |
| subscribe to `/changes` at `/sm` | observing all properties; each value comes as an update, `attribute` its name |
| subscribe to `/children/{event}` at `/sm` | subscribing to the event; each comes as a create |
| subscribe at `/subscription` | the current state, as an observer asks for it |
| execute `{method, params}`, create at `/children/{action}` | invoke_action; statuses are responses |
| update `{attribute, value}` | write_property, answered the same way |

Everything passes the runtime's router with the sender's principal; what it may not see looks unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bindings.messaging_node.connectors import Body
from bindings.messaging_node.outbox import Item
from bindings.messaging_node.replies import Reply
from bindings.messaging_node.sessions import Asking, NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Pattern, Publication, Sink
from things.addresses import Kind, TwinID
from things.delivery import DeliveryStatus, State
from things.envelopes import CODES, Document, Envelope, Unknown, refusal
from things.errors import Invalid, NotFound, SkepError
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin
from things.names import Account, ThingID
from things.service_ids import DIRECTORY, VALUES
from things.times import rfc3339


@dataclass(frozen=True, slots=True)
class ThingAddress:
    """A Thing as the node addresses it, and what follows its name."""

    agent: Account
    thing: ThingID
    rest: str

    @property
    def twin(self) -> str:
        return str(TwinID(self.agent, self.thing))

    @property
    def child(self) -> str | None:
        """The name in `/children/{name}`."""
        return self.rest.removeprefix("/children/") if self.rest.startswith("/children/") else None


class Twins:
    """Answers for every Thing the sender may see."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink], reply: Reply) -> None:
        self.prefix = settings.things
        self._sink = sink
        self._reply = reply
        self._sent = 0
        self.addresses: Sequence[str] = ()

    def parse(self, address: str) -> ThingAddress | None:
        """The Thing an address is about; None if it is no Thing's. Raises BadAddress for one that cannot be."""
        if not address.startswith(self.prefix):
            return None
        agent, _, rest = address.removeprefix(self.prefix).partition("/")
        thing, slash, below = rest.partition("/")
        twin = TwinID.of(agent, thing)
        return ThingAddress(twin.account, twin.thing, slash + below)

    def address_of(self, twin: TwinID) -> str:
        return f"{self.prefix}{twin.account}/{twin.thing}"

    # ------------------------------------------------------------ messages

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        about = self.parse(envelope.to)
        if about is None:
            raise NotFound(f"nobody is at {envelope.to[:80]!r}")
        match envelope.type, about.rest:
            case "read", "":
                return {"code": 200, "value": await self._state(about, caller, envelope.body.get("attribute"))}
            case "subscribe", "/subscription":
                return {"code": 200, "value": await self._object(about, caller)}
            case "unsubscribe", "/subscription":
                return {"code": 200}
            case "execute", "":
                name = envelope.body.get("method")
                if not isinstance(name, str):
                    raise Invalid("`method` names an action")
                return await self._ask(
                    Operation.INVOKE_ACTION, about, name, envelope, caller, envelope.body.get("params")
                )
            case "create", _ if about.child:
                value = envelope.body.get("value")
                return await self._ask(Operation.INVOKE_ACTION, about, about.child, envelope, caller, value)
            case "update", "":
                name = envelope.body.get("attribute")
                if not isinstance(name, str):
                    raise Invalid("`attribute` names a property")
                return await self._ask(
                    Operation.WRITE_PROPERTY, about, name, envelope, caller, envelope.body.get("value")
                )
            case "update" | "delete", "/changes":
                raise Invalid("a Thing's changes are published by its agent")
            case _:
                raise Unknown(f"{envelope.type!r} is not possible at {envelope.to[:80]!r}")

    async def registration(self, address: str, principal: Principal) -> dict[str, Any] | None:
        """A Thing as an entry of the domain registry; None if the principal knows of none."""
        try:
            about = self.parse(address)
        except SkepError:
            return None
        if about is None:
            return None
        try:
            td = await self._call(principal, DIRECTORY, "readTD", {"thingID": about.twin})
        except NotFound:
            return None
        assert isinstance(td, dict)
        types = td.get("@type")
        return {
            "url": self.prefix + f"{about.agent}/{about.thing}",
            "name": td.get("title"),
            "reporter": about.agent,
            "registeredBy": about.agent,
            "dataSchemes": types if isinstance(types, list) else [types] if types else [],
            "resources": ["properties", "events", "actions"],
            "status": "live" if td.get("skep:online", td.get("online")) is True else "disconnected",
        }

    async def _state(self, about: ThingAddress, caller: NodeSession, attribute: JSONValue) -> JSONValue:
        given: dict[str, JSONValue] = {"thingID": about.twin}
        if attribute is None:
            found = await self._call(caller.principal, VALUES, "readProperties", given)
            assert isinstance(found, dict)
            return {name: one["value"] for name, one in found.items() if isinstance(one, dict)}
        one = await self._call(caller.principal, VALUES, "readProperty", {**given, "name": attribute})
        assert isinstance(one, dict)
        return one["value"]

    async def _object(self, about: ThingAddress, caller: NodeSession) -> JSONValue:
        return {
            "url": f"{self.prefix}{about.agent}/{about.thing}",
            "reporter": about.agent,
            "data": await self._state(about, caller, None),
        }

    async def _call(self, principal: Principal, service: str, method: str, given: dict[str, JSONValue]) -> JSONValue:
        return await self._sink().call(principal, service, method, given, Origin(binding="node"))

    # ------------------------------------------------------------ requests and their statuses

    async def _ask(
        self,
        operation: Operation,
        about: ThingAddress,
        name: str,
        envelope: Envelope,
        caller: NodeSession,
        value: JSONValue,
    ) -> Body | None:
        sink = self._sink()
        reference = sink.new_id()
        # Statuses may come before the first is returned, and find the message they answer here.
        asking = caller.asked[reference] = Asking(envelope)
        confirmation = envelope.body.get("confirmation")
        given = "params" in envelope.body or "value" in envelope.body
        try:
            status = await sink.handle(
                Message(
                    operation=operation,
                    principal=caller.principal,
                    thing_id=about.twin,
                    name=name,
                    data=value,
                    has_data=given,
                    received=sink.clock(),
                    correlation=reference,
                    confirmation=confirmation if isinstance(confirmation, str) else None,
                    origin=Origin(binding="node", session_id=caller.session_id, source=caller.source),
                )
            )
        except BaseException:
            caller.asked.pop(reference, None)
            raise
        if reference in caller.asked and (status.is_final or status.seq == 0):
            del caller.asked[reference]
            return _body(status)
        # Recorded and waiting for its agent: the sender learns at once that it was taken, but once.
        return _body(status) if status.state is State.PENDING and not asking.is_notified else None

    def status(self, session: NodeSession, status: DeliveryStatus) -> None:
        """One step of a request: an answer to the message that asked for it, if it came this way."""
        reference = status.caller_ref or ""
        asking = session.asked.get(reference)
        if asking is None:
            return
        asking.is_notified = True
        if status.is_final:
            del session.asked[reference]
        self._reply(asking.envelope, session, _body(status))

    # ------------------------------------------------------------ observing

    def subscribe(self, address: str, session: NodeSession, on: bool) -> bool:
        """Subscribe or unsubscribe a session; False if the address is no Thing's. Raises Invalid, Forbidden,
        QueueFull."""
        about = self.parse(address)
        if about is None:
            return False
        if about.rest == "/changes":
            pattern = Pattern(about.agent, about.thing, Kind.PROPERTY, None)
        elif about.child:
            pattern = Pattern(about.agent, about.thing, Kind.EVENT, about.child)
        elif about.rest == "/subscription":
            return True
        else:
            raise Invalid(f"subscribe to {address[:80]}/changes")
        sessions = self._sink().sessions
        if on:
            sessions.subscribe(session, pattern, address)
        else:
            sessions.unsubscribe(session, pattern, address)
        return True

    def resumed(self, session: NodeSession) -> None:
        """Observe again what a session observed before."""
        for address in tuple(session.subscribed):
            if address.startswith(self.prefix):
                # Rights may have changed meanwhile; what is no longer permitted ends quietly here.
                with suppress(SkepError):
                    self.subscribe(address, session, True)

    def publication(self, session: NodeSession, publication: Publication, tags: Sequence[object]) -> None:
        """One value or event on its way to a session."""
        self._sent += 1
        url = self.address_of(publication.twin)
        is_property = publication.kind is Kind.PROPERTY
        sessions, rights = self._sink().sessions, self._sink().sessions.rights
        about = (publication.thing_id, publication.kind, publication.name)

        def permitted(_session: NodeSession) -> bool:
            is_judged = rights is not None and rights == sessions.rights
            return is_judged or sessions.may_see(session.principal, *about)

        body: dict[str, JSONValue] = {"value": publication.value, "lastModified": rfc3339(publication.created)}
        for tag in tags:
            document: Document = {
                "id": self._sent,
                "type": "update" if is_property else "create",
                "from": url,
                "to": str(tag),
                "body": {"attribute": publication.name, **body} if is_property else body,
            }
            session.put_from(Item(encode(document), permitted, publication.twin.account, is_news=True))


def _body(status: DeliveryStatus) -> Mapping[str, JSONValue]:
    value: dict[str, JSONValue] = {"requestID": status.request_id, "state": status.state.value}
    if status.output is not None:
        value["output"] = status.output
    if status.progress is not None:
        value["progress"] = status.progress
    if not status.is_final:
        return {"code": 100, "value": value}
    if status.is_success:
        return {"code": 200, "value": value}
    if status.state is State.COMPLETED:
        return {**refusal(500, status.error or "refused by the device"), "value": value}
    code = CODES.get(status.reason or "", 409 if status.state is State.CANCELLED else 400)
    return {**refusal(code, status.error or f"the request ended {status.state}"), "value": value}
