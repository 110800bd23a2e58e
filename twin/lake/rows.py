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


class HotRows(Protocol):
    """The rows not yet sealed, as the hot store gives them to the sealing process."""

    def last(self) -> int:
        """The highest committed row id; 0 when there is none."""
        ...

    def batches(self, first: int, last: int, size: int) -> Iterator[Sequence[HotRow]]:
        """Rows with ids from `first` to `last` (inclusive), in order of row id, at most `size` at a time. Gaps in the
        ids are normal."""
        ...

    def columns(self, first: int, last: int, size: int) -> Iterator[HotColumns]:
        """The same by column: what sealing takes, since it needs no row by itself."""
        ...
