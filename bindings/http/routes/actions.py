"""Actions and RPC: invoke, ask, cancel; the W3C HTTP Basic Profile's asynchronous actions over our ledger."""

from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.documents import action_href, action_status
from bindings.http.exchange import JSON, Exchange, json_reply, no_content
from bindings.http.problems import unsuccessful
from bindings.http.routing import Documented, Route
from things.addresses import encode_segment
from things.delivery import DeliveryStatus
from things.documents import status_of
from things.errors import TimedOut, UnknownRequest
from things.messages import Operation


def routes() -> list[Route]:
    one = "/things/{id}/actions/{name}"
    request = f"{one}/{{requestID}}"
    listing = Documented(tag="actions", query=("cursor", "limit"), answers={200: JSON})
    return [
        Route("POST", one, _invoke, "Invoke the action", documented=_INVOKE),
        Route("GET", one, _list_one, "Requests for this action, newest first", documented=listing),
        Route("GET", "/things/{id}/actions", _list_all, "Requests for all actions, by name", documented=listing),
        Route("GET", request, _query, "The status of one invocation", documented=listing),
        Route("DELETE", request, _cancel, "Cancel one invocation", documented=Documented(tag="actions")),
        Route("POST", "/rpc/{id}/{method}", _call, "Call a method and wait for its output", documented=_RPC),
    ]


_INVOKE = Documented(tag="actions", body=JSON, answers={200: JSON, 201: JSON, 204: ""})
_RPC = Documented(tag="rpc", body=JSON, answers={200: JSON, 502: "", 503: "", 504: ""})


async def _invoke(exchange: Exchange) -> ASGIApp:
    """201 with the ActionStatus at once; the output with `Prefer: wait=N`, if it is final within the wait, and from
    built-in services, whose actions are synchronous."""
    thing_id, name = exchange.params["id"], exchange.params["name"]
    value, has_data = await exchange.optional_json()
    message = exchange.message(
        Operation.INVOKE_ACTION,
        thing_id,
        name,
        value,
        has_data=has_data,
        expires_in_s=exchange.expires_in(),
        correlation=exchange.idempotency_key(),
    )
    sink, wait_s = exchange.context.sink, exchange.prefer_wait()
    status = await sink.handle(message)
    if wait_s is not None:
        if not status.is_final:
            status = await sink.final(status.request_id, wait_s) or status
        if status.is_final:
            reply = unsuccessful(status) or _output(status)
            reply.headers["preference-applied"] = f"wait={wait_s:g}"
            if status.seq:
                reply.headers["location"] = action_href(thing_id, name, status.request_id)
            return reply
    elif status.is_final and not status.seq:
        # Ended without a row, as those of built-in services do: there is nothing a location could name.
        return unsuccessful(status) or _output(status)
    href = action_href(thing_id, name, status.request_id)
    return json_reply(action_status(status, href=href), 201, location=href)


async def _query(exchange: Exchange) -> ASGIApp:
    row = await _row(exchange)
    return json_reply(_status(row))


async def _cancel(exchange: Exchange) -> ASGIApp:
    row = await _row(exchange)
    await exchange.context.sink.handle(exchange.message(Operation.CANCEL, "", row["requestID"], has_data=False))
    return no_content()


async def _list_one(exchange: Exchange) -> ASGIApp:
    found = await _rows(exchange, exchange.params["name"])
    items = [_status(row) for row in found["items"]]
    reply: dict[str, Any] = {"items": items}
    if found.get("cursor"):
        reply["cursor"] = found["cursor"]
    return json_reply(reply)


async def _list_all(exchange: Exchange) -> ASGIApp:
    """An object keyed by action name, arrays newest first (W3C queryallactions)."""
    td = await service_calls.td(exchange, exchange.params["id"])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in td.get("actions", {})}
    page = await _rows(exchange, None)
    for row in page["items"]:
        found.setdefault(row["name"], []).append(_status(row))
    reply = json_reply(found)
    if page.get("cursor"):
        path = f"/things/{encode_segment(exchange.params['id'])}/actions"
        reply.headers["link"] = f'<{path}?cursor={encode_segment(page["cursor"])}>; rel="next"'
    return reply


async def _call(exchange: Exchange) -> ASGIApp:
    """The output, once the agent has answered; never queued."""
    thing_id, method = exchange.params["id"], exchange.params["method"]
    value, has_data = await exchange.optional_json()
    message = exchange.message(
        Operation.CALL_RPC, thing_id, method, value, has_data=has_data, correlation=exchange.idempotency_key()
    )
    sink, wait_s = exchange.context.sink, exchange.prefer_wait()
    status = await sink.handle(message)
    if not status.is_final:
        final = await sink.final(status.request_id, exchange.context.config.max_wait_s if wait_s is None else wait_s)
        if final is None:
            raise TimedOut
        status = final
    return unsuccessful(status) or json_reply(status.output)


def _output(status: DeliveryStatus) -> Response:
    return no_content() if status.output is None else json_reply(status.output)


async def _rows(exchange: Exchange, name: str | None) -> dict[str, Any]:
    config = exchange.context.config
    return await service_calls.requests(
        exchange,
        thing=exchange.params["id"],
        name=name,
        operation=Operation.INVOKE_ACTION.value,
        cursor=exchange.one("cursor"),
        limit=exchange.number("limit", least=1, most=config.max_page_items) or config.page_items,
    )


async def _row(exchange: Exchange) -> dict[str, Any]:
    """The ledger row that the path names, if it is of this Thing and action."""
    request_id = exchange.params["requestID"]
    row = await service_calls.request(exchange, request_id)
    if row["thingID"] != exchange.params["id"] or row["name"] != exchange.params["name"]:
        raise UnknownRequest(request_id)
    return row


def _status(row: dict[str, Any]) -> dict[str, Any]:
    href = action_href(row["thingID"], row["name"], row["requestID"])
    return action_status(status_of(row), href=href)
