"""Hot rows as sealing takes them: anything with the shape of `HotRows` can be sealed. Needs no pyarrow."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class HotRow(NamedTuple):
    """One hot reading; `value` is JSON text, times are µs UTC. `unit` and `value_type` (the JSON type its data schema
    declares) are None where the store does not know them: sealing then asks the Thing Descriptions in the lake."""

    row_id: int
    thing_id: str
    kind: str
    name: str
    created: int
    received: int
    value: bytes | str
    quality: int
    td_version: int
    source_time: int | None = None
    unit: str | None = None
    value_type: str | None = None


Series = tuple[str, str, str]
"""Thing, kind and name."""


class HotColumns(NamedTuple):
    """Hot readings by column, in order of row id: `keys` says by number which of `series` each belongs to, everything
    else is as in `HotRow`."""

    series: dict[Any, Series]
    keys: Sequence[Any]
    row_ids: Sequence[int]
    created: Sequence[int]
    received: Sequence[int]
    values: Sequence[bytes | str]
    qualities: Sequence[int]
    td_versions: Sequence[int]
    source_times: Sequence[int | None]
    units: Sequence[str | None] = ()
    """Empty where the store knows none; so are the types."""
    value_types: Sequence[str | None] = ()

    def between(self, start: int, end: int) -> "HotColumns":
        """Some of the rows, by position."""
        columns: Sequence[Any] = self[1:]
        return HotColumns(self.series, *(column[start:end] for column in columns))


def columns_of(rows: Sequence[HotRow]) -> HotColumns:
    """The same readings by column."""
    # fmt: off
    row_ids, things, kinds, names, created, received, values, qualities, td_versions, source_times, units, types = (
        zip(*rows, strict=True)
    )
    # fmt: on
    keys = list(zip(things, kinds, names, strict=True))
    return HotColumns(
        {key: key for key in keys},
        keys,
        row_ids,
        created,
        received,
        values,
        qualities,
        td_versions,
        source_times,
        units if any(units) else (),
        types if any(types) else (),
    )


class Wanted(NamedTuple):
    """Which hot readings a query is about: empty sequences mean any; times are `created` in µs, from inclusive, to
    exclusive."""

    things: Sequence[str] = ()
    names: Sequence[str] = ()
    kind: str | None = None
    start: int | None = None
    end: int | None = None

    def takes(self, series: Series) -> bool:
        """Whether it is about a series."""
        thing_id, kind, name = series
        return (
            (not self.things or thing_id in self.things)
            and (self.kind is None or kind == self.kind)
            and (not self.names or name in self.names)
        )


EVERYTHING = Wanted()


class HotRows(Protocol):
    """The rows not yet sealed, as the hot store gives them to the sealing process."""

    def last(self) -> int:
        """The highest committed row id; 0 when there is none."""
        ...

    def first(self) -> int | None:
        """The lowest row id; None when there is none."""
        ...

    def columns(self, first: int, last: int, size: int, wanted: Wanted = EVERYTHING) -> Iterator[HotColumns]:
        """Wanted rows with ids from `first` to `last` (inclusive), in order of row id, at most `size` at a time, none
        of them empty. Gaps in the ids are normal."""
        ...
