"""Readings of a running gateway over its history API, page by page, replayable by row id."""

import io
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pyarrow as pa
from pydantic_core import to_json

from spark.sources.files import Selection, arrow_schema
from things.errors import Forbidden, SkepError, TokenInvalid, Unavailable
from things.lake import READINGS_COLUMNS, agent_of, placed
from things.times import parse_time, rfc3339

PAGE = 1_000
WAIT_S = 30.0
ARROW = "application/vnd.apache.arrow.stream"
DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LiveGateway:
    """One gateway's API. `ca` is the file of the authority that signed its certificate."""

    def __init__(self, url: str, token: str, *, ca: str | None = None, page: int = PAGE) -> None:
        self.url = url.rstrip("/")
        self._page = page
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
            reply = self._get("/history", [*query, ("after", str(after))])
            table = _table(reply)
            if not table.num_rows:
                return
            after = table["row_id"][-1].as_py()
            kept = table.filter(_wanted(table, selection, last))
            yield from kept.to_batches()
            if (last is not None and after >= last) or table.num_rows < self._page:
                return

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


def _table(reply: httpx.Response) -> pa.Table:
    """A page with the lake's columns and `gateway`, `day`, in order of row id."""
    if reply.headers.get("content-type", "").startswith(ARROW):
        with pa.ipc.open_stream(io.BytesIO(reply.content)) as stream:
            table = stream.read_all()
        columns = {
            field.name: table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in arrow_schema(READINGS_COLUMNS)
        }
        table = pa.table(columns)
    else:
        table = pa.Table.from_pylist(
            [_row(item) for item in reply.json()["items"]], schema=arrow_schema(READINGS_COLUMNS)
        )
    days = table["created"].cast(pa.timestamp("us", tz="UTC")).cast(pa.date32())
    gateway = pa.nulls(table.num_rows, pa.string()).fill_null("")
    return table.append_column("gateway", gateway).append_column("day", days)


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    value = placed(item["value"])
    return {
        **value._asdict(),
        "row_id": item["rowID"],
        "agent_id": agent_of(item["thingID"]),
        "thing_id": item["thingID"],
        "name": item["name"],
        "kind": item["kind"],
        "created": parse_time(item["created"]),
        "received": parse_time(item["received"]),
        "quality": int(item.get("quality") or 0) | value.quality,
        "td_version": int(item.get("tdVersion") or 0),
    }


def _wanted(table: pa.Table, selection: Selection, last: int | None) -> Any:
    import pyarrow.compute as pc

    wanted = pc.less_equal(table["row_id"], 2**63 - 1 if last is None else last)
    if selection.kinds:
        wanted = pc.and_(wanted, pc.is_in(table["kind"], pa.array(list(selection.kinds), pa.string())))
    return wanted
