"""The consumer's operations: read, write, observe, invoke, query, cancel and subscribe, for one socket.

Reads and listings are calls of the built-in services, so that rights are decided where they are for every binding.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bindings.websocket.messages import Incoming
from bindings.websocket.problems import failure
from runtime.ports import Pattern
from things.addresses import Kind, TwinID, is_twin
from things.delivery import DeliveryStatus, Reason, State
from things.documents import WOT_STATE
from things.errors import Invalid, SkepError, TimedOut, UnknownName, UnknownRequest, UnknownThing
from things.messages import JSONValue, Operation
from things.td import ThingDescription
from things.times import parse_time, rfc3339

if TYPE_CHECKING:
    from bindings.websocket.connection import Connection

DIRECTORY = "dtw:directory:things"
VALUES = "dtw:values:latest"
REQUESTS = "dtw:skep:requests"
_LISTED = 1_000
"""How many invocations an answer to queryallactions holds, the newest."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one observe or subscribe request asked for; the tag by which the register names it."""

    thing_id: str
    kind: Kind
    name: str | None
    operation: str
    correlation_id: str | None


@dataclass(slots=True)
class _Invocation:
    """An action that this socket invoked, until it ends. Statuses that come before the answer are held."""

    request: Incoming
    requested: int
    answered: bool = False
    held: list[DeliveryStatus] = field(default_factory=list)


class Consuming:
    """One client as a consumer of Things."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._subscriptions: dict[tuple[str, Kind, str | None], Subscription] = {}
        self._invoked: OrderedDict[str, _Invocation] = OrderedDict()
        self._reports = False
        self._operations: Mapping[str, Callable[[Incoming], Awaitable[None]]] = {
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
            "invokeaction": self._invoke,
            "queryaction": self._query,
            "queryallactions": self._query_all,
            "cancelaction": self._cancel,
            "callrpc": self._call,
        }

    async def handle(self, message: Incoming) -> None:
        """Carry out one request and answer it; raises SkepError."""
        operation = self._operations.get(message.operation)
        if operation is None:
            raise Invalid(f"unknown operation {message.operation!r}")
        if not message.thing_id:
            raise Invalid("a message needs the member 'thingID', a text")
        await operation(message)

    # ------------------------------------------------------------ properties

    async def _read(self, message: Incoming) -> None:
        found = await self._connection.call(VALUES, "readProperty", thingID=message.thing_id, name=message.text("name"))
        self._connection.answer(message, at=parse_time(found["created"]), value=found["value"])

    async def _read_several(self, message: Incoming) -> None:
        found = await self._connection.call(VALUES, "readProperties", thingID=message.thing_id)
        if message.operation == "readmultipleproperties":
            wanted = message.texts("names")
            for name in wanted:
                if name not in found:
                    # Says by itself whether the name is unknown, hidden or without a value.
                    await self._connection.call(VALUES, "readProperty", thingID=message.thing_id, name=name)
            found = {name: found[name] for name in wanted if name in found}
        self._connection.answer(message, values={name: value["value"] for name, value in found.items()})

    async def _write(self, message: Incoming) -> None:
        """With `value` once the agent has confirmed it within the wait, else with the status so far."""
        value = message.value("value")
        status = await self._written(message, message.text("name"), value, _reference(message))
        final = await self._final(status, self._wait(message, self._connection.limits.default_wait_s))
        error = failure(final)
        if error is not None:
            self._connection.answer(message, error={**error, "requestID": final.request_id})
        elif final.is_final:
            self._connection.answer(message, value=value)
        else:
            self._connection.answer(message, status=_status(final, None))

    async def _write_several(self, message: Incoming) -> None:
        """All are checked against the TD before the first is sent; then each is a request of its own."""
        values = message.object("values")
        td = ThingDescription.of(await self._td(message))
        for name, value in values.items():
            if name not in td.properties:
                raise UnknownName(message.thing_id, Kind.PROPERTY, name)
            td.check_property_write(name, value)
        reference = _reference(message)
        statuses = {
            name: await self._written(message, name, value, reference and f"{reference[:100]}.{number}")
            for number, (name, value) in enumerate(values.items())
        }
        until = self._connection.sink.clock() + self._wait(message, self._connection.limits.default_wait_s) * 1e6
        confirmed: dict[str, JSONValue] = {}
        for name, status in statuses.items():
            left_s = max(0.0, (until - self._connection.sink.clock()) / 1e6)
            final = await self._final(status, left_s)
            error = failure(final)
            if error is not None:
                self._connection.answer(message, error={**error, "detail": f"{name}: {error['detail']}"})
                return
            if final.is_final:
                confirmed[name] = values[name]
        self._connection.answer(message, values=confirmed)

    async def _written(self, message: Incoming, name: str, value: JSONValue, reference: str | None) -> DeliveryStatus:
        connection = self._connection
        return await connection.sink.handle(
            connection.message(
                Operation.WRITE_PROPERTY,
                message.thing_id,
                name,
                value,
                expires_in_s=message.seconds("expiresIn"),
                correlation=reference,
                confirmation=message.confirmation,
            )
        )

    # ------------------------------------------------------------ subscriptions

    async def _subscribe(self, message: Incoming) -> None:
        kind, name = _subject(message)
        if not is_twin(message.thing_id):
            raise UnknownThing(message.thing_id)
        twin = TwinID.parse(message.thing_id)
        td = await self._td(message)
        if name is not None and name not in td.get("properties" if kind is Kind.PROPERTY else "events", {}):
            raise UnknownName(message.thing_id, kind, name)
        key = (message.thing_id, kind, name)
        subscription = Subscription(message.thing_id, kind, name, message.operation, message.correlation_id)
        sessions, pattern = self._connection.sink.sessions, Pattern(twin.account, twin.thing, kind, name)
        standing = self._subscriptions.pop(key, None)
        if standing is not None:
            sessions.unsubscribe(self._connection, pattern, standing)
        sessions.subscribe(self._connection, pattern, subscription)
        self._subscriptions[key] = subscription
        self._connection.answer(message)

    async def _unsubscribe(self, message: Incoming) -> None:
        """Nothing to end is a success: the outcome is what was asked for."""
        kind, name = _subject(message)
        for key, subscription in list(self._subscriptions.items()):
            if key[:2] == (message.thing_id, kind) and name in (None, key[2]):
                del self._subscriptions[key]
                twin = TwinID.parse(message.thing_id)
                pattern = Pattern(twin.account, twin.thing, kind, key[2])
                self._connection.sink.sessions.unsubscribe(self._connection, pattern, subscription)
        self._connection.answer(message)

    # ------------------------------------------------------------ actions

    async def _invoke(self, message: Incoming) -> None:
        """The status at once; with `wait` (seconds) the output, if it is there within the wait. Further statuses come
        as notifications of the same correlationID."""
        connection = self._connection
        wait_s = self._wait(message, 0.0)
        reference = _reference(message)
        invocation = _Invocation(message, connection.sink.clock())
        self._follow(reference, invocation)
        try:
            status = await connection.sink.handle(
                connection.message(
                    Operation.INVOKE_ACTION,
                    message.thing_id,
                    message.text("name"),
                    message.members.get("input"),
                    has_data="input" in message.members,
                    expires_in_s=message.seconds("expiresIn"),
                    correlation=reference,
                    confirmation=message.confirmation,
                )
            )
            if wait_s:
                status = await self._final(status, wait_s)
        except SkepError:
            self._invoked.pop(reference, None)
            raise
        error = failure(status)
        if status.is_final and (wait_s or not status.seq):
            self._invoked.pop(reference, None)
            if error is not None:
                connection.answer(message, error={**error, "requestID": status.request_id})
            else:
                connection.answer(message, output=status.output)
            return
        connection.answer(message, status=_status(status, invocation.requested))
        invocation.answered = True
        for held in invocation.held:
            if held.seq > status.seq:
                self.report(held)
        if status.is_final:
            self._invoked.pop(reference, None)

    def _follow(self, reference: str, invocation: _Invocation) -> None:
        if not self._reports:
            self._reports = True
            self._connection.sink.sessions.take_reports(self._connection)
        self._invoked[reference] = invocation
        if len(self._invoked) > self._connection.limits.max_followed:
            self._invoked.popitem(last=False)

    def report(self, status: DeliveryStatus) -> bool:
        """Tell a later status of an action that this socket invoked; others are found by queryaction."""
        reference = status.caller_ref
        invocation = self._invoked.get(reference) if reference else None
        if reference is None or invocation is None:
            return True
        if not invocation.answered:
            invocation.held.append(status)
            return True
        if not self._connection.notify(invocation.request, status=_status(status, invocation.requested)):
            return False
        if status.is_final:
            self._invoked.pop(reference, None)
        return True

    async def _query(self, message: Incoming) -> None:
        row = await self._row(message)
        self._connection.answer(message, name=row["name"], status=_row_status(row))

    async def _query_all(self, message: Incoming) -> None:
        td = await self._td(message)
        found: dict[str, list[JSONValue]] = {name: [] for name in td.get("actions", {})}
        page = await self._connection.call(
            REQUESTS, "listRequests", thing=message.thing_id, operation="invoke_action", limit=_LISTED
        )
        for row in page["items"]:
            found.setdefault(row["name"], []).append(_row_status(row))
        statuses: dict[str, JSONValue] = {**found}
        self._connection.answer(message, statuses=statuses)

    async def _cancel(self, message: Incoming) -> None:
        row = await self._row(message)
        connection = self._connection
        await connection.sink.handle(connection.message(Operation.CANCEL, "", row["requestID"], has_data=False))
        connection.answer(message, actionID=row["requestID"])

    async def _call(self, message: Incoming) -> None:
        """Call a method and wait for its output: never queued, so an absent agent is an error at once."""
        connection = self._connection
        status = await connection.sink.handle(
            connection.message(
                Operation.CALL_RPC,
                message.thing_id,
                message.text("name"),
                message.members.get("input"),
                has_data="input" in message.members,
                correlation=_reference(message),
                confirmation=message.confirmation,
            )
        )
        final = await self._final(status, self._wait(message, connection.limits.max_wait_s))
        error = failure(final)
        if error is not None:
            connection.answer(message, error=error)
        elif not final.is_final:
            raise TimedOut
        else:
            connection.answer(message, output=final.output)

    # ------------------------------------------------------------ private

    async def _td(self, message: Incoming) -> dict[str, Any]:
        """The TD as this client may see it; raises UnknownThing."""
        td = await self._connection.call(DIRECTORY, "readTD", thingID=message.thing_id)
        if not isinstance(td, dict):
            raise UnknownThing(message.thing_id)
        return td

    async def _row(self, message: Incoming) -> dict[str, Any]:
        action_id = message.text("actionID")
        row: dict[str, Any] = await self._connection.call(REQUESTS, "readRequest", requestID=action_id)
        if row["thingID"] != message.thing_id:
            raise UnknownRequest(action_id)
        return row

    async def _final(self, status: DeliveryStatus, wait_s: float) -> DeliveryStatus:
        if status.is_final or not wait_s:
            return status
        return await self._connection.sink.final(status.request_id, wait_s) or status

    def _wait(self, message: Incoming, default_s: float) -> float:
        wait_s = message.seconds("wait")
        return default_s if wait_s is None else min(wait_s, self._connection.limits.max_wait_s)


def _subject(message: Incoming) -> tuple[Kind, str | None]:
    """What an observe or subscribe operation is about; None for all of the kind."""
    kind = Kind.PROPERTY if "observe" in message.operation else Kind.EVENT
    return kind, None if "all" in message.operation else message.text("name")


def _reference(message: Incoming) -> str:
    """The caller's reference: a repeated operation is recognised by its correlationID, or its messageID."""
    return message.correlation_id or message.message_id


def _status(status: DeliveryStatus, requested: int | None) -> dict[str, JSONValue]:
    """An ActionStatus, with our state beside it."""
    error = failure(status)
    found: dict[str, JSONValue] = {
        "actionID": status.request_id,
        "state": "failed" if error is not None else WOT_STATE[status.state],
        "deliveryState": status.state.value,
    }
    if requested is not None:
        found["timeRequested"] = rfc3339(requested)
    if status.is_final and status.updated:
        found["timeEnded"] = rfc3339(status.updated)
    if status.progress is not None:
        found["progress"] = status.progress
    if status.output is not None:
        found["output"] = status.output
    if error is not None:
        found["error"] = error
    return found


def _row_status(row: Mapping[str, Any]) -> dict[str, JSONValue]:
    status = DeliveryStatus(
        request_id=row["requestID"],
        state=State(row["state"]),
        caller_ref=row.get("callerRef"),
        reason=Reason(row["reason"]) if row.get("reason") else None,
        error=row.get("error"),
        output=row.get("output"),
        progress=row.get("progress"),
        seq=row["seq"],
        updated=parse_time(row["updated"]),
    )
    return _status(status, parse_time(row["created"]))
