"""The W3C WoT Discovery directory API over the built-in directory service.

Twins are listed and read like other entries and published by their agents only; PATCH lays a title or description over
what the agent says. Other entries are created, replaced, patched and deleted here, with registration information.
"""

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http import service_calls
from bindings.http.descriptions import RDF_TYPES, as_rdf
from bindings.http.directory_td import directory_td
from bindings.http.exchange import JSON, LD_JSON, MERGE_PATCH, TD_JSON, Exchange, elements, json_reply, no_content
from bindings.http.problems import NotAcceptable, NotImplementedHere
from bindings.http.registration import expiry, spelled, standing, stored
from bindings.http.routing import Documented, Route
from things.addresses import encode_segment, is_twin
from things.errors import Forbidden, Invalid, Malformed, PreconditionFailed, UnknownThing
from things.jsontext import decode_unique, encode
from things.merge_patch import merged
from things.messages import JSONValue
from things.service_ids import DIRECTORY, HISTORY
from things.times import rfc3339
from things.twin_td import DISCOVERY

MAX_LISTED = 1_000
_OVERLAY = frozenset({"title", "description"})
_FILTERS = ("agent", "type", "text", "filter")


def routes() -> list[Route]:
    td = Documented(tag="directory", query=("forms", "asof"), answers={200: TD_JSON})
    write = Documented(tag="directory", body=TD_JSON, answers={201: "", 204: ""})
    listing = Documented(
        tag="directory",
        query=("offset", "cursor", "limit", "format", "forms", "asof", "sort_by", "sort_order", *_FILTERS),
        answers={200: LD_JSON},
    )
    patch = Documented(tag="directory", body=MERGE_PATCH, answers={204: ""})
    return [
        Route("GET", "/.well-known/wot", _self, "The directory's own description", public=True, documented=td),
        Route("GET", "/things", _list, "Things that the caller may see, by id", documented=listing),
        Route("POST", "/things", _create, "Register a Thing without an id", documented=write),
        Route("GET", "/things/{id}", _read, "A Thing Description", documented=td),
        Route("PUT", "/things/{id}", _put, "Create or replace an entry", documented=write),
        Route("PATCH", "/things/{id}", _patch, "Change members of an entry", documented=patch),
        Route("DELETE", "/things/{id}", _delete, "Remove an entry", documented=Documented(tag="directory")),
    ]


# ---------------------------------------------------------------- reading


async def _read(exchange: Exchange) -> ASGIApp:
    media_type = _td_type(exchange)
    thing_id = _thing_id(exchange)
    then = exchange.moment("asof")
    if then is not None:
        former = (await service_calls.thing_as_of(exchange, thing_id, then))["td"]
        if former is None:
            raise UnknownThing(thing_id)
        if media_type in RDF_TYPES:
            return Response(await as_rdf(former, media_type), media_type=media_type)
        return json_reply(former, media_type=media_type)
    entry = await service_calls.call(
        exchange, DIRECTORY, "readEntry", thingID=thing_id, protocol=exchange.one("forms"), encoded=True
    )
    text = spelled(entry, retrieved=exchange.context.sink.clock())
    if media_type in RDF_TYPES:
        # Told apart from the JSON by no tag, and so by none.
        return Response(await as_rdf(from_json(text), media_type), media_type=media_type)
    if is_twin(thing_id):
        # A twin's TD is another one for every caller, so that a tag would say nothing.
        return Response(text, media_type=media_type)
    headers = {"etag": entry["etag"]}
    if _is_known(exchange.headers.get("if-none-match"), entry["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(text, headers=headers, media_type=media_type)


async def _list(exchange: Exchange) -> ASGIApp:
    """A page; the link to the next names the last id of this one, so that deep pages cost as little as the first and
    what comes or goes in between moves nothing."""
    if not (exchange.accepts(LD_JSON) or exchange.accepts(JSON)):
        raise NotAcceptable(f"{LD_JSON} and {JSON}")
    if exchange.one("sort_by") is not None or exchange.one("sort_order") is not None:
        # WoT Discovery, an order that is not offered is refused by this status.
        raise NotImplementedHere("Things are listed by id, and in no other order")
    as_collection = exchange.one("format") == "collection"
    if exchange.one("format") not in (None, "array", "collection"):
        raise Invalid("format is array or collection")
    limit, offset, cursor = exchange.number("limit", least=1), exchange.number("offset"), exchange.one("cursor")
    page: dict[str, JSONValue] = {
        # The cursor decides; the offset beside it is for clients that count.
        "offset": offset if cursor is None else None,
        "cursor": cursor,
        "limit": min(limit or MAX_LISTED, MAX_LISTED),
        "protocol": exchange.one("forms"),
    }
    query = {name: exchange.one(name) for name in _FILTERS}
    then = exchange.moment("asof")
    if then is None:
        found = await service_calls.call(exchange, DIRECTORY, "listTDs", entries=True, encoded=True, **page, **query)
        now = exchange.context.sink.clock()
        items = [spelled(item, retrieved=now) for item in found["items"]]
    else:
        if as_collection or any(query.values()):
            raise Invalid("the directory of the past is listed whole and as an array")
        found = await service_calls.call(exchange, HISTORY, "listAsOf", time=rfc3339(then), **page)
        items = [encode(td) for td in found["items"]]
    following = None
    if found.get("cursor"):
        following = _following(exchange, found["cursor"], page["limit"], (offset or 0) + len(items))
    links = []
    if following is not None:
        links.append(f'<{following}>; rel="next"')
    if then is None and (limit is not None or following is not None):
        links.append(f'</things>; rel="canonical"; etag="{found["change"]:x}"')
    media_type = LD_JSON if exchange.accepts(LD_JSON) else JSON
    body = b"[%s]" % b",".join(items)
    if as_collection:
        total = await service_calls.call(exchange, DIRECTORY, "listTDs", count=True, **query)
        head = {
            "@context": DISCOVERY,
            "@type": "ThingCollection",
            "@id": "/things",
            "total": total["total"],
            **({"next": following} if following else {}),
        }
        body = b'%s,"members":%s}' % (encode(head)[:-1], body)
    return Response(body, headers={"link": ", ".join(links)} if links else None, media_type=media_type)


def _following(exchange: Exchange, cursor: str, limit: JSONValue, offset: int) -> str:
    """The address of the next page: the same arguments, from the cursor on, and how many come before it."""
    arguments = [
        (name, value)
        for name, values in exchange.query.items()
        if name not in ("offset", "limit", "cursor")
        for value in values
    ]
    return f"/things?{urlencode([('cursor', cursor), ('offset', offset), ('limit', limit), *arguments])}"


# ---------------------------------------------------------------- writing


async def _create(exchange: Exchange) -> ASGIApp:
    """An entry without an id gets one; the location is the address of the entry."""
    td = await _td_body(exchange)
    if "id" in td:
        raise Invalid("a TD with an id is created by PUT at its own address")
    thing_id = f"urn:uuid:{uuid.uuid4()}"
    await _register(exchange, thing_id, td, ifNoneMatch="*")
    return no_content(201, location=f"/things/{encode_segment(thing_id)}")


async def _put(exchange: Exchange) -> ASGIApp:
    thing_id = _thing_id(exchange)
    if is_twin(thing_id):
        raise Forbidden("a twin's TD is published by its own agent only")
    td = await _td_body(exchange)
    if td.get("id", thing_id) != thing_id:
        raise Invalid("the TD's id is another one than that of the path")
    entry = await _register(
        exchange,
        thing_id,
        td,
        ifMatch=exchange.headers.get("if-match"),
        ifNoneMatch=exchange.headers.get("if-none-match"),
    )
    location = f"/things/{encode_segment(thing_id)}"
    return no_content(201, location=location) if entry["isNew"] else no_content(etag=entry["etag"])


async def _patch(exchange: Exchange) -> ASGIApp:
    """RFC 7396; an invalid result changes nothing."""
    thing_id = _thing_id(exchange)
    text = await exchange.body(MERGE_PATCH)
    patch = decode_unique(text) if text else None
    if not isinstance(patch, dict):
        raise Malformed("a JSON merge patch is an object")
    if is_twin(thing_id):
        return await _overlay(exchange, thing_id, patch)
    if patch.get("id", thing_id) != thing_id:
        raise Invalid("the id of an entry cannot be changed")
    wanted = exchange.headers.get("if-match")
    for _ in range(3):
        entry = await service_calls.call(exchange, DIRECTORY, "readEntry", thingID=thing_id)
        try:
            changed = merged(standing(entry["td"], entry), patch)
            await _register(exchange, thing_id, changed, ifMatch=wanted or entry["etag"])
        except PreconditionFailed:
            # Somebody wrote in between: the patch is merged into what is there now, unless its sender minds.
            if wanted is not None:
                raise
            continue
        return no_content()
    raise PreconditionFailed("the entry changes faster than it can be patched")


async def _overlay(exchange: Exchange, thing_id: str, patch: Mapping[str, JSONValue]) -> ASGIApp:
    if "id" in patch and patch["id"] != thing_id:
        raise Invalid("the id of an entry cannot be changed")
    overlay = {name: value for name, value in patch.items() if name != "id"}
    if not _OVERLAY.issuperset(overlay):
        raise Forbidden("of a twin only title and description can be changed here")
    data: dict[str, JSONValue] = {"thingID": thing_id, **overlay}
    # Not by `service_calls.call`: null is a value here, and drops what lies over the twin.
    await exchange.context.sink.call(
        exchange.principal,
        DIRECTORY,
        "setOverlay",
        data,
        exchange.origin,
        confirmation=exchange.confirmation(),
    )
    return no_content()


async def _delete(exchange: Exchange) -> ASGIApp:
    thing_id = _thing_id(exchange)
    if is_twin(thing_id):
        raise Forbidden("a twin is removed by its own agent only")
    await service_calls.call(
        exchange, DIRECTORY, "removeTD", thingID=thing_id, ifMatch=exchange.headers.get("if-match")
    )
    return no_content()


async def _register(exchange: Exchange, thing_id: str, td: dict[str, Any], **conditions: str | None) -> dict[str, Any]:
    expires = expiry(td, exchange.context.sink.clock())
    try:
        found: dict[str, Any] = await service_calls.call(
            exchange,
            DIRECTORY,
            "registerTD",
            thingID=thing_id,
            td=stored(td),
            expires=None if expires is None else rfc3339(expires),
            **conditions,
        )
    except UnknownThing as error:
        # An entry that is not there yet looks unknown to who may not make it.
        raise Forbidden(f"{exchange.principal.account!r} may not write entries of the directory") from error
    return found


async def _td_body(exchange: Exchange) -> dict[str, Any]:
    text = await exchange.body(TD_JSON, LD_JSON, JSON)
    td = decode_unique(text) if text else None
    if not isinstance(td, dict):
        raise Malformed("a Thing Description is a JSON object")
    return td


def _thing_id(exchange: Exchange) -> str:
    """The id in the path; clients that put the address of an entry there (`Location`), encoded, mean its id."""
    thing_id = exchange.params["id"]
    if "/" not in thing_id:
        return thing_id
    urls = exchange.urls
    for base in (urls.https, urls.http, ""):
        prefix = f"{base}/things/"
        if base is not None and thing_id.startswith(prefix):
            return thing_id[len(prefix) :]
    return thing_id


def _is_known(tags: str | None, etag: str) -> bool:
    """Whether `If-None-Match` names the tag; weak ones are as good here (RFC 9110)."""
    if tags is None:
        return False
    return tags.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in elements(tags, ","))


async def _self(exchange: Exchange) -> ASGIApp:
    """How to use this directory; public, since it is where a client begins."""
    document, media_type = directory_td(exchange.urls.base or ""), _td_type(exchange)
    if media_type in RDF_TYPES:
        return Response(await as_rdf(document, media_type), media_type=media_type)
    return json_reply(document, media_type=media_type)


def _td_type(exchange: Exchange) -> str:
    if exchange.headers.get("accept") is None:
        return TD_JSON
    media_types = (TD_JSON, LD_JSON, JSON, *RDF_TYPES)
    accepted = exchange.preferred(*media_types)
    if not accepted:
        raise NotAcceptable(f"{', '.join(media_types[:-1])} and {media_types[-1]}")
    return accepted[0]
