"""How much one account may keep here: Things, the bytes of their descriptions, and series of values.

Each costs memory for as long as the gateway lives, after restarts too. A name that a description does not declare makes
a series of its own and is bounded by Thing as well. What is there already is never refused: a limit that was lowered
stops what is new.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.ports import Directory, Test, ValueStore
from things.addresses import Kind
from things.bounded import Recent
from things.errors import TooMany, UnknownThing
from things.messages import Message, Operation
from things.records import Entry

MAX_UNCOMMITTED = 20_000
"""New series that are admitted and have no value yet; several batches fit."""

_KINDS = {Operation.PUBLISH_EVENT: Kind.EVENT, Operation.PUBLISH_PROPERTY: Kind.PROPERTY}
_Series = tuple[str, Kind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """What is allowed; see `[limits]` of the configuration."""

    things: int
    description_bytes: int
    series: int
    undeclared: int


@dataclass(slots=True)
class Quotas:
    """Counts by account, from what is there the first time it is asked, and then with every change."""

    directory: Directory
    values: ValueStore
    limits: QuotaLimits
    _described: dict[str, dict[str, int]] = field(init=False, default_factory=dict)
    """By account, the bytes of each of its descriptions."""
    _bytes: dict[str, int] = field(init=False, default_factory=dict)
    _series: dict[str, int] = field(init=False, default_factory=dict)
    _undeclared: dict[str, tuple[Entry, int]] = field(init=False, default_factory=dict)
    """By Thing, how many names of values its description does not declare, as long as that is the same."""
    _uncommitted: Recent[_Series, None] = field(init=False, default_factory=lambda: Recent(MAX_UNCOMMITTED))

    @contextmanager
    def describing(self, account: str, thing_id: str, size: int) -> Iterator[None]:
        """Count a description of so many bytes while it is written, and from then on unless that fails. Raises
        TooMany."""
        sizes = self._sizes(account)
        before = sizes.get(thing_id)
        if before is None and len(sizes) >= self.limits.things:
            raise TooMany(account, self.limits.things, "Things")
        grows = size - (before or 0)
        if grows > 0 and self._bytes[account] + grows > self.limits.description_bytes:
            raise TooMany(account, self.limits.description_bytes, "bytes of Thing Descriptions")
        self._put(account, thing_id, size)
        try:
            yield
        except BaseException:
            self._put(account, thing_id, before)
            raise

    def removed(self, account: str, thing_id: str, series: int) -> None:
        """A Thing with so many series goes; those that were admitted and have no value yet go with it."""
        self._sizes(account)
        self._put(account, thing_id, None)
        self._undeclared.pop(thing_id, None)
        admitted = [key for key in self._uncommitted if key[0] == thing_id]
        if account in self._series:
            self._series[account] -= series + sum(self.values.get(*key) is None for key in admitted)
        for key in admitted:
            del self._uncommitted[key]

    def check(self, message: Message) -> None:
        """Let a publication pass that begins no series, or one within the limits. Raises TooMany."""
        kind = _KINDS[message.operation]
        key = (message.thing_id, kind, message.name)
        if self.values.get(*key) is not None or key in self._uncommitted:
            return
        entry = self.directory.get(message.thing_id)
        if entry is None:
            raise UnknownThing(message.thing_id)
        account = entry.agent or ""
        series = self._series.get(account)
        if series is None:
            series = sum(len(self.values.of_thing(thing_id)) for thing_id in self.directory.things_of(account))
            self._series[account] = series  # also if it is refused: the next look costs nothing
        if series >= self.limits.series:
            raise TooMany(account, self.limits.series, "series of values")
        is_declared = entry.td.affordance(kind, message.name) is not None
        if not is_declared:
            undeclared = self._undeclared_of(entry)
            if undeclared >= self.limits.undeclared:
                raise TooMany(message.thing_id, self.limits.undeclared, "names that its description does not declare")
            self._undeclared[message.thing_id] = (entry, undeclared + 1)
        self._series[account] = series + 1
        self._uncommitted[key] = None

    def _sizes(self, account: str) -> dict[str, int]:
        sizes = self._described.get(account)
        if sizes is None:
            entries = ((thing_id, self.directory.get(thing_id)) for thing_id in self.directory.things_of(account))
            sizes = {thing_id: len(entry.td.text) for thing_id, entry in entries if entry is not None}
            self._described[account] = sizes
            self._bytes[account] = sum(sizes.values())
        return sizes

    def _put(self, account: str, thing_id: str, size: int | None) -> None:
        sizes = self._described[account]
        self._bytes[account] += (size or 0) - sizes.pop(thing_id, 0)
        if size is not None:
            sizes[thing_id] = size

    def _undeclared_of(self, entry: Entry) -> int:
        known = self._undeclared.get(entry.thing_id)
        if known is not None and known[0] is entry:
            return known[1]
        count = sum(entry.td.affordance(kind, name) is None for kind, name in self.values.of_thing(entry.thing_id))
        self._undeclared[entry.thing_id] = (entry, count)
        return count


@dataclass(frozen=True, slots=True)
class SeriesCheck:
    """Refuses a publication that would begin one series too many."""

    quotas: Quotas

    def __call__(self, message: Message) -> None:
        if message.operation in _KINDS:
            self.quotas.check(message)

    def remaining(self, message: Message) -> Sequence[Test]:
        return ()  # the series of one that passed is counted
