"""Reading the lake through its manifest: rows in order, the newest of each series, and sums by window.

Hot rows above the sealed mark are added, so that hot and sealed data are one series and none is counted twice. Every
query names its files from one snapshot; a file that is gone or damaged is an error that names it, never a smaller
answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from things.blocks import PartFile
from things.declared import UNKNOWN
from things.lake import READINGS, READINGS_COLUMNS, Part, Snapshot, day_of
from twin.lake.columns import Gathering, uncollected
from twin.lake.manifest import Manifest
from twin.lake.pages import COLUMNS, at, beyond, first_rows, json_text, one_of, rows_of
from twin.lake.parts import dataset_of, files_of, naming
from twin.lake.rows import HotRows, Wanted
from twin.lake.tables import DAY_US, arrow_schema, day_start

T = TypeVar("T")

HOT_BATCH = 50_000
FIRST_STEP = 4
"""Days, or files, that a page looks into first; each further step is twice as large."""


class Selection(NamedTuple):
    """Which readings: empty sequences mean any; times are `created` in µs, from inclusive, to exclusive. Row ids are
    above `after_row` and below `before_row`."""

    things: Sequence[str] = ()
    names: Sequence[str] = ()
    kind: str | None = None
    start: int | None = None
    end: int | None = None
    after_row: int | None = None
    before_row: int | None = None


class LakeReader:
    """Reads one gateway's readings; `hot` adds what is not sealed yet."""

    def __init__(self, manifest: Manifest, hot: HotRows | None = None, *, memory: str = "256MB") -> None:
        self.manifest = manifest
        self._hot = hot
        self._memory = memory

    def rows(
        self,
        selection: Selection,
        *,
        limit: int,
        after: tuple[int, int] | None = None,
        after_row: int | None = None,
        descending: bool = False,
        sealed_only: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Rows as `things.records.Row` lists them, by (created, row id), or by row id where `after_row` is given."""
        if not sealed_only or (after_row is not None and descending):
            return self._page(selection, limit, after, after_row, descending, hot=not sealed_only)
        found: list[tuple[Any, ...]] = []
        for step in self._steps(selection, after_row, descending=descending):
            found += self._page(step, limit - len(found), after, after_row, descending, hot=False)
            if len(found) >= limit:
                break
        return found

    def _page(
        self,
        selection: Selection,
        limit: int,
        after: tuple[int, int] | None,
        after_row: int | None,
        descending: bool,
        *,
        hot: bool,
    ) -> list[tuple[Any, ...]]:
        wanted = _expression(selection) & beyond(after, after_row, descending=descending)
        order = ("created", "row_id") if after_row is None else ("row_id",)
        with self._sources(selection, hot=hot) as sources:
            batches = chain.from_iterable(one.to_batches(columns=list(COLUMNS), filter=wanted) for one in sources)
            return rows_of(first_rows(batches, order, limit, descending=descending))

    def _steps(self, selection: Selection, after_row: int | None, *, descending: bool) -> Iterator[Selection]:
        """The selection cut in pieces that follow one another in the order asked for, so that a page opens the files
        it needs and not all there are."""
        if after_row is not None:
            wide = selection._replace(after_row=after_row)
            firsts = sorted({part.first for part in chosen(self.manifest.snapshot(), wide)})
            cuts = [first for first in _growing(firsts) if first > after_row]
            for low, high in pairwise((after_row, *(cut - 1 for cut in cuts), None)):
                before = selection.before_row if high is None else high + 1
                yield selection._replace(after_row=low, before_row=before)
            return
        days = sorted({part.day for part in chosen(self.manifest.snapshot(), selection)}, reverse=descending)
        cuts = [day_start(day) + (DAY_US if descending else 0) for day in _growing(days)]
        for this, following in pairwise((None, *cuts, None)):
            start, end = (following, this) if descending else (this, following)
            yield selection._replace(
                start=max((one for one in (start, selection.start) if one is not None), default=None),
                end=min((one for one in (end, selection.end) if one is not None), default=None),
            )

    def latest(self, selection: Selection) -> list[tuple[Any, ...]]:
        """The newest sealed row, by (created, row id), of every series selected."""
        conditions, parameters = _conditions(selection)
        where = " AND ".join(conditions)
        with self._opened(selection, hot=False) as connection:
            # The row ids first: carrying whole rows through the aggregate would cost more than a second look.
            newest = connection.execute(
                "SELECT max(created), arg_max(row_id, (created, row_id)) FROM readings"
                f" WHERE {where} GROUP BY thing_id, kind, name",
                parameters,
            ).fetchall()
            if not newest:
                return []
            connection.execute("CREATE TEMP TABLE newest (row_id BIGINT)")
            connection.executemany("INSERT INTO newest VALUES (?)", [(row_id,) for _, row_id in newest])
            found = connection.sql(
                f"SELECT {', '.join(COLUMNS)} FROM readings WHERE {where} AND row_id IN (SELECT row_id FROM newest)",
                params=parameters,
            ).to_arrow_table()
            return rows_of(found)

    def windows(self, selection: Selection, window_us: int, *, limit: int) -> list[dict[str, Any]]:
        """Sums of hot and sealed readings by series and window, in that order, at most `limit`: `thing_id, kind, name,
        begin` (µs), `count`, `avg, min, max, sum` of what is a number, `first, last` as JSON text."""
        conditions, parameters = _conditions(selection)
        query = _WINDOWS.format(conditions=" AND ".join(conditions), window=int(window_us))
        with self._opened(selection) as connection:
            found = connection.execute(query, [*parameters, limit]).fetchall()
        return [
            {
                **dict(zip(_WINDOW_COLUMNS, row[:9], strict=True)),
                "first": json_text(*row[9].values()),
                "last": json_text(*row[10].values()),
            }
            for row in found
        ]

    def rollup(
        self, selection: Selection, window_us: int, *, expected_us: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Roll-ups of numeric readings as `things.lake.ROLLUPS_COLUMNS` has them, with `window_start` in µs.

        `expected_us` is the expected interval by name; the median of the series in the selection stands in for it.
        What a series' last reading before `start` carries into the first window counts there.
        """
        wide = selection._replace(start=None)
        conditions, parameters = _conditions(wide)
        start = -(2**62) if selection.start is None else selection.start
        with self._opened(wide) as connection:
            connection.execute("CREATE TEMP TABLE expected (name VARCHAR, us BIGINT)")
            if expected_us:
                connection.executemany("INSERT INTO expected VALUES (?, ?)", list(expected_us.items()))
            query = _ROLLUP.format(conditions=" AND ".join(conditions), window=int(window_us), start=start)
            cursor = connection.execute(query, parameters)
            names = [item[0] for item in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrow(self, selection: Selection) -> pa.Table:
        """The selected readings with all columns of the lake, by (created, row id)."""
        conditions, parameters = _conditions(selection)
        names = ", ".join(column.name for column in READINGS_COLUMNS)
        with self._opened(selection) as connection:
            query = f"SELECT {names} FROM readings WHERE {' AND '.join(conditions)} ORDER BY created, row_id"
            found = connection.sql(query, params=parameters).to_arrow_table()
        return found.cast(arrow_schema(READINGS_COLUMNS, self.manifest.gateway))

    @contextmanager
    def _opened(self, selection: Selection, *, hot: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
        """A DuckDB with the readings that may be selected as `readings`."""
        with (
            self._sources(selection, hot=hot) as sources,
            closing(duckdb.connect(":memory:", config={"memory_limit": self._memory, "threads": 2})) as connection,
        ):
            connection.execute("SET TimeZone = 'UTC'")
            for number, source in enumerate(sources):
                connection.register(f"source{number}", source)
            union = " UNION ALL ".join(f"SELECT * FROM source{number}" for number in range(len(sources)))
            connection.execute(f"CREATE TEMP VIEW readings AS {union}")
            yield connection

    @contextmanager
    def _sources(self, selection: Selection, *, hot: bool) -> Iterator[Sequence[pads.Dataset]]:
        """The files and hot rows that may be selected, of one snapshot; what goes wrong with them is said with the
        file's name."""
        while True:
            snapshot = self.manifest.snapshot()
            files = files_of(self.manifest.place, chosen(snapshot, selection))
            with naming(files, f"the lake at {self.manifest.place.url} cannot be read"):
                sources = list(self._datasets(snapshot, files, selection, hot=hot))
            # A hot file that was sealed and dropped while it was read is in the next snapshot only.
            if not hot or self._hot is None or self.manifest.snapshot().sealed == snapshot.sealed:
                break
        with naming(files, f"the lake at {self.manifest.place.url} cannot be read"):
            yield sources

    def _datasets(
        self, snapshot: Snapshot, files: Sequence[PartFile], selection: Selection, *, hot: bool
    ) -> Iterator[pads.Dataset]:
        schema = arrow_schema(READINGS_COLUMNS)
        if files:
            yield dataset_of(files, schema)
        if hot and self._hot is not None:
            yield pads.dataset(_hot_table(self._hot, snapshot.sealed, selection, schema))
        elif not files:
            yield pads.dataset(schema.empty_table())


def chosen(snapshot: Snapshot, selection: Selection) -> Sequence[Part]:
    """The files of readings that can hold what is selected."""
    first = None if selection.start is None else day_of(selection.start)
    last = None if selection.end is None else day_of(selection.end - 1)
    return [
        part
        for part in snapshot.parts
        if part.table == READINGS
        and (first is None or part.day >= first)
        and (last is None or part.day <= last)
        and (selection.before_row is None or part.first < selection.before_row)
        and (selection.after_row is None or part.last > selection.after_row)
    ]


def _growing(items: Sequence[T]) -> Sequence[T]:
    """Every item at which a next, larger step begins."""
    at, step, cuts = FIRST_STEP, FIRST_STEP, []
    while at < len(items):
        cuts.append(items[at])
        step *= 2
        at += step
    return cuts


def _expression(selection: Selection) -> pads.Expression:
    """What `_conditions` says, for Arrow."""
    created, row_id = pads.field("created"), pads.field("row_id")
    wanted = one_of("thing_id", selection.things) & one_of("name", selection.names)
    for condition in (
        None if selection.kind is None else pads.field("kind") == selection.kind,
        None if selection.start is None else created >= at(selection.start),
        None if selection.end is None else created < at(selection.end),
        None if selection.after_row is None else row_id > selection.after_row,
        None if selection.before_row is None else row_id < selection.before_row,
    ):
        wanted = wanted if condition is None else wanted & condition
    return wanted


def _conditions(selection: Selection) -> tuple[list[str], list[Any]]:
    conditions: list[str] = ["true"]
    parameters: list[Any] = []
    if selection.things:
        conditions.append(f"thing_id IN ({', '.join('?' * len(selection.things))})")
        parameters.extend(selection.things)
    if selection.names:
        conditions.append(f"name IN ({', '.join('?' * len(selection.names))})")
        parameters.extend(selection.names)
    if selection.kind is not None:
        conditions.append("kind = ?")
        parameters.append(selection.kind)
    for bound, sign in ((selection.start, ">="), (selection.end, "<")):
        if bound is not None:
            conditions.append(f"created {sign} make_timestamptz(?)")
            parameters.append(bound)
    if selection.after_row is not None:
        conditions.append("row_id > ?")
        parameters.append(selection.after_row)
    if selection.before_row is not None:
        conditions.append("row_id < ?")
        parameters.append(selection.before_row)
    return conditions, parameters


def _hot_table(hot: HotRows, sealed: int, selection: Selection, schema: pa.Schema) -> pa.Table:
    first = max(sealed, selection.after_row or 0) + 1
    last = hot.last() if selection.before_row is None else min(hot.last(), selection.before_row - 1)
    gathered = Gathering(lambda *_: UNKNOWN, "")
    wanted = Wanted(selection.things, selection.names, selection.kind, selection.start, selection.end)
    with uncollected():
        for batch in hot.columns(first, last, HOT_BATCH, wanted):
            gathered.add(batch)
    return pa.concat_tables([schema.empty_table(), *(day.table.cast(schema) for day in gathered.days())])


_WINDOW_COLUMNS = ("thing_id", "kind", "name", "begin", "count", "avg", "min", "max", "sum")
_WINDOWS = """
WITH given AS (
    SELECT thing_id, kind, name, epoch_us(created) AS t, row_id,
        CASE WHEN isfinite(value_double) THEN value_double END AS v,
        {{'d': value_double, 'l': value_long, 'b': value_bool, 's': value_string, 'j': value_json, 'q': quality}}
        AS given
    FROM readings WHERE {conditions}
)
SELECT thing_id, kind, name, t - ((t % {window} + {window}) % {window}) AS w, count(*), avg(v), min(v), max(v), sum(v),
    arg_min(given, (t, row_id)), arg_max(given, (t, row_id))
FROM given GROUP BY thing_id, kind, name, w ORDER BY thing_id, kind, name, w LIMIT ?
"""

_ROLLUP = """
WITH numeric AS (
    SELECT thing_id, kind, name, epoch_us(created) AS t, row_id, value_double AS v
    FROM readings WHERE {conditions} AND value_double IS NOT NULL AND isfinite(value_double)
), ordered AS (
    SELECT *, t - ((t % {window} + {window}) % {window}) AS w,
        lead(t) OVER series AS next_at, lag(t) OVER series AS prev_at, lag(v) OVER series AS prev_v
    FROM numeric WINDOW series AS (PARTITION BY thing_id, kind, name ORDER BY t, row_id)
), intervals AS (
    SELECT thing_id, kind, name, median(next_at - t) AS us FROM ordered
    WHERE next_at IS NOT NULL AND t >= {start} GROUP BY ALL
), weighted AS (
    SELECT *, least(coalesce(next_at, w + {window}), w + {window}) - t AS own,
        CASE WHEN prev_at IS NOT NULL AND prev_at < w THEN t - w ELSE 0 END AS carried
    FROM ordered
)
SELECT thing_id, name, w AS window_start, count(*) AS count, sum(v) AS sum, sum(v * v) AS sum_sq, min(v) AS min,
    max(v) AS max, first(v ORDER BY t, row_id) AS first, last(v ORDER BY t, row_id) AS last,
    sum(v * own + coalesce(prev_v, 0) * carried) / sum(own + carried) AS mean_tw,
    count(*) * nullif(coalesce(any_value(expected.us), any_value(intervals.us)), 0) / {window} AS completeness, kind
FROM weighted LEFT JOIN intervals USING (thing_id, kind, name) LEFT JOIN expected USING (name)
WHERE t >= {start} GROUP BY thing_id, kind, name, w ORDER BY thing_id, name, kind, w
"""
