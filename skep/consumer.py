"""A consumer: reads Things, watches them and asks them to act, over HTTPS and server-sent events.

Streams reconnect by themselves and resume after the last event they had seen; requests carry a reference of their own,
so that a repeated call after a broken connection is the same request.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import JsonValue

from skep.backoff import Backoff
from skep.http_client import HTTPClient, KeptLogin, Query, json_of, problem_of
from skep.patterns import ChangePattern
from skep.requested import Requested, Status
from skep.thing import Thing
from things.addresses import encode_segment
from things.delivery import State
from things.errors import SkepError, Unavailable
from things.jsontext import decode, encode
from things.names import checked_name
from things.service_ids import DIRECTORY, MODELS, REQUESTS, is_service
from things.times import from_datetime, parse_time, rfc3339, to_datetime

THINGS_A_PAGE = 100
REQUESTS_A_PAGE = 100
CONFIRMATION = "X-Confirmation"
MAX_WAIT_S = 60.0
"""The longest a runtime holds a request open; longer waits ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One event or property value, as it reached the runtime; `created` is when it was so."""

    thing_id: str
    kind: str
    name: str
    value: JsonValue
    created: datetime
    id: str = ""
    """Where a stream resumes after this change."""


class Consumer:
    """Uses Things. Enter it, then ask.

        async with Consumer("https://gateway:8443", login=("ann", "secret"), ca="ca.pem") as consumer:
            pump = consumer.thing("dtw:pumps:pump-1")
            print(await pump.read("flow"))
            print(await (await pump.invoke("setSpeed", 3)).result())
            async for change in consumer.watch("dtw:pumps:*"):
                print(change.name, change.value)

    Making one raises BadAddress for a `url` that cannot be one. Credentials: `login=(account, password)` or `token`; on
    a runtime's control socket (`socket=`) neither is needed.
    """

    def __init__(
        self,
        url: str = "http://localhost",
        *,
        token: str | None = None,
        login: tuple[str, str] | None = None,
        kept: KeptLogin | None = None,
        ca: str | Path | None = None,
        socket: Path | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        self.http = HTTPClient(url, token=token, login=login, kept=kept, ca=ca, uds=socket, timeout_s=timeout_s)
        """For what has no method here."""

    async def __aenter__(self) -> "Consumer":
        await self.http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.http.__aexit__(kind, error, traceback)

    # ------------------------------------------------------------ Things

    async def things(
        self,
        *,
        services: bool = False,
        agent: str | None = None,
        type: str | None = None,
        text: str | None = None,
        filter: str | None = None,
    ) -> list[Thing]:
        """Every Thing this account may see, in order of ids: of one `agent`, of one `@type`, with a `text` in the
        title, for which a `filter` holds (`online and temperature > 30`).

        The runtime's own services are Things too, and left out unless `services` asks for them.
        """
        found: list[Thing] = []
        given = {"agent": agent, "type": type, "text": text, "filter": filter}
        query: dict[str, JsonValue] = {name: value for name, value in given.items() if value is not None}
        query["limit"] = THINGS_A_PAGE
        while True:
            page = await self.call(DIRECTORY, "listTDs", query)
            items, cursor = (page.get("items"), page.get("cursor")) if isinstance(page, dict) else (None, None)
            for td in items if isinstance(items, list) else ():
                if isinstance(td, dict) and (services or not is_service(str(td.get("id", "")))):
                    found.append(Thing(self, str(td.get("id", "")), td))
            if not isinstance(cursor, str):
                return found
            query["cursor"] = cursor

    def thing(self, thing_id: str) -> Thing:
        """A Thing by its id, `dtw:AGENT:THING`; nothing is asked of the runtime yet."""
        return Thing(self, thing_id)

    async def watch(
        self, *patterns: str, kind: str | None = None, latest: bool = False, after: str | None = None
    ) -> AsyncGenerator[Change, None]:
        """Changes of all Things that match (`dtw:AGENT:THING/NAME`, `*` for any), as they come, for ever.

        One stream however many patterns. It begins with the latest values if asked to, reconnects and resumes by
        itself; `after` resumes behind a `Change.id`.
        """
        wanted = [ChangePattern.parse(text, kind=kind) for text in patterns or ("dtw:*",)]
        # One pattern is asked for as it is. Several share one stream, which the runtime sifts by what they have in
        # common; the rest is sifted here.
        query = wanted[0].query() if len(wanted) == 1 else _common_query(wanted)
        if kind is None:
            query += [("kind", "event"), ("kind", "property")]
        if latest:
            query.append(("latest", "true"))
        async with aclosing(self._events("/stream", query, after)) as events:
            async for event in events:
                document = decode(event.data)
                if not isinstance(document, dict):
                    continue
                change = Change(
                    thing_id=str(document.get("thingID", "")),
                    kind=str(document.get("kind", event.event)),
                    name=str(document.get("name", "")),
                    value=document.get("value"),
                    created=to_datetime(parse_time(str(document.get("created")))),
                    id=event.id,
                )
                if any(pattern.matches(change.thing_id, change.kind, change.name) for pattern in wanted):
                    yield change

    # ------------------------------------------------------------ requests

    async def invoke(
        self,
        thing_id: str,
        action: str,
        data: JsonValue = None,
        *,
        wait_s: float = 0.0,
        expires_s: float | None = None,
        reference: str | None = None,
        confirmation: str | None = None,
    ) -> Requested:
        """Ask a Thing to act. `wait_s` seconds for the final status, 0 returns at the first one.

        `expires_s` shortens how long it may wait for an absent agent. `reference` makes a repeated call the same
        request. A request that was refused outright raises; one that ends unsuccessfully tells so by its status.
        ConfirmationRequired is raised where a policy wants a confirmation: repeat the call with its `token`.
        """
        path = f"/things/{encode_segment(thing_id)}/actions/{encode_segment(checked_name(action))}"
        return await self._request(
            "POST", path, data, wait_s=wait_s, expires_s=expires_s, reference=reference, confirmation=confirmation
        )

    async def write(
        self,
        thing_id: str,
        name: str,
        value: JsonValue,
        *,
        wait_s: float = 5.0,
        expires_s: float | None = None,
        reference: str | None = None,
        confirmation: str | None = None,
    ) -> Requested:
        """Ask a Thing to take a new value of a property; like `invoke`."""
        path = f"/things/{encode_segment(thing_id)}/properties/{encode_segment(checked_name(name))}"
        return await self._request(
            "PUT",
            path,
            value,
            wait_s=wait_s,
            expires_s=expires_s,
            reference=reference,
            confirmation=confirmation,
            has_data=True,
        )

    async def call(
        self,
        thing_id: str,
        method: str,
        data: JsonValue = None,
        *,
        timeout_s: float = 15.0,
        confirmation: str | None = None,
    ) -> JsonValue:
        """Call a method now or not at all (RPC); raises NotConnected, TimedOut, AgentFailed, ConfirmationRequired."""
        path = f"/rpc/{encode_segment(thing_id)}/{encode_segment(checked_name(method))}"
        headers = {} if confirmation is None else {CONFIRMATION: confirmation}
        return await self.http.json("POST", path, data, headers=headers, timeout_s=timeout_s)

    async def instantiate(
        self,
        model_id: str,
        *,
        thing_id: str | None = None,
        placeholders: Mapping[str, JsonValue] | None = None,
        options: Sequence[str] | None = None,
        additions: Mapping[str, JsonValue] | None = None,
        agent: bool = False,
    ) -> list[dict[str, Any]]:
        """The Thing Description of a Thing of a stored Thing Model, and behind it those of its parts; nothing is
        published. `options` are pointers of optional affordances, None takes all; with `agent` forms and security may
        be missing, as in what agents publish. Raises NotFound, Invalid with a pointer to what is missing."""
        given: dict[str, JsonValue] = {"modelID": model_id, "agent": agent, "additions": dict(additions or {})}
        given["placeholders"] = dict(placeholders or {})
        if thing_id is not None:
            given["id"] = thing_id
        if options is not None:
            given["options"] = list(options)
        made: Any = await self.call(MODELS, "instantiate", given)
        return [made["td"], *made["parts"]]

    async def request(self, request_id: str) -> Requested:
        """A request asked for earlier, by this program or another; raises UnknownRequest."""
        return Requested(self, Status.of(await self.request_document(request_id)))

    async def by_reference(self, reference: str) -> Requested:
        """A request by the caller's own reference; raises UnknownRequest."""
        found = await self.call(REQUESTS, "readRequest", {"callerRef": reference})
        return Requested(self, Status.of(found if isinstance(found, dict) else {}))

    async def requests(
        self,
        limit: int = REQUESTS_A_PAGE,
        *,
        thing_id: str | None = None,
        name: str | None = None,
        caller: str | None = None,
        state: State | str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> list[dict[str, JsonValue]]:
        """Own requests (managers: all), newest first, at most `limit`, made from `start` up to and without `end`: the
        documents that the runtime keeps, as on the wire. Raises Invalid."""
        rows: list[dict[str, JsonValue]] = []
        given = {
            "thing": thing_id,
            "name": name,
            "caller": caller,
            "state": None if state is None else str(state),
            "from": None if start is None else rfc3339(from_datetime(start)),
            "to": None if end is None else rfc3339(from_datetime(end)),
        }
        query = {key: value for key, value in given.items() if value is not None}
        while len(rows) < limit:
            page = await self.http.json(
                "GET", "/requests", query=[*query.items(), ("limit", str(min(limit - len(rows), REQUESTS_A_PAGE)))]
            )
            items, cursor = (page.get("items"), page.get("cursor")) if isinstance(page, dict) else (None, None)
            rows += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            if not isinstance(cursor, str):
                break
            query["cursor"] = cursor
        return rows

    async def request_document(self, request_id: str) -> dict[str, JsonValue]:
        """Everything the runtime keeps of a request."""
        found = await self.http.json("GET", f"/requests/{encode_segment(request_id)}")
        return found if isinstance(found, dict) else {}

    async def cancel(self, request_id: str) -> None:
        """Take a request back; raises UnknownRequest, Conflict."""
        await self.http.json("DELETE", f"/requests/{encode_segment(request_id)}")

    async def inbox(self, after: int | None = None) -> AsyncGenerator[Status, None]:
        """Statuses of own requests, for ever; with `after`, first those of a later `seq`, away or not."""
        async with aclosing(self._events("/inbox", (), None if after is None else str(after))) as events:
            async for event in events:
                document = decode(event.data)
                if isinstance(document, dict) and "requestID" in document:
                    yield Status.of(document)

    async def final(self, request_id: str, timeout_s: float) -> Status | None:
        """How a request ended, or None if it goes on when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                async with aclosing((await self.request(request_id)).statuses()) as statuses:
                    async for status in statuses:
                        if status.is_final:
                            return status
        except TimeoutError:
            return None
        return None

    async def _request(
        self,
        method: str,
        path: str,
        data: JsonValue,
        *,
        wait_s: float,
        expires_s: float | None,
        reference: str | None,
        confirmation: str | None,
        has_data: bool = False,
    ) -> Requested:
        reference = reference or uuid.uuid4().hex
        held = min(wait_s, MAX_WAIT_S)
        headers = {"Idempotency-Key": reference, "Prefer": f"wait={held:g}"}
        if held <= 0 and method == "POST":
            del headers["Prefer"]
        if confirmation is not None:
            headers[CONFIRMATION] = confirmation
        if expires_s is not None:
            headers["X-Expires-In"] = f"{expires_s:g}"
        content = encode(data) if has_data or data is not None else None
        until = time.monotonic() + wait_s
        try:
            response = await self.http.send(method, path, content, headers=headers, timeout_s=held + 15.0)
        except SkepError as error:
            problem = problem_of(error)
            if "requestID" not in problem:
                raise
            return Requested(self, await self._status(str(problem["requestID"])))
        request_id = response.headers.get("Location", "").rpartition("/")[2]
        if response.status_code in (200, 204):
            output = json_of(response)
            status = Status(request_id=request_id, state=State.COMPLETED, reference=reference, output=output)
            return Requested(self, status)
        if not request_id:
            raise Unavailable("the runtime did not say which request it made")
        status = Status(request_id=request_id, state=State.PENDING, reference=reference)
        requested = Requested(self, status)
        left = until - time.monotonic()
        if wait_s > MAX_WAIT_S and left > 0:
            requested.status = await self.final(request_id, left) or status
        return requested

    async def _status(self, request_id: str) -> Status:
        return Status.of(await self.request_document(request_id))

    # ------------------------------------------------------------ streams

    async def _events(self, path: str, query: Query, after: str | None) -> AsyncGenerator["_Event", None]:
        backoff, last = Backoff(), after
        while True:
            try:
                async with self.http.stream(path, query=query, last_event_id=last) as events:
                    async for event in events:
                        backoff.reset()
                        last = event.id or last
                        if event.data:
                            yield _Event(event=event.event, data=event.data, id=event.id)
            except Unavailable as error:
                if problem_of(error).get("code") == "unavailable":
                    raise  # said by the runtime itself: this part is switched off
            await asyncio.sleep(backoff.delay_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    event: str
    data: str
    id: str


def _common_query(patterns: list[ChangePattern]) -> list[tuple[str, str]]:
    """The levels on which all patterns agree."""
    first, *others = (dict(pattern.query()) for pattern in patterns)
    return [(key, value) for key, value in first.items() if all(other.get(key) == value for other in others)]
