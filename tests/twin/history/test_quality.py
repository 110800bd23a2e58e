"""Flags of readings on arrival."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from tests.twin.conftest import Clock
from tests.twin.test_directory_contract import td
from things.addresses import Kind
from things.identity import AccountType, Principal
from things.lake import Quality
from things.messages import JSONValue, Message, Operation
from things.records import Reading, Value
from twin.history.quality import FLAT_READINGS, FLAT_US, QualityWatch
from twin.store import Twin, open_twin

pytestmark = pytest.mark.anyio

T0 = 1_770_000_000_000_000
S = 1_000_000
METER = "dtw:a:meter"
AGENT = Principal(account="a", type=AccountType.AGENT, role="agent")
CONTEXT: dict[str, Any] = {"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}]}
PROPERTIES = {
    "level": {"type": "number", "minimum": 0, "maximum": 100, "readOnly": True, "unit": "percent"},
    "target": {"type": "number"},
    "tick": {"type": "integer", "skep:interval": "PT10S"},
    "weighed": {"type": "object", "unit": "kg"},
}


class Arriving:
    """Readings as they arrive at a watch, a moment after they were made."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.watch = QualityWatch(twin.values)
        self.received = T0

    def __call__(self, value: JSONValue, created: int | None = None, *, name: str = "level", **more: Any) -> Quality:
        self.received = more.pop("received", max(self.received, created or 0) + 1_000)
        received = self.received
        message = Message(
            operation=Operation.PUBLISH_PROPERTY,
            principal=AGENT,
            thing_id=METER,
            name=name,
            data=value,
            created=created,
            received=received,
        )
        reading = Reading(
            thing_id=METER,
            kind=Kind.PROPERTY,
            name=name,
            value=to_json(value),
            created=received if created is None else created,
            received=received,
            sender="a",
            **more,
        )
        entry = self.twin.directory.get(METER)
        assert entry is not None
        return Quality(self.watch(reading, message, entry))


@pytest.fixture
async def arriving(tmp_path: Path, clock: Clock) -> AsyncIterator[Arriving]:
    async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as twin:
        await twin.directory.put(METER, td(**CONTEXT, properties=PROPERTIES), agent="a")
        yield Arriving(twin)


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [
        ("level", 50, Quality(0)),
        ("level", 100.0, Quality(0)),
        ("level", 101, Quality.RANGE),
        ("level", -1, Quality.RANGE),
        ("level", "50", Quality.TYPE),
        ("level", True, Quality.TYPE),
        ("level", None, Quality.TYPE),
        ("tick", 1.5, Quality.TYPE),
        ("other", 1, Quality.NOT_IN_TD),
        ("weighed", {"value": 1, "unit": "kg"}, Quality(0)),
        ("weighed", {"value": 1, "unit": "lb"}, Quality.UNIT),
        ("weighed", {"value": 1}, Quality(0)),
    ],
)
async def test_values_are_held_against_the_thing_description(
    arriving: Arriving, name: str, value: JSONValue, flags: Quality
) -> None:
    assert arriving(value, T0, name=name) == flags


async def test_a_source_clock_that_stands_still_is_flagged_from_the_third_time(arriving: Arriving) -> None:
    flags = [arriving(number, T0, received=T0 + number * S) for number in range(4)]

    assert flags == [Quality(0), Quality(0), Quality.STUCK_CLOCK, Quality.STUCK_CLOCK]
    assert arriving(9, T0 + 9 * S) == Quality(0)


async def test_a_source_without_a_clock_is_never_stuck(arriving: Arriving) -> None:
    assert [arriving(number, received=T0) for number in range(5)] == [Quality(0)] * 5


async def test_late_and_future_times_are_flagged(arriving: Arriving) -> None:
    assert arriving(1, T0) == Quality(0)
    assert arriving(2, T0 - 1) == Quality.LATE
    assert arriving(3, T0 + S, source_time=T0 + 10**12) == Quality.FUTURE


async def test_nothing_is_late_because_the_clock_was_set_back(arriving: Arriving) -> None:
    assert arriving(1, T0 + 3_600 * S, received=T0 + 3_600 * S + 1) == Quality(0)
    assert arriving(2, received=T0) == Quality(0)
    assert arriving(3, T0 + S, received=T0 + S + 1) == Quality(0)
    assert arriving(4, T0, received=T0 + S + 2) == Quality.LATE


async def test_a_gap_of_more_than_the_declared_interval_is_flagged_once(arriving: Arriving) -> None:
    times = [0, 10, 30, 60, 70]

    assert [arriving(1, T0 + at * S, name="tick") for at in times] == [
        Quality(0),
        Quality(0),
        Quality(0),
        Quality.MISSING,
        Quality(0),
    ]


async def test_a_measured_value_that_never_moves_is_flagged_but_a_set_point_is_not(arriving: Arriving) -> None:
    step = FLAT_US // FLAT_READINGS + 1
    for name, flags in (("level", Quality.FLATLINE), ("target", Quality(0))):
        seen = [arriving(20, T0 + number * step, name=name) for number in range(FLAT_READINGS + 1)]
        assert set(seen[: FLAT_READINGS - 1]) == {Quality(0)}
        assert seen[-1] == flags
    assert arriving(21, T0 + 2 * FLAT_US) == Quality(0)


async def test_what_came_before_a_restart_counts(arriving: Arriving) -> None:
    latest = Value(value=1, payload=b"1", created=T0 + S, received=T0 + S + 1, row_id=1)
    arriving.twin.values.put(METER, Kind.PROPERTY, "level", latest)

    assert arriving(2, T0, received=T0 + 2 * S) == Quality.LATE


async def test_a_new_thing_description_keeps_what_was_seen(arriving: Arriving) -> None:
    arriving(150, T0)
    wider = {**PROPERTIES, "level": {"type": "number", "maximum": 200}}
    await arriving.twin.directory.put(METER, td(**CONTEXT, properties=wider), agent="a")

    assert arriving(150, T0 + S) == Quality(0)
    assert arriving(150, T0) == Quality.LATE


async def test_only_so_many_series_are_remembered(arriving: Arriving) -> None:
    arriving.watch = QualityWatch(arriving.twin.values, max_series=2)
    arriving(1, T0 + S, name="level")
    arriving(1, T0 + S, name="target")
    arriving(1, T0 + S, name="tick")

    assert arriving(1, T0, name="tick") == Quality.LATE
    assert [arriving(1, T0, name=name) for name in ("level", "target")].count(Quality.LATE) <= 1


async def test_series_in_turn_one_more_than_are_remembered_are_mostly_known(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving.watch = QualityWatch(arriving.twin.values, max_series=50)
    begun: list[str] = []
    seen = QualityWatch._seen

    def counted(self: QualityWatch, key: tuple[str, str, str], *given: Any) -> Any:
        begun.append(key[2])
        return seen(self, key, *given)

    monkeypatch.setattr(QualityWatch, "_seen", counted)
    for turn in range(20):
        for number in range(51):
            arriving(turn, name=f"n{number}")

    assert 51 < len(begun) < 51 + 0.2 * 19 * 51
