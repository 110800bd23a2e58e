"""Readings of a running gateway over its history API, page by page, replayable by row id.

They come out as the lake would have them: typed by their Thing Description, with its unit and version.
"""

import io
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json, to_json

from spark.sources.files import Selection, arrow_schema
from things.declared import UNKNOWN, Declared, series_of
from things.errors import Forbidden, SkepError, TokenInvalid, Unavailable
from things.lake import GATEWAY_KEY, READINGS_COLUMNS, VALUE_COLUMNS, agent_of, placed
from things.service_ids import DIRECTORY
from things.times import parse_time, rfc3339

PAGE = 1_000
WAIT_S = 30.0
ARROW = "application/vnd.apache.arrow.stream"
DAY_US = 86_400_000_000

_AFTER = re.compile(r"[?&]after=(\d+)[^>]*>;\s*rel=\"next\"")
_TIME = pa.timestamp("us", tz="UTC")


class LiveGateway:
    """One gateway's API. `ca` is the file of the authority that signed its certificate."""

    def __init__(self, url: str, token: str, *, ca: str | None = None, page: int = PAGE) -> None:
        self.url = url.rstrip("/")
        self._page = page
        self._declared: dict[str, list[tuple[int, str | None, Mapping[tuple[str, str], Declared] | None]]] = {}
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca else True
        self._client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S, verify=verify
        )

    def batches(self, selection: Selection, *, after: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        """Readings with row ids above `after`, up to `last` (inclusive), in order of row id."""
        query: list[tuple[str, str]] = [("limit", str(self._page))]
        query += [("thing", thing) for thing in selection.things] + [("name", name) for name in selection.names]
        if selection.days is not None:
            first, end = (parse_time(f"{day}T00:00:00Z") for day in selection.days)
            query += [("from", rfc3339(first)), ("to", rfc3339(end + DAY_US))]
        while True:
            page = _page(self._get("/history", [*query, ("after", str(after))]), self._declares)
            kept = page.table.filter(_wanted(page.table, selection, last))
            yield from kept.to_batches()
            # A page may be short of what this token may not see; only the gateway knows whether more follows.
            if page.next_after is None or (last is not None and page.next_after >= last):
                return
            after = page.next_after

    def last_row(self, selection: Selection, after: int, most: int | None) -> int:
        """The last row id among the next `most` readings after one; `after` when there are none."""
        seen = 0
        for batch in self.batches(selection, after=after):
            room = batch.num_rows if most is None else min(batch.num_rows, most - seen)
            if room <= 0:
                break
            after = batch["row_id"][room - 1].as_py()
            seen += room
        return after

    def descriptions(self) -> list[tuple[str, str, str]]:
        """(gateway, Thing, TD text) of every Thing the token may see."""
        found: list[tuple[str, str, str]] = []
        while True:
            page = self._get("/things", [("offset", str(len(found))), ("limit", str(self._page))]).json()
            found.extend(("", document["id"], to_json(document).decode()) for document in page)
            if len(page) < self._page:
                return found

    def _declares(self, thing_id: str, td_version: int, kind: str, name: str) -> Declared:
        """What the Thing Description of that version, or the newest older one, says of a series; nothing where the
        token may not read it."""
        versions = self._declared.setdefault(thing_id, [])
        if not versions:
            found = self._answer("listVersions", thingID=thing_id)
            told = [(one["version"], None if one["isRemoved"] else one["published"], None) for one in found]
            versions.extend([(0, None, {}), *sorted(told, key=lambda one: one[0])])
        index = max(index for index, (version, _, _) in enumerate(versions) if version <= max(td_version, 0))
        version, published, series = versions[index]
        if series is None:
            td = self._answer("readTDAsOf", thingID=thing_id, time=published) if published is not None else {}
            series = series_of(to_json(td))
            versions[index] = (version, published, series)
        return series.get((kind, name), UNKNOWN)

    def _answer(self, method: str, **data: str) -> Any:
        """Items, or the Thing Description, that the directory tells; empty where it tells nothing to this token."""
        reply = self._send("POST", f"/rpc/{DIRECTORY}/{method}", to_json(data), "application/json")
        if reply.status_code in (403, 404):
            return {}
        document = self._checked(reply).json()
        return document["items"] if "items" in document else document["td"]

    def put_thing(self, thing: str, document: Mapping[str, Any]) -> None:
        """Publish the TD of one of the account's own Things."""
        path = f"/agent/things/{thing}"
        self._checked(self._send("PUT", path, to_json(document), "application/td+json"))

    def publish(self, envelopes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Publish events and properties in one transaction: `{stored, duplicates, rejected}`."""
        report: Mapping[str, Any] = self._checked(
            self._send("POST", "/agent/batch", to_json(envelopes), "application/json")
        ).json()
        return report

    def _get(self, path: str, query: Sequence[tuple[str, str]]) -> httpx.Response:
        accept = f"{ARROW}, application/json;q=0.5" if path == "/history" else "application/json"
        try:
            reply = self._client.get(path, params=list(query), headers={"Accept": accept})
        except httpx.HTTPError as error:
            raise Unavailable(f"no gateway answers at {self.url}: {error}") from error
        return self._checked(reply)

    def _send(self, method: str, path: str, body: bytes, content_type: str) -> httpx.Response:
        try:
            return self._client.request(method, path, content=body, headers={"Content-Type": content_type})
        except httpx.HTTPError as error:
            raise Unavailable(f"no gateway answers at {self.url}: {error}") from error

    def _checked(self, reply: httpx.Response) -> httpx.Response:
        if reply.status_code == 401:
            raise TokenInvalid(f"{self.url} does not accept this token")
        if reply.status_code == 403:
            raise Forbidden(f"this token may not do that at {self.url}")
        if reply.status_code >= 400:
            raise SkepError(f"{self.url} answered {reply.status_code}: {reply.text[:200]}")
        return reply


class _Page(NamedTuple):
    """The lake's columns and `gateway`, `day`, in order of row id; where the next page begins, if there is one."""

    table: pa.Table
    next_after: int | None


def _page(reply: httpx.Response, declares: Callable[[str, int, str, str], Declared]) -> _Page:
    if reply.headers.get("content-type", "").startswith(ARROW):
        with pa.ipc.open_stream(io.BytesIO(reply.content)) as stream:
            found = stream.read_all()
        columns = {name: found[name].to_pylist() for name in _TOLD}
        values = from_json("[" + ",".join(found["value"].to_pylist()) + "]")
        created, received, source_time = (found[name].cast(_TIME) for name in _TIMES)
        gateway = (found.schema.metadata or {}).get(GATEWAY_KEY.encode(), b"").decode()
        following = _AFTER.search(reply.headers.get("link", ""))
        next_after = int(following[1]) if following else None
    else:
        document = reply.json()
        items = document["items"]
        columns = {name: [item[name] for item in items] for name in _TOLD}
        values = [item["value"] for item in items]
        created, received, source_time = (
            pa.array([_micros(item.get(name)) for item in items], _TIME) for name in _TIMES
        )
        gateway = document["gateway"]
        next_after = int(document["cursor"]) if document.get("cursor") is not None else None
    series = zip(*(columns[name] for name in ("thingID", "tdVersion", "kind", "name")), strict=True)
    declared = [declares(*one) for one in series]
    spread = [placed(value, one.value_type) for value, one in zip(values, declared, strict=True)]
    quality = [(flags or 0) | value.quality for flags, value in zip(columns["quality"], spread, strict=True)]
    arrays: dict[str, Any] = {
        "row_id": columns["rowID"],
        "agent_id": [agent_of(thing) for thing in columns["thingID"]],
        "thing_id": columns["thingID"],
        "name": columns["name"],
        "kind": columns["kind"],
        "created": created,
        "received": received,
        "unit": [one.unit for one in declared],
        "quality": quality,
        "td_version": columns["tdVersion"],
        "source_time": source_time,
        **{name: [getattr(value, name) for value in spread] for name in VALUE_COLUMNS},
    }
    schema = arrow_schema(READINGS_COLUMNS)
    table = pa.table({field.name: arrays[field.name] for field in schema}, schema=schema)
    days = table["created"].cast(pa.date32())
    gateways = pa.array([gateway] * len(values), pa.string())
    return _Page(table.append_column("gateway", gateways).append_column("day", days), next_after)


_TOLD = ("rowID", "thingID", "kind", "name", "quality", "tdVersion")
_TIMES = ("created", "received", "sourceTime")


def _micros(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _wanted(table: pa.Table, selection: Selection, last: int | None) -> Any:
    wanted = pc.less_equal(table["row_id"], 2**63 - 1 if last is None else last)
    if selection.kinds:
        wanted = pc.and_(wanted, pc.is_in(table["kind"], pa.array(list(selection.kinds), pa.string())))
    return wanted
