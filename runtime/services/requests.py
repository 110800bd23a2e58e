"""The built-in service `dtw:skep:requests`: the ledger and the caller's inbox, over every binding.

Everyone may ask for their own requests; a manager may ask for all but those of Things hidden from them.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from runtime.ports import Authorizer, Ledger, LedgerQuery, LedgerRow
from runtime.requests.handler import may_manage
from things.addresses import Address
from things.delivery import State
from things.documents import request_document, status_document
from things.errors import BadCursor, Invalid, UnknownRequest
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Counter, Input, Instant, Method, MethodService, Text
from things.service_ids import REQUESTS
from things.vocabulary import ServiceType

MAX_PAGE = 1_000

Page = Annotated[int, Field(ge=1, le=MAX_PAGE)]
_ID_CHARS = 36
"""Of a request id, which is what a cursor is."""
_STATE = {"type": "string", "enum": list(State)}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ListRequests(Input):
    """Which requests: of a Thing, a caller, a name, an operation, in one state or several, made in a time."""

    thing: Text | None = None
    caller: Text | None = None
    name: Text | None = None
    operation: Literal["invoke_action", "write_property"] | None = None
    state: Annotated[
        list[Annotated[State, Field(strict=False)]],
        BeforeValidator(_listed),
        WithJsonSchema({"oneOf": [_STATE, {"type": "array", "items": _STATE}]}),
        Field(default_factory=list),
    ]
    start: Annotated[Instant | None, Field(alias="from")] = None
    end: Annotated[Instant | None, Field(alias="to")] = None
    cursor: Text | None = None
    limit: Page = 100


class ReadRequest(Input):
    """The runtime's own id of the request, or the reference that its caller gave it: `caller`, who asks if none is
    named."""

    request_id: Text | None = None
    caller_ref: Text | None = None
    caller: Text | None = None


class ReadInbox(Input):
    """Statuses with a higher number than `after`."""

    after: Counter = 0
    limit: Page = 100


class RequestsService(MethodService):
    """Methods listRequests, readRequest, readInbox: own requests are everyone's to read, and which rows are the
    caller's is decided here."""

    def __init__(self, ledger: Ledger, authorizer: Authorizer) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        super().__init__(
            REQUESTS,
            Operation.READ,
            [
                Method(
                    name="listRequests",
                    title="List requests, newest first",
                    input=ListRequests,
                    run=self._list,
                    safe=True,
                ),
                Method(name="readRequest", title="Read one request", input=ReadRequest, run=self._read, safe=True),
                Method(
                    name="readInbox",
                    title="Read statuses of one's own requests",
                    input=ReadInbox,
                    run=self._inbox,
                    safe=True,
                ),
            ],
            type_=ServiceType.REQUEST_LEDGER,
            title="Requests",
            description="Actions and property writes with their whole life.",
        )

    async def _read(self, given: ReadRequest, principal: Principal) -> JSONValue:
        return request_document(await self._one(given, principal))

    async def _inbox(self, given: ReadInbox, principal: Principal) -> JSONValue:
        statuses = await self._ledger.inbox(
            principal.account, after=given.after, limit=given.limit, since=principal.since
        )
        return {"items": [status_document(status) for status in statuses]}

    async def _list(self, given: ListRequests, principal: Principal) -> JSONValue:
        manages = self._authorizer.decide(principal, Operation.MANAGE, Address(self.thing_id)).is_free
        caller = given.caller
        if not manages:
            if caller not in (None, principal.account):
                return {"items": []}
            caller = principal.account
        if given.cursor is not None and len(given.cursor) != _ID_CHARS:
            raise BadCursor(given.cursor)
        rows = await self._ledger.query(
            LedgerQuery(
                caller=caller,
                thing_id=given.thing,
                name=given.name,
                operation=None if given.operation is None else Operation(given.operation),
                states=given.state,
                start=given.start,
                end=given.end,
                before=given.cursor,
                limit=given.limit,
            )
        )
        # A page may be short: what is hidden must not show in how many others there are.
        page: dict[str, JSONValue] = {"items": [request_document(row) for row in rows if self._may_see(principal, row)]}
        if len(rows) == given.limit:
            page["cursor"] = rows[-1].request_id
        return page

    async def _one(self, given: ReadRequest, principal: Principal) -> LedgerRow:
        request_id, reference = given.request_id, given.caller_ref
        if request_id is not None:
            row = await self._ledger.get(request_id)
        elif reference is not None:
            row = await self._ledger.by_reference(given.caller or principal.account, reference)
        else:
            raise Invalid("give `requestID` or `callerRef`")
        if row is None or not self._may_see(principal, row):
            raise UnknownRequest(request_id or reference or "")
        return row

    def _may_see(self, principal: Principal, row: LedgerRow) -> bool:
        if row.is_asked_by(principal) or principal.account == row.agent:
            return True
        return may_manage(self._authorizer, principal, row.thing_id)
