"""The consumer's operations on properties and events: read, write, observe and subscribe, for one socket.

Reads and listings are calls of the built-in services, so that rights are decided where they are for every binding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bindings.websocket.client import Client
from bindings.websocket.invoking import Operate, action_status
from bindings.websocket.messages import WebThingMessage
from runtime.ports import Pattern
from things.addresses import Kind, TwinID, is_twin
from things.delivery import DeliveryStatus
from things.errors import Invalid, UnknownName, UnknownThing
from things.messages import JSONValue, Operation
from things.problems import failure
from things.service_ids import VALUES
from things.td import ThingDescription
from things.times import parse_time


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one observe or subscribe request asked for; the tag by which the register names it."""

    thing_id: str
    kind: Kind
    name: str | None
    operation: str
    correlation_id: str | None


class Consuming:
    """One client as a consumer of Things."""

    def __init__(self, client: Client, operations: Mapping[str, Operate]) -> None:
        """`operations` are those that other parts carry out."""
        self._client = client
        self._subscriptions: dict[tuple[str, Kind, str | None], Subscription] = {}
        self._operations: Mapping[str, Operate] = {
            **operations,
            "readproperty": self._read,
            "readmultipleproperties": self._read_several,
            "readallproperties": self._read_several,
            "writeproperty": self._write,
            "writemultipleproperties": self._write_several,
            "writeallproperties": self._write_several,
            "observeproperty": self._subscribe,
            "observeallproperties": self._subscribe,
            "subscribeevent": self._subscribe,
            "subscribeallevents": self._subscribe,
            "unobserveproperty": self._unsubscribe,
            "unobserveallproperties": self._unsubscribe,
            "unsubscribeevent": self._unsubscribe,
            "unsubscribeallevents": self._unsubscribe,
        }

    async def handle(self, message: WebThingMessage) -> None:
        """Carry out one request and answer it; raises SkepError."""
        operation = self._operations.get(message.operation)
        if operation is None:
            raise Invalid(f"unknown operation {message.operation!r}")
        if not message.thing_id:
            raise Invalid("a message needs the member 'thingID', a text")
        await operation(message)

    # ------------------------------------------------------------ properties

    async def _read(self, message: WebThingMessage) -> None:
        found = await self._client.call(VALUES, "readProperty", thingID=message.thing_id, name=message.text("name"))
        self._client.answer(message, at=parse_time(found["created"]), value=found["value"])

    async def _read_several(self, message: WebThingMessage) -> None:
        found = await self._client.call(VALUES, "readProperties", thingID=message.thing_id)
        if message.operation == "readmultipleproperties":
            wanted = message.texts("names")
            for name in wanted:
                if name not in found:
                    # Says by itself whether the name is unknown, hidden or without a value.
                    await self._client.call(VALUES, "readProperty", thingID=message.thing_id, name=name)
            found = {name: found[name] for name in wanted if name in found}
        self._client.answer(message, values={name: value["value"] for name, value in found.items()})

    async def _write(self, message: WebThingMessage) -> None:
        """With `value` once the agent has confirmed it within the wait, else with the status so far."""
        value = message.members.get("value")
        status = await self._written(message, message.name, value, message.reference)
        final = await self._client.final(status, self._patience(message))
        error = failure(final)
        if error is not None:
            self._client.answer(message, error={**error, "requestID": final.request_id})
        elif final.is_final:
            self._client.answer(message, value=value)
        else:
            self._client.answer(message, status=action_status(final))

    async def _write_several(self, message: WebThingMessage) -> None:
        """All are checked against the TD before the first is sent; then each is a request of its own."""
        values = message.object("values")
        td = ThingDescription.of(await self._client.td(message.thing_id))
        for name, value in values.items():
            if name not in td.properties:
                raise UnknownName(message.thing_id, Kind.PROPERTY, name)
            td.check_property_write(name, value)
        reference = message.reference
        statuses = {
            name: await self._written(message, name, value, reference and f"{reference[:100]}.{number}")
            for number, (name, value) in enumerate(values.items())
        }
        until = self._client.sink.clock() + self._patience(message) * 1e6
        confirmed: dict[str, JSONValue] = {}
        for name, status in statuses.items():
            left_s = max(0.0, (until - self._client.sink.clock()) / 1e6)
            final = await self._client.final(status, left_s)
            error = failure(final)
            if error is not None:
                self._client.answer(message, error={**error, "detail": f"{name}: {error['detail']}"})
                return
            if final.is_final:
                confirmed[name] = values[name]
        self._client.answer(message, values=confirmed)

    async def _written(
        self, message: WebThingMessage, name: str, value: JSONValue, reference: str | None
    ) -> DeliveryStatus:
        client = self._client
        return await client.sink.handle(
            client.message(
                Operation.WRITE_PROPERTY,
                message.thing_id,
                name,
                value,
                has_data="value" in message.members or "values" in message.members,
                expires_in_s=message.seconds("expiresIn"),
                correlation=reference,
                of=message,
            )
        )

    def _patience(self, message: WebThingMessage) -> float:
        return self._client.wait_of(message, self._client.limits.default_wait_s)

    # ------------------------------------------------------------ subscriptions

    async def _subscribe(self, message: WebThingMessage) -> None:
        kind, name = _subject(message)
        if not is_twin(message.thing_id):
            raise UnknownThing(message.thing_id)
        twin = TwinID.parse(message.thing_id)
        td = await self._client.td(message.thing_id)
        if name is not None and name not in td.get("properties" if kind is Kind.PROPERTY else "events", {}):
            raise UnknownName(message.thing_id, kind, name)
        key = (message.thing_id, kind, name)
        subscription = Subscription(message.thing_id, kind, name, message.operation, message.correlation_id)
        sessions, pattern = self._client.sink.sessions, Pattern(twin.account, twin.thing, kind, name)
        standing = self._subscriptions.pop(key, None)
        if standing is not None:
            sessions.unsubscribe(self._client, pattern, standing)
        sessions.subscribe(self._client, pattern, subscription)
        self._subscriptions[key] = subscription
        self._client.answer(message)

    async def _unsubscribe(self, message: WebThingMessage) -> None:
        """Nothing to end is a success: the outcome is what was asked for."""
        kind, name = _subject(message)
        for key, subscription in list(self._subscriptions.items()):
            if key[:2] == (message.thing_id, kind) and name in (None, key[2]):
                del self._subscriptions[key]
                twin = TwinID.parse(message.thing_id)
                pattern = Pattern(twin.account, twin.thing, kind, key[2])
                self._client.sink.sessions.unsubscribe(self._client, pattern, subscription)
        self._client.answer(message)


def _subject(message: WebThingMessage) -> tuple[Kind, str | None]:
    """What an observe or subscribe operation is about; None for all of the kind."""
    kind = Kind.PROPERTY if "observe" in message.operation else Kind.EVENT
    return kind, None if "all" in message.operation else message.text("name")
