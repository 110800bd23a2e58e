"""One HTTP exchange as handlers see it: the caller, the path's parameters, query, headers and the bounded body."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Unpack
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope

from bindings.http.problems import UnsupportedMediaType
from bindings.web.credentials import source_of
from bindings.web.fields import Fields
from bindings.wire.batch import checked_message_id
from things.errors import Invalid, Malformed, TooLarge, Unauthenticated
from things.identity import Principal
from things.jsontext import decode, encode
from things.messages import Given, JSONValue, Message, Operation, Origin
from things.places import HERE, Place, Urls
from things.records import MAX_COUNTER
from things.times import parse_time

if TYPE_CHECKING:
    from bindings.http.context import HttpContext

JSON = "application/json"
LD_JSON = "application/ld+json"
TURTLE = "text/turtle"
N_TRIPLES = "application/n-triples"
TD_JSON = "application/td+json"
MERGE_PATCH = "application/merge-patch+json"
EVENT_STREAM = "text/event-stream"

_JSON_ONLY = (JSON,)
_ANSWERED = frozenset({Operation.CALL_RPC, Operation.INVOKE_ACTION})
"""What a built-in service may answer, with addresses of ours in it."""
_NO_QUERY: Mapping[str, Sequence[str]] = {}
_REMEMBERED_CHARS = 256
"""Longer queries are seldom asked twice."""
_MAX_ELEMENTS = 100
"""Elements of a list in a header field (`Accept`, `Prefer`), or parameters of one, that are looked at."""


class Exchange:
    """What a handler is given. `params` are the decoded path parameters."""

    __slots__ = (
        "_principal",
        "_query",
        "_receive",
        "context",
        "headers",
        "method",
        "params",
        "scope",
        "size_each",
        "ticket",
    )

    def __init__(self, context: "HttpContext", scope: Scope, receive: Receive, params: Mapping[str, str]) -> None:
        self.context = context
        self.scope = scope
        self.params = params
        self.method: str = scope["method"]
        self.headers = Fields(scope["headers"])
        self.ticket: str | None = None
        """The stream ticket the caller came with."""
        self.size_each = 0
        """Bytes of the body that each message made of it stands for."""
        self._receive = receive
        self._query: Mapping[str, Sequence[str]] | None = None
        self._principal: Principal | None = None

    # ------------------------------------------------------------ who

    @property
    def principal(self) -> Principal:
        if self._principal is None:
            raise Unauthenticated("log in first")
        return self._principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self._principal = principal

    @property
    def is_anonymous(self) -> bool:
        return self._principal is None

    @property
    def source(self) -> str | None:
        """The caller's host; None on the control socket."""
        return source_of(self.scope)

    @property
    def place(self) -> Place | None:
        """Where the caller sees this runtime."""
        scope = self.scope
        server = scope.get("server")
        if not server or server[1] is None:
            return HERE  # the control socket
        return self.context.places.place(scope["scheme"], self.headers.get("host"), server[0])

    @property
    def urls(self) -> Urls:
        """Our addresses as this caller reaches them."""
        return self.context.places.urls(self.place)

    @property
    def origin(self) -> Origin:
        return _origin(self.source)

    @property
    def placed_origin(self) -> Origin:
        """The same with the place, for what may be answered with addresses of ours."""
        return _origin(self.source, self.place)

    # ------------------------------------------------------------ what was asked

    @property
    def is_head(self) -> bool:
        return self.method == "HEAD"

    @property
    def raw_path(self) -> str:
        raw: bytes = self.scope["raw_path"]
        return raw.decode("latin-1")

    @property
    def query(self) -> Mapping[str, Sequence[str]]:
        if self._query is None:
            raw: bytes = self.scope["query_string"]
            if not raw:
                self._query = _NO_QUERY
            else:
                self._query = _remembered_query(raw) if len(raw) <= _REMEMBERED_CHARS else _parsed_query(raw)
        return self._query

    def one(self, name: str) -> str | None:
        """The only value of a query parameter; raises Invalid if it stands there twice."""
        values = self.query.get(name)
        if not values:
            return None
        if len(values) > 1:
            raise Invalid(f"{name} stands in the query more than once")
        return values[0]

    def number(self, name: str, *, least: int = 0, most: int | None = None, default: int | None = None) -> int | None:
        """A whole number in the query; raises Invalid outside the bounds."""
        text = self.one(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) < least:
            raise Invalid(f"{name} must be a whole number of at least {least}")
        most = MAX_COUNTER if most is None else most
        if int(text) > most:
            raise Invalid(f"{name} must be at most {most}")
        return int(text)

    def last_event(self) -> int | None:
        """`Last-Event-ID`, which pages that cannot set it give in the query."""
        last = self.headers.get("last-event-id") or self.one("lastEventID")
        if last is None:
            return None
        if not last.isascii() or not last.isdigit() or len(last) > 19 or int(last) > MAX_COUNTER:
            raise Invalid("Last-Event-ID is not one of this runtime's")
        return int(last)

    def seconds(self, name: str, most: float) -> float | None:
        """Seconds in the query; longer waits are cut to `most`."""
        text = self.one(name)
        return None if text is None else min(_seconds(text, name), most)

    def moment(self, name: str) -> int | None:
        """An RFC 3339 time in the query as µs UTC."""
        text = self.one(name)
        # An unescaped plus sign of a zone offset arrives as a space.
        return None if text is None else parse_time(text.replace(" ", "+"))

    def accepts(self, media_type: str, *, explicitly: bool = False) -> bool:
        """Whether `Accept` takes this type; `explicitly`: named by itself, not by a wildcard."""
        accept = self.headers.get("accept")
        if not accept:
            return not explicitly
        main = media_type.partition("/")[0]
        wanted = {media_type} if explicitly else {media_type, f"{main}/*", "*/*"}
        best: tuple[int, bool] = (-1, False)
        for part in elements(accept, ","):
            offered, *parameters = (piece.strip().lower() for piece in elements(part, ";"))
            if offered in wanted:
                # A type that is named decides over a wildcard that matches it.
                rank = 2 if offered == media_type else 1 if offered != "*/*" else 0
                best = max(best, (rank, not any(_is_zero(parameter) for parameter in parameters)))
        return best[1]

    def preferred(self, *media_types: str) -> Sequence[str]:
        """Those of the types that `Accept` takes, by its weights and then in the order given; all without one."""
        accept = self.headers.get("accept")
        if not accept:
            return media_types
        ranges = [_range(part) for part in elements(accept, ",")]
        weighed = [(_weight(ranges, media_type), media_type) for media_type in media_types]
        return [media_type for weight, media_type in sorted(weighed, key=lambda each: -each[0]) if weight > 0]

    def prefer_wait(self) -> float | None:
        """The seconds of `Prefer: wait=N`, at most the configured patience; None without one (RFC 7240)."""
        prefer = self.headers.get("prefer")
        if prefer is None:
            return None
        for part in elements(prefer.replace(";", ","), ","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name.lower() == "wait" and equals:
                return min(_seconds(value.strip('"'), "Prefer: wait"), self.context.config.max_wait_s)
        return None

    # ------------------------------------------------------------ body

    async def body(self, *accepted: str, limit: int | None = None) -> bytes:
        """The whole body. Raises TooLarge as soon as it is one byte over the limit, UnsupportedMediaType unless its
        type is one of `accepted` (JSON by default)."""
        limit = self.context.config.max_body_bytes if limit is None else limit
        text = await self._parts(limit)
        self.stand()
        self.size_each = len(text)
        if text:
            self._check_type(accepted or _JSON_ONLY)
        return text

    def stand(self) -> None:
        """Judge by the account as it is now: a sender may have taken its time. Raises Unauthenticated."""
        if self._principal is not None:
            self._principal = self.context.sink.authenticator.standing(self._principal)
            if self._principal is None:
                raise Unauthenticated("log in first")

    async def _parts(self, limit: int) -> bytes:
        announced = self.headers.get("content-length")
        if announced is not None and int(announced) > limit:
            raise TooLarge(limit)
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            # A sender that dawdles is cut off by its connection.
            part = await self._receive()
            if part["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = part.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise TooLarge(limit)
            chunks.append(chunk)
            more = part.get("more_body", False)
        return b"".join(chunks)

    async def gone(self) -> None:
        """Until the client has left; for a request whose body was read, or has none."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def json(self, *accepted: str, limit: int | None = None) -> JSONValue:
        """The body as JSON; raises Malformed for an empty one."""
        limit = self.context.config.max_body_bytes if limit is None else limit
        text = await self.body(*accepted, limit=limit)
        if not text:
            raise Malformed("a JSON body is needed")
        return decode(text, max_bytes=limit)

    async def optional_json(self) -> tuple[JSONValue, bool]:
        """The body as JSON and whether there was one: an empty body is no input, null is data."""
        text = await self.body()
        return (decode(text), True) if text else (None, False)

    async def members(self, *names: str) -> dict[str, JSONValue]:
        """The body as a JSON object; raises Invalid unless the named members are strings."""
        value = await self.json()
        if not isinstance(value, dict):
            raise Invalid("a JSON object is needed")
        for name in names:
            if not isinstance(value.get(name), str):
                raise Invalid(f"the member {name!r} is needed, a string")
        return value

    def _check_type(self, accepted: Sequence[str]) -> None:
        content_type = self.headers.get("content-type")
        if content_type is None or content_type in accepted:
            return
        media, *parameters = (part.strip().lower() for part in elements(content_type, ";"))
        if media not in accepted:
            raise UnsupportedMediaType(f"{media[:80]!r} is not read here; send {' or '.join(accepted)}")
        for parameter in parameters:
            if parameter.startswith("charset=") and parameter[8:].strip('"') not in ("utf-8", "us-ascii"):
                raise UnsupportedMediaType("text is read as UTF-8 only")

    # ------------------------------------------------------------ messages

    def message(
        self, operation: Operation, thing_id: str, name: str, data: JSONValue = None, **given: Unpack[Given]
    ) -> Message:
        """A message of this caller, received now."""
        return Message(
            operation=operation,
            principal=self.principal,
            thing_id=thing_id,
            name=name,
            data=data,
            received=self.context.sink.clock(),
            confirmation=self.confirmation(),
            size=self.size_each,
            origin=self.placed_origin if operation in _ANSWERED else self.origin,
            trace_id=self._trace_id(),
            **given,
        )

    async def stored(self, message: Message) -> None:
        """Publish one event or value; returns when it is committed, or at once where it asks for no guarantee."""
        committed = self.context.sink.store(message)
        if committed is not None:
            await asyncio.shield(committed)

    def idempotency_key(self) -> str | None:
        """`Idempotency-Key`: the caller's own reference of a request, or the id of a message."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        return checked_message_id(key.strip('"'), "Idempotency-Key")

    def confirmation(self) -> str | None:
        """`X-Confirmation`: the token of the refusal that this request repeats."""
        return self.headers.get("x-confirmation")

    def expires_in(self) -> float | None:
        """`X-Expires-In`: how long a request may wait for its agent."""
        text = self.headers.get("x-expires-in")
        return None if text is None else _seconds(text, "X-Expires-In")

    def _trace_id(self) -> str | None:
        parent = self.headers.get("traceparent")
        if parent is None:
            return None
        parts = parent.split("-")
        return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 and parts[1].isalnum() else None


def elements(text: str, separator: str) -> Sequence[str]:
    """The elements of a list in a header field, without those beyond any that an honest client sends."""
    return text.split(separator, _MAX_ELEMENTS)[:_MAX_ELEMENTS]


def json_reply(value: object, status: int = 200, *, media_type: str = JSON, **headers: str) -> Response:
    """`value` as a JSON reply; header names are written with underscores."""
    fields = {name.replace("_", "-"): text for name, text in headers.items()} if headers else None
    return Response(encode(value), status, headers=fields, media_type=media_type)


def no_content(status: int = 204, **headers: str) -> Response:
    """A reply without a body."""
    return Response(status_code=status, headers={name.replace("_", "-"): text for name, text in headers.items()})


STORED = no_content()
"""What was sent is committed. As it has no body, the application sends it without fields that protect documents."""
TAKEN = no_content(202)
"""What was sent is taken, without guarantee."""


@lru_cache(maxsize=1_024)
def _origin(source: str | None, place: Place | None = None) -> Origin:
    return Origin(binding="http", source=source, place=place)


def _parsed_query(raw: bytes) -> Mapping[str, Sequence[str]]:
    try:
        return parse_qs(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=2_000)
    except ValueError as error:
        raise Malformed("the query string is not percent-encoded UTF-8") from error


_remembered_query = lru_cache(maxsize=1_024)(_parsed_query)


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and not value.strip().strip("0.")


def _range(part: str) -> tuple[str, float]:
    """A media range of `Accept` and its weight, which is 1 where it makes no sense."""
    media_range, *parameters = (piece.strip().lower() for piece in elements(part, ";"))
    weight = next((piece.partition("=")[2].strip() for piece in parameters if piece.startswith("q")), "1")
    try:
        return media_range, min(1.0, max(0.0, float(weight)))
    except ValueError:
        return media_range, 1.0


def _weight(ranges: Sequence[tuple[str, float]], media_type: str) -> float:
    """The weight of the range that names the type best (RFC 9110, 12.5.1)."""
    by_precision = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    weights = dict(reversed(ranges))
    return next((weights[each] for each in by_precision if each in weights), 0.0)


def _seconds(text: str, what: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    # The comparison also refuses NaN.
    if not 0 <= seconds <= 10 * 366 * 86_400:
        raise Invalid(f"{what} must be a number of seconds that is not negative")
    return seconds
