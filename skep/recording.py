"""A CSV recording read as what a Thing once said: columns become properties, one column is the time.

Delimiter and header are sniffed, the time column and the type of every other column are found by reading the file
once. Rows that do not fit are not guessed at: each is reported with its line number and counted.
"""

import csv
import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from things.durations import iso_text
from things.errors import Invalid, Malformed, NotFound
from things.jsontext import encode
from things.messages import JSONValue

MAX_COLUMNS = 200
SNIFFED_CHARS = 65_536
FIT = 0.8
"""A column is of a type if at least this share of its filled cells is; the others are unreadable rows."""

_TIME_NAMES = ("timestamp", "time", "datetime", "date", "created", "ts", "at")
_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y")
_LEAP = re.compile(r"(.+\d\d:\d\d:)60(\D.*)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})
_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that is a property, and its JSON type."""

    index: int
    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One readable row: when (µs UTC), and the values that are there."""

    line: int
    at: int
    values: Mapping[str, JSONValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """One row that does not fit, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A file that was looked through; `rows` reads it again, row by row."""

    path: Path
    delimiter: str
    has_header: bool
    time_index: int
    columns: Sequence[Column]
    interval_s: float | None
    """The median distance of two rows."""

    @staticmethod
    def open(path: Path, *, time_column: str | None = None) -> "Recording":
        """Look the file through. Raises NotFound, Malformed, Invalid (no time column, nothing to say)."""
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                sample = file.read(SNIFFED_CHARS)
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {path}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise Malformed(f"{path.name} cannot be read as UTF-8 text: {error}") from error
        if not sample.strip():
            raise Malformed(f"{path.name} is empty")
        delimiter = _delimiter(sample)
        first = next(csv.reader(sample.splitlines(), delimiter=delimiter))
        if len(first) > MAX_COLUMNS:
            raise Malformed(f"{path.name} has {len(first)} columns; at most {MAX_COLUMNS} are read")
        has_header = not any(_NUMBER.fullmatch(cell.strip()) or time_of(cell) is not None for cell in first)
        names = _names(first if has_header else [""] * len(first))
        return _looked_through(path, delimiter, has_header, names, time_column)

    def rows(self) -> Iterator[Recorded | Unreadable]:
        """Every row in file order."""
        for line, cells in _cells(self.path, self.delimiter, self.has_header):
            yield self._row(line, cells)

    def td(self, title: str, units: Mapping[str, str] | None = None) -> bytes:
        """A Thing Description of what the columns say."""
        properties: dict[str, JSONValue] = {}
        for column in self.columns:
            schema: dict[str, JSONValue] = {"type": column.type, "readOnly": True, "observable": True}
            if units and column.name in units:
                schema["unit"] = units[column.name]
            if self.interval_s:
                schema["skep:interval"] = iso_text(self.interval_s)
            properties[column.name] = schema
        return encode(
            {
                "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
                "title": title,
                "description": f"Replayed from {self.path.name}.",
                "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
                "security": ["nosec_sc"],
                "properties": properties,
            }
        )

    def _row(self, line: int, cells: Sequence[str]) -> Recorded | Unreadable:
        if self.time_index >= len(cells):
            return Unreadable(
                line=line, reason=f"has {len(cells)} cells, the time should be in cell {self.time_index + 1}"
            )
        at = time_of(cells[self.time_index])
        if at is None:
            return Unreadable(line=line, reason=f"{cells[self.time_index][:40]!r} is not a time")
        values: dict[str, JSONValue] = {}
        for column in self.columns:
            cell = cells[column.index].strip() if column.index < len(cells) else ""
            if cell.lower() in _MISSING:
                continue
            value = _value(cell, column.type)
            if value is None:
                return Unreadable(line=line, reason=f"{column.name}: {cell[:40]!r} is not a {column.type}")
            values[column.name] = value
        if not values:
            return Unreadable(line=line, reason="no value")
        return Recorded(line=line, at=at, values=values)


def time_of(cell: str) -> int | None:
    """µs UTC of a cell: ISO 8601, common written forms, or seconds or milliseconds since 1970; None if it is none.
    A time without zone is taken as UTC; a leap second counts as the second after, as on the wire."""
    text = cell.strip()
    leap = _LEAP.fullmatch(text)
    if leap:
        before = time_of(f"{leap[1]}59{leap[2] or ''}")
        return None if before is None else before + _US
    if re.fullmatch(r"\d{9,10}(\.\d+)?", text):
        return round(float(text) * _US)
    if re.fullmatch(r"\d{12,13}", text):
        return int(text) * 1_000
    if len(text) < 8 or not text[0].isdigit():
        return None
    moment: datetime | None = None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        for form in _FORMATS:
            try:
                moment = datetime.strptime(text, form)
                break
            except ValueError:
                continue
    if moment is None or (text.isdigit() and len(text) != 8):
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * _US + whole.microseconds


def _looked_through(
    path: Path, delimiter: str, has_header: bool, names: Sequence[str], time_column: str | None
) -> Recording:
    sample = list(itertools.islice(_cells(path, delimiter, has_header), 1_000))
    if not sample:
        raise Malformed(f"{path.name} holds no rows")
    time_index = _time_index(path, names, [cells for _, cells in sample], time_column)
    counts = [_Tally() for _ in names]
    times: list[int] = []
    for _, cells in _cells(path, delimiter, has_header):
        for tally, cell in zip(counts, cells, strict=False):
            tally.count(cell.strip())
        at = time_of(cells[time_index]) if time_index < len(cells) else None
        if at is not None and len(times) < 10_000:
            times.append(at)
    columns = [
        Column(index=index, name=name, type=tally.type)
        for index, (name, tally) in enumerate(zip(names, counts, strict=True))
        if index != time_index and tally.filled
    ]
    if not columns:
        raise Invalid(f"{path.name} has a time column and nothing else")
    steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return Recording(
        path=path,
        delimiter=delimiter,
        has_header=has_header,
        time_index=time_index,
        columns=columns,
        interval_s=statistics.median(steps) / _US if steps else None,
    )


class _Tally:
    """How many cells of a column could be of each type."""

    def __init__(self) -> None:
        self.filled = self._integers = self._numbers = self._booleans = 0

    def count(self, cell: str) -> None:
        if cell.lower() in _MISSING:
            return
        self.filled += 1
        self._integers += bool(_INTEGER.fullmatch(cell))
        self._numbers += bool(_NUMBER.fullmatch(cell))
        self._booleans += cell.lower() in _BOOLEANS

    @property
    def type(self) -> str:
        if self._integers and self._integers == self._numbers and self._integers >= FIT * self.filled:
            return "integer"
        if self._numbers >= FIT * self.filled:
            return "number"
        return "boolean" if self._booleans >= FIT * self.filled else "string"


def _time_index(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], wanted: str | None) -> int:
    if wanted is not None:
        if wanted not in names:
            raise Invalid(f"{path.name} has no column {wanted!r}; it has {', '.join(names)}")
        return names.index(wanted)

    def share(index: int) -> float:
        return sum(index < len(cells) and time_of(cells[index]) is not None for cells in rows) / len(rows)

    fitting = [index for index in range(len(names)) if share(index) >= FIT]
    if not fitting:
        raise Invalid(f"{path.name} has no column of times; name one with --time-column")
    named = [index for index in fitting if names[index].lower() in _TIME_NAMES]
    return (named or fitting)[0]


def _cells(path: Path, delimiter: str, has_header: bool) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(file, delimiter=delimiter)
            if has_header:
                next(reader, None)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except (OSError, csv.Error) as error:
        raise Malformed(f"{path.name}: {error}") from error


def _delimiter(sample: str) -> str:
    first = sample.splitlines()[0]
    try:
        return csv.Sniffer().sniff(sample, delimiters=",;\t|").delimiter
    except csv.Error:
        return max(",;\t|", key=first.count)


def _names(header: Sequence[str]) -> list[str]:
    """Column names as affordance names: never empty, never the same twice."""
    names: list[str] = []
    for number, cell in enumerate(header, 1):
        name = " ".join(cell.split())[:100] or f"column{number}"
        while name in names:
            name = f"{name}-{number}"
        names.append(name)
    return names


def _value(cell: str, kind: str) -> JSONValue:
    match kind:
        case "integer":
            return int(cell) if _INTEGER.fullmatch(cell) else None
        case "number":
            return float(cell) if _NUMBER.fullmatch(cell) else None
        case "boolean":
            return _BOOLEANS.get(cell.lower())
        case _:
            return cell
