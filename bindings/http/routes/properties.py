"""Properties: read the latest, write, observe."""

from typing import Any

from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.exchange import EVENT_STREAM, JSON, Exchange, json_reply, no_content
from bindings.http.problems import NotAcceptable, unsuccessful
from bindings.http.routes.streams import announce_poll, observe, poll_once
from bindings.http.routing import Documented, Route
from things.addresses import Kind
from things.errors import Invalid, NotFound, UnknownName
from things.messages import Message, Operation
from things.td import ThingDescription


def routes() -> list[Route]:
    one = "/things/{id}/properties/{name}"
    many = "/things/{id}/properties"
    return [
        Route("GET", one, _read, "Read the latest value, or observe it", documented=_READ),
        Route("PUT", one, _write, "Write the property", documented=_WRITE),
        Route("GET", many, _read_all, "Read all properties, or observe them", documented=_READ),
        Route("POST", many, _read_several, "Read the properties that a list names", documented=_READ_SEVERAL),
        Route("PUT", many, _write_several, "Write several properties", documented=_WRITE),
    ]


_READ = Documented(tag="properties", query=("wait", "sse", "latest", "asof", "lastEventID"), answers={200: JSON})
_READ_SEVERAL = Documented(tag="properties", body=JSON, answers={200: JSON})
_WRITE = Documented(tag="properties", body=JSON, answers={202: "", 204: ""})


async def _read(exchange: Exchange) -> ASGIApp:
    thing_id, name = exchange.params["id"], exchange.params["name"]
    then = exchange.moment("asof")
    if then is not None:
        _check_json(exchange)
        values = (await service_calls.thing_as_of(exchange, thing_id, then))["properties"]
        if name not in values:
            raise NotFound(f"property {name!r} had no value then")
        return json_reply(values[name]["value"])
    if exchange.accepts(EVENT_STREAM, explicitly=True):
        return await observe(exchange, thing_id, Kind.PROPERTY, name)
    wait_s = exchange.seconds("wait", exchange.context.config.max_long_poll_s)
    if wait_s is not None and exchange.is_head:
        # Clients of the longpoll subprotocol first ask whether the address answers at all.
        await service_calls.td(exchange, thing_id)
        announce_poll(exchange, thing_id, Kind.PROPERTY, name)
        return json_reply(None)
    if wait_s is not None:
        next_one = await poll_once(exchange, thing_id, Kind.PROPERTY, name, wait_s)
        if next_one is not None:
            return json_reply(next_one.value)
    _check_json(exchange)
    found = await service_calls.property_value(exchange, thing_id, name)
    return json_reply(found["value"])


async def _read_all(exchange: Exchange) -> ASGIApp:
    thing_id = exchange.params["id"]
    then = exchange.moment("asof")
    if then is not None:
        _check_json(exchange)
        values = (await service_calls.thing_as_of(exchange, thing_id, then))["properties"]
        return json_reply({name: value["value"] for name, value in values.items()})
    if exchange.accepts(EVENT_STREAM, explicitly=True):
        return await observe(exchange, thing_id, Kind.PROPERTY, None)
    _check_json(exchange)
    found = await service_calls.property_values(exchange, thing_id)
    return json_reply({name: value["value"] for name, value in found.items()})


async def _read_several(exchange: Exchange) -> ASGIApp:
    """An object of names and values, of the names that the body lists (readmultipleproperties)."""
    given = await exchange.json()
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if not names or names != given:
        raise Invalid("a list of property names is needed")
    _check_json(exchange)
    return json_reply(await service_calls.some_values(exchange, exchange.params["id"], names))


async def _write(exchange: Exchange) -> ASGIApp:
    """204 when the agent has confirmed within the wait, else 202 and where to ask."""
    value, has_data = await exchange.optional_json()
    message = exchange.message(
        Operation.WRITE_PROPERTY,
        exchange.params["id"],
        exchange.params["name"],
        value,
        has_data=has_data,
        expires_in_s=exchange.expires_in(),
        correlation=exchange.idempotency_key(),
    )
    return await _written(exchange, message)


async def _written(exchange: Exchange, message: Message) -> ASGIApp:
    sink, wait_s = exchange.context.sink, _patience_s(exchange)
    status = await sink.handle(message)
    if not status.is_final:
        status = await sink.final(status.request_id, wait_s) or status
    refusal = unsuccessful(status)
    if refusal is not None:
        return refusal
    location = f"/requests/{status.request_id}"
    if status.is_final:
        return no_content(location=location)
    return json_reply({"requestID": status.request_id, "state": status.state.value}, 202, location=location)


async def _write_several(exchange: Exchange) -> ASGIApp:
    """All are checked against the TD before the first is sent; then each is a request of its own."""
    values = await exchange.json()
    if not isinstance(values, dict) or not values:
        raise Invalid("an object of property names and values is needed")
    thing_id = exchange.params["id"]
    _check_all(thing_id, await service_calls.td(exchange, thing_id), values)
    reference = exchange.idempotency_key()
    exchange.size_each //= len(values)
    sink, wait_s = exchange.context.sink, _patience_s(exchange)
    statuses = {}
    for name, value in values.items():
        message = exchange.message(
            Operation.WRITE_PROPERTY,
            thing_id,
            name,
            value,
            expires_in_s=exchange.expires_in(),
            correlation=f"{reference}.{name}" if reference else None,
        )
        statuses[name] = await sink.handle(message)
    until = sink.clock() + round(wait_s * 1e6)
    for name, status in statuses.items():
        if not status.is_final:
            left_s = max(0.0, (until - sink.clock()) / 1e6)
            statuses[name] = await sink.final(status.request_id, left_s) or status
    for status in statuses.values():
        refusal = unsuccessful(status)
        if refusal is not None:
            return refusal
    if all(status.is_final for status in statuses.values()):
        return no_content()
    items = [
        {"name": name, "requestID": status.request_id, "state": status.state.value} for name, status in statuses.items()
    ]
    first = next(status for status in statuses.values() if not status.is_final)
    return json_reply({"items": items}, 202, location=f"/requests/{first.request_id}")


def _patience_s(exchange: Exchange) -> float:
    wait_s = exchange.prefer_wait()
    return exchange.context.config.default_wait_s if wait_s is None else wait_s


def _check_all(thing_id: str, document: dict[str, Any], values: dict[str, Any]) -> None:
    declared = document.get("properties", {})
    written = {
        name: {member: value for member, value in declared[name].items() if member != "forms"}
        for name in values
        if name in declared
    }
    td = ThingDescription.of(
        {"@context": document["@context"], "title": document["title"], "properties": written}, agent=True
    )
    for name, value in values.items():
        if name not in td.properties:
            raise UnknownName(thing_id, Kind.PROPERTY, name)
        td.check_property_write(name, value)


def _check_json(exchange: Exchange) -> None:
    if not exchange.accepts(JSON):
        raise NotAcceptable(f"{JSON} and {EVENT_STREAM}")
