"""The built-in service `dtw:skep:requests`: the ledger and the caller's inbox, over every binding.

Everyone may ask for their own requests; whoever manages requests may ask for all.
"""

from collections.abc import Mapping
from typing import Any

from runtime.handlers.requests import REQUESTS
from runtime.ports import Authorizer, Ledger, LedgerQuery, LedgerRow
from things.addresses import Address, Kind
from things.delivery import State
from things.documents import request_document, status_document
from things.errors import BadCursor, Invalid, UnknownName, UnknownRequest
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.times import parse_time

MAX_PAGE = 1_000

_STRING = {"type": "string"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}


def _action(title: str, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "title": title,
        "safe": True,
        "idempotent": True,
        "input": {"type": "object", "properties": dict(properties), "required": list(required)},
        "output": {"type": "object"},
    }


class RequestsService:
    """Methods listRequests, readRequest, readInbox."""

    thing_id = REQUESTS

    def __init__(self, ledger: Ledger, authorizer: Authorizer) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        self.td: dict[str, Any] = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": "skep:RequestLedger",
            "title": "Requests",
            "description": "Actions and property writes with their whole life.",
            "actions": {
                "listRequests": _action(
                    "List requests, newest first",
                    {
                        "thing": _STRING,
                        "caller": _STRING,
                        "name": _STRING,
                        "operation": {"enum": ["invoke_action", "write_property"]},
                        "state": {"oneOf": [_STRING, {"type": "array", "items": _STRING}]},
                        "from": _STRING,
                        "to": _STRING,
                        "cursor": _STRING,
                        "limit": _LIMIT,
                    },
                ),
                "readRequest": _action("Read one request", {"requestID": _STRING, "callerRef": _STRING}),
                "readInbox": _action(
                    "Read statuses of one's own requests", {"after": {"type": "integer", "minimum": 0}, "limit": _LIMIT}
                ),
            },
        }

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """Own requests are everyone's to read; which rows are the caller's is decided in `call`."""
        if name not in self.td["actions"]:
            raise UnknownName(self.thing_id, Kind.ACTION, name)
        return Operation.READ, Address(self.thing_id, Kind.ACTION, name)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        given = data if isinstance(data, dict) else {}
        if data is not None and not isinstance(data, dict):
            raise Invalid("the input is an object")
        match name:
            case "listRequests":
                return await self._list(given, principal)
            case "readRequest":
                return request_document(await self._one(given, principal))
            case "readInbox":
                after, limit = _count(given, "after", 0), _count(given, "limit", 100)
                statuses = await self._ledger.inbox(principal.account, after=after, limit=min(limit, MAX_PAGE))
                return {"items": [status_document(status) for status in statuses]}
            case _:
                raise UnknownName(self.thing_id, Kind.ACTION, name)

    async def _list(self, given: Mapping[str, JSONValue], principal: Principal) -> JSONValue:
        manages = self._authorizer.decide(principal, Operation.MANAGE, Address(self.thing_id)).is_free
        caller = _text(given, "caller")
        if not manages:
            if caller not in (None, principal.account):
                return {"items": []}
            caller = principal.account
        limit = min(_count(given, "limit", 100), MAX_PAGE)
        cursor = _text(given, "cursor")
        if cursor is not None and len(cursor) != 36:
            raise BadCursor(cursor)
        start, end, operation = _text(given, "from"), _text(given, "to"), _text(given, "operation")
        rows = await self._ledger.query(
            LedgerQuery(
                caller=caller,
                thing_id=_text(given, "thing"),
                name=_text(given, "name"),
                operation=_operation(operation) if operation else None,
                states=_states(given.get("state")),
                start=parse_time(start) if start else None,
                end=parse_time(end) if end else None,
                before=cursor,
                limit=limit,
            )
        )
        page: dict[str, JSONValue] = {"items": [request_document(row) for row in rows]}
        if len(rows) == limit:
            page["cursor"] = rows[-1].request_id
        return page

    async def _one(self, given: Mapping[str, JSONValue], principal: Principal) -> LedgerRow:
        request_id, reference = _text(given, "requestID"), _text(given, "callerRef")
        if request_id is not None:
            row = await self._ledger.get(request_id)
        elif reference is not None:
            row = await self._ledger.by_reference(principal.account, reference)
        else:
            raise Invalid("give `requestID` or `callerRef`")
        if row is None or not self._may_see(principal, row):
            raise UnknownRequest(request_id or reference or "")
        return row

    def _may_see(self, principal: Principal, row: LedgerRow) -> bool:
        if principal.account in (row.caller, row.agent):
            return True
        return self._authorizer.decide(principal, Operation.MANAGE, Address(self.thing_id)).is_free


def _text(given: Mapping[str, JSONValue], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"`{name}` is text")
    return value


def _count(given: Mapping[str, JSONValue], name: str, default: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Invalid(f"`{name}` is a whole number, not negative")
    return value


def _states(value: JSONValue) -> tuple[State, ...]:
    wanted = value if isinstance(value, list) else [] if value is None else [value]
    try:
        return tuple(State(str(state)) for state in wanted)
    except ValueError as error:
        raise Invalid(f"`state` is one of {', '.join(State)}") from error


def _operation(text: str) -> Operation:
    if text not in (Operation.INVOKE_ACTION, Operation.WRITE_PROPERTY):
        raise Invalid("`operation` is invoke_action or write_property")
    return Operation(text)
