"""What is doubtful about a reading, found on arrival: flags of `things.lake.Quality`, never a reason to refuse it.

Against the Thing Description: a name, type, range or unit that it does not declare. Against what came before in the
same series: a source clock that stands still, a value that never moves, readings that are missing or late. What is
remembered of a series is a few numbers; after a restart it begins with the latest value.
"""

from collections.abc import Callable

from things.bounded import Bounded
from things.lake import Quality
from things.lateness import is_late
from things.messages import JSONValue, Message
from things.records import Entry, Reading, Value
from things.td import RANGED_TYPES, Affordance, ThingDescription
from twin.values import LatestValues

MAX_SERIES = 100_000
"""Series that are remembered."""
STUCK_AFTER = 3
"""Readings with one and the same source time: two can happen in an instant, three are a clock that stands still."""
FLAT_READINGS, FLAT_US = 100, 3_600_000_000
"""A measured number that stays equal for this many readings and this long is suspicious."""
MISSING_INTERVALS = 2.5
"""A gap of more than this many declared intervals means that readings are missing."""

_Key = tuple[str, str, str]


class QualityWatch:
    """Assesses readings in the order they arrive. For the loop alone: every call updates what is remembered."""

    def __init__(
        self,
        values: LatestValues,
        *,
        max_series: int = MAX_SERIES,
        is_clock_trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._values = values
        self._is_clock_trusted = is_clock_trusted
        self._series = Bounded[_Key, _Series](max_series)

    def __call__(self, reading: Reading, message: Message, entry: Entry) -> int:
        """The flags of a reading that `message` brought about the Thing of `entry`; 0 for a good one."""
        key = (reading.thing_id, reading.kind, reading.name)
        series = self._series.get(key)
        if series is None or series.td_version != entry.version:
            series = self._seen(key, reading, entry.td, entry.version, series)
        flags = series.judged(message.data) | series.compared(reading, has_source_time=message.created is not None)
        if not self._is_clock_trusted():
            flags |= Quality.CLOCK
        return int(flags) if flags else 0

    def _seen(
        self, key: _Key, reading: Reading, td: ThingDescription, version: int, before: "_Series | None"
    ) -> "_Series":
        series = _Series(reading, td, version)
        if before is not None:
            series.remember(before)
        elif (latest := self._values.get(reading.thing_id, reading.kind, reading.name)) is not None:
            series.begin(latest)
        self._series[key] = series
        return series


class _Series:
    """What the TD says of a series, and what came last."""

    __slots__ = (
        "created",
        "declared",
        "equal",
        "equal_since",
        "interval_us",
        "is_measured",
        "is_valid",
        "known",
        "payload",
        "received",
        "repeats",
        "td_version",
        "unit",
    )

    def __init__(self, reading: Reading, td: ThingDescription, version: int) -> None:
        affordance = td.affordance(reading.kind, reading.name)
        interval_s = td.skep_interval_s(reading.name, reading.kind) if affordance is not None else None
        self.td_version = version
        self.known = affordance is not None
        self.declared = td.value_type(reading.kind, reading.name)
        self.unit = td.unit(reading.kind, reading.name)
        self.interval_us = None if not interval_s else int(interval_s * MISSING_INTERVALS * 1e6)
        # What else breaks its schema was refused before it came here.
        self.is_valid = _validator(affordance) if self.declared in RANGED_TYPES else None
        # A set point may stand still for years; what is only read is measured.
        self.is_measured = affordance is not None and affordance.is_read_only and self.declared in ("number", "integer")
        self.created: int | None = None
        self.received = 0
        self.payload = b""
        self.repeats = 1
        self.equal = 1
        self.equal_since = 0

    def remember(self, before: "_Series") -> None:
        """Go on from what was known under an earlier TD."""
        self.created, self.received = before.created, before.received
        self.payload, self.repeats = before.payload, before.repeats
        self.equal, self.equal_since = before.equal, before.equal_since

    def begin(self, latest: Value) -> None:
        """Go on from the latest value after a restart."""
        self.created, self.received = latest.created, latest.received
        self.payload, self.equal_since = latest.payload, latest.received

    def judged(self, value: JSONValue) -> int:
        """Against the TD."""
        if not self.known:
            return Quality.NOT_IN_TD
        flags = 0
        if self.is_valid is not None and not self.is_valid(value):
            flags |= Quality.RANGE if _is_of(value, self.declared) else Quality.TYPE
        if self.unit is not None and isinstance(value, dict) and value.get("unit", self.unit) != self.unit:
            flags |= Quality.UNIT
        return flags

    def compared(self, reading: Reading, *, has_source_time: bool) -> int:
        """Against what came before, which it then becomes part of."""
        # Plain integers: combining members of an enum costs more than everything else here.
        flags = 0 if reading.source_time is None else int(Quality.FUTURE)
        created, last = reading.created, self.created
        if last is not None and created < last and is_late(created, reading.received, last, self.received):
            # Late rows say nothing about the present, so nothing is remembered of them.
            return flags | Quality.LATE
        if last is not None and created == last and has_source_time and reading.source_time is None:
            self.repeats += 1
            if self.repeats >= STUCK_AFTER:
                flags |= Quality.STUCK_CLOCK
        else:
            self.repeats = 1
        if last is not None and self.interval_us is not None and created - last > self.interval_us:
            flags |= Quality.MISSING
        if reading.value == self.payload:
            self.equal += 1
            if self.is_measured and self.equal >= FLAT_READINGS and reading.received - self.equal_since >= FLAT_US:
                flags |= Quality.FLATLINE
        else:
            self.payload, self.equal, self.equal_since = reading.value, 1, reading.received
        self.created, self.received = created, reading.received
        return flags


def _validator(affordance: Affordance | None) -> Callable[[JSONValue], bool] | None:
    schema = None if affordance is None else affordance.schema_validator
    return None if schema is None else schema.is_valid


def _is_of(value: JSONValue, declared: str | None) -> bool:
    """Whether a value is of the declared type, one of RANGED_TYPES."""
    match declared:
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            return not isinstance(value, bool) and (
                isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            )
        case _:
            return isinstance(value, str)
