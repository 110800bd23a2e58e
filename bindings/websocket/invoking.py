"""The consumer's requests: invoke, call, query, cancel, and the statuses that come of them, for one socket.

Statuses are told to the socket that invoked, joined to the invocation by its correlationID; a socket that asks for its
account's inbox is told of all requests, those made elsewhere and those it missed.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bindings.websocket.client import Client
from bindings.websocket.messages import WebThingMessage
from things.bounded import Recent
from things.delivery import DeliveryStatus
from things.documents import action_progress, status_document, status_of, wot_state
from things.errors import SkepError, TimedOut, UnknownRequest
from things.messages import JSONValue, Operation
from things.problems import failure
from things.service_ids import REQUESTS
from things.times import rfc3339

Operate = Callable[[WebThingMessage], Awaitable[None]]
"""Carries out one request and answers it; raises SkepError."""

_LISTED = 1_000
"""How many invocations an answer to queryallactions holds, the newest."""


@dataclass(slots=True)
class _Invocation:
    """An action that this socket invoked, until it ends. Statuses that come before the answer are held."""

    request: WebThingMessage
    answered: bool = False
    told: int = 0
    """The seq of the last status told, so that a replay tells none twice."""
    held: list[DeliveryStatus] = field(default_factory=list)


@dataclass(slots=True)
class _Inbox:
    """The request by which this socket asked for all statuses of its account's requests, and the last one told."""

    request: WebThingMessage
    told: int


class Invoking:
    """One client as the caller of actions and methods."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._invoked = Recent[str, _Invocation](client.limits.max_followed)
        self._reports = False
        self._inbox: _Inbox | None = None
        self.operations: Mapping[str, Operate] = {
            "invokeaction": self._invoke,
            "queryaction": self._query,
            "queryallactions": self._query_all,
            "cancelaction": self._cancel,
            "callrpc": self._call,
            "subscribeinbox": self._subscribe_inbox,
            "unsubscribeinbox": self._unsubscribe_inbox,
        }

    async def _invoke(self, message: WebThingMessage) -> None:
        """The status at once; with `wait` (seconds) the output, if it is there within the wait. Further statuses come
        as notifications of the same correlationID."""
        client = self._client
        wait_s = self._client.wait_of(message, 0.0)
        reference = message.reference
        invocation = _Invocation(message)
        self._follow(reference, invocation)
        try:
            status = await client.sink.handle(
                client.message(
                    Operation.INVOKE_ACTION,
                    message.thing_id,
                    message.name,
                    message.members.get("input"),
                    has_data="input" in message.members,
                    expires_in_s=message.seconds("expiresIn"),
                    correlation=reference,
                    of=message,
                )
            )
            if wait_s:
                status = await self._client.final(status, wait_s)
        except SkepError:
            self._invoked.pop(reference, None)
            raise
        error = failure(status)
        if status.is_final and (wait_s or not status.seq):
            self._invoked.pop(reference, None)
            if error is not None:
                client.answer(message, error={**error, "requestID": status.request_id})
            else:
                client.answer(message, output=status.output)
            return
        client.answer(message, status=action_status(status))
        invocation.answered, invocation.told = True, status.seq
        for held in invocation.held:
            self._tell_caller(held)
        if status.is_final:
            self._invoked.pop(reference, None)

    def _follow(self, reference: str, invocation: _Invocation) -> None:
        if not self._reports:
            self._reports = True
            self._client.sink.sessions.take_reports(self._client)
        self._invoked[reference] = invocation

    # ------------------------------------------------------------ statuses

    async def _subscribe_inbox(self, message: WebThingMessage) -> None:
        """All statuses of the account's own requests from now on, or those after a seq, also of requests made
        elsewhere: first what was missed, in order, then what comes."""
        after = message.counter("after")
        sessions = self._client.sink.sessions
        self._client.answer(message)
        self._inbox = _Inbox(message, 0 if after is None else after)
        self._reports = True
        sessions.take_reports(self._client, after)

    async def _unsubscribe_inbox(self, message: WebThingMessage) -> None:
        self._inbox = None
        self._client.answer(message)

    def report(self, status: DeliveryStatus) -> bool:
        """Tell a status to whom it concerns here; False if the client does not keep up, and is to be told again."""
        return self._tell_inbox(status) and self._tell_caller(status)

    def _tell_inbox(self, status: DeliveryStatus) -> bool:
        inbox = self._inbox
        if inbox is None or status.seq <= inbox.told:
            return True  # not asked for, without a row, or told before
        if not self._client.notify(inbox.request, status=status_document(status)):
            return False
        inbox.told = status.seq
        return True

    def _tell_caller(self, status: DeliveryStatus) -> bool:
        """A later status of an action that this socket invoked; others are found by queryaction."""
        reference = status.caller_ref
        invocation = self._invoked.get(reference) if reference else None
        if reference is None or invocation is None:
            return True
        if not invocation.answered:
            invocation.held.append(status)
            return True
        if status.seq <= invocation.told:
            return True
        if not self._client.notify(invocation.request, status=action_status(status)):
            return False
        invocation.told = status.seq
        if status.is_final:
            self._invoked.pop(reference, None)
        return True

    async def _query(self, message: WebThingMessage) -> None:
        row = await self._row(message)
        self._client.answer(message, name=row["name"], status=action_status(status_of(row)))

    async def _query_all(self, message: WebThingMessage) -> None:
        td = await self._client.td(message.thing_id)
        found: dict[str, list[JSONValue]] = {name: [] for name in td.get("actions", {})}
        page = await self._client.call(
            REQUESTS, "listRequests", thing=message.thing_id, operation="invoke_action", limit=_LISTED
        )
        for row in page["items"]:
            found.setdefault(row["name"], []).append(action_status(status_of(row)))
        statuses: dict[str, JSONValue] = {**found}
        self._client.answer(message, statuses=statuses)

    async def _cancel(self, message: WebThingMessage) -> None:
        row = await self._row(message)
        client = self._client
        await client.sink.handle(client.message(Operation.CANCEL, "", row["requestID"], has_data=False))
        client.answer(message, actionID=row["requestID"])

    async def _call(self, message: WebThingMessage) -> None:
        """Call a method and wait for its output: never queued, so an absent agent is an error at once."""
        client = self._client
        status = await client.sink.handle(
            client.message(
                Operation.CALL_RPC,
                message.thing_id,
                message.name,
                message.members.get("input"),
                has_data="input" in message.members,
                correlation=message.reference,
                of=message,
            )
        )
        final = await self._client.final(status, self._client.wait_of(message, client.limits.max_wait_s))
        error = failure(final)
        if error is not None:
            client.answer(message, error=error)
        elif not final.is_final:
            raise TimedOut
        else:
            client.answer(message, output=final.output)

    async def _row(self, message: WebThingMessage) -> dict[str, Any]:
        action_id = message.text("actionID")
        row: dict[str, Any] = await self._client.call(REQUESTS, "readRequest", requestID=action_id)
        if row["thingID"] != message.thing_id:
            raise UnknownRequest(action_id)
        return row


def action_status(status: DeliveryStatus) -> dict[str, JSONValue]:
    """An ActionStatus, with our state beside it."""
    return {
        "actionID": status.request_id,
        "state": wot_state(status),
        "deliveryState": status.state.value,
        **({"timeRequested": rfc3339(status.requested)} if status.requested else {}),
        **action_progress(status),
    }
