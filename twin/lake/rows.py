"""Hot rows as sealing takes them: anything with the shape of `HotRows` can be sealed. Needs no pyarrow."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


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


class HotRows(Protocol):
    """The rows not yet sealed, as the hot store gives them to the sealing process."""

    def last(self) -> int:
        """The highest committed row id; 0 when there is none."""
        ...

    def batches(self, first: int, last: int, size: int) -> Iterator[Sequence[HotRow]]:
        """Rows with ids from `first` to `last` (inclusive), in order of row id, at most `size` at a time. Gaps in the
        ids are normal."""
        ...
