"""What a Thing said before, as records and tables: asked of a real runtime, and made of records by hand."""

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow
import pytest
from pydantic import JsonValue

from skep import Agent, Consumer, Forbidden, History, HistoryRow, HistoryWindow, Invalid, Unavailable, UnknownThing
from tests.skep.runtimes import PASSWORD, Site, site
from things.addresses import Kind
from things.identity import AccountType
from things.samples import sample_td

pytestmark = pytest.mark.anyio

PUMP = "dtw:pumps:pump-1"
NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def a_site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path / "home") as running:
        agent: Agent = running.agent()
        agent.expose("pump-1", sample_td("pump-station"))
        async with agent:
            for number in range(10):
                await agent.publish("pump-1", "flow", number, created=NOON + number * MINUTE)
            await agent.event("pump-1", "alarm", {"reason": "pressure"}, created=NOON + 10 * MINUTE)
            await agent.flush(10)
        yield running


@pytest.fixture
async def ann(a_site: Site) -> AsyncIterator[Consumer]:
    async with a_site.consumer() as consumer:
        yield consumer


async def test_rows_are_typed_and_their_times_aware(ann: Consumer) -> None:
    rows = await ann.thing(PUMP).history("flow", limit=2)

    first = rows[0]
    assert (first.thing_id, first.kind, first.name, first.value) == (PUMP, Kind.PROPERTY, "flow", 0)
    assert first.created == NOON
    assert first.created.tzinfo is UTC
    assert first.received > NOON
    assert first.source_time is None
    assert (len(rows), rows.is_complete) == (2, False)


async def test_start_counts_and_end_does_not_in_any_zone(ann: Consumer) -> None:
    east = timezone(timedelta(hours=9))
    start, end = (NOON + 2 * MINUTE).astimezone(east), (NOON + 5 * MINUTE).astimezone(east)

    rows = await ann.thing(PUMP).history("flow", start=start, end=end)

    assert [row.value for row in rows] == [2, 3, 4]


async def test_pages_follow_each_other_up_to_the_limit(ann: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.history.PAGE_ROWS", 3)
    pump = ann.thing(PUMP)

    everything, some = await pump.history(limit=None), await pump.history(limit=7, newest_first=True)

    assert [row.value for row in everything] == [*range(10), {"reason": "pressure"}]
    assert everything.is_complete
    assert [row.name for row in some] == ["alarm", *["flow"] * 6]
    assert not some.is_complete
    assert [row.value for row in await pump.history(kind="event")] == [{"reason": "pressure"}]


async def test_windows_hold_what_was_asked_for(ann: Consumer) -> None:
    pump = ann.thing(PUMP)

    five = await pump.history("flow", window=timedelta(minutes=5))
    sums = await pump.history("flow", window="5m", aggregates=("sum", "last"))
    points = await pump.history("flow", points=2, start=NOON, end=NOON + 10 * MINUTE)

    assert [(one.start, one.count, one.avg, one.min, one.max) for one in five] == [
        (NOON, 5, 2.0, 0.0, 4.0),
        (NOON + 5 * MINUTE, 5, 7.0, 5.0, 9.0),
    ]
    assert [(one.sum, one.last, one.avg) for one in sums] == [(10, 4, None), (35, 9, None)]
    assert 1 <= len(points) <= 2


async def test_wrong_questions_and_missing_rights_raise(a_site: Site, ann: Consumer) -> None:
    pump = ann.thing(PUMP)

    with pytest.raises(Invalid, match="no time zone"):
        await pump.history(start=datetime(2026, 3, 31))
    with pytest.raises(Invalid, match="not a window"):
        await pump.history(window="soon")
    with pytest.raises(Invalid, match="'median' is no aggregate"):
        await pump.history(window="5m", aggregates=("median",))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="at least 1"):
        await pump.history(limit=0)
    with pytest.raises(TypeError):
        await pump.history("flow", frm=NOON)  # type: ignore[call-overload]
    with pytest.raises(UnknownThing):
        await ann.thing("dtw:pumps:pump-9").history()
    add = a_site.running.stores.authenticator.administration.add
    await add("nil", AccountType.CONSUMER, "none", password=PASSWORD, with_token=False, by="test")
    async with a_site.consumer("nil") as nil:
        with pytest.raises((Forbidden, UnknownThing)):
            await nil.thing(PUMP).history()


async def test_history_becomes_a_data_frame_and_a_table(ann: Consumer) -> None:
    rows = await ann.thing(PUMP).history("flow")
    windows = await ann.thing(PUMP).history("flow", window="5m")

    frame, table = rows.to_pandas(), rows.to_arrow()

    assert frame["value"].mean() == 4.5
    assert frame["created"].iloc[1].to_pydatetime() == NOON + MINUTE
    assert table.column("value").to_pylist() == [float(number) for number in range(10)]
    assert table.schema.field("created").type == pyarrow.timestamp("us", tz="UTC")
    assert windows.to_pandas()["avg"].tolist() == [2.0, 7.0]
    assert windows.to_arrow().column("count").to_pylist() == [5, 5]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([True, False], [True, False]),
        (["a", None], ["a", None]),
        ([1, "a"], ["1", '"a"']),
        ([True, 1], ["true", "1"]),
        ([{"a": [1]}], ['{"a":[1]}']),
        ([], []),
    ],
)
def test_values_of_one_type_keep_it_and_others_are_json(values: list[JsonValue], kept: list[JsonValue]) -> None:
    assert a_history(values).to_arrow().column("value").to_pylist() == kept
    assert len(a_history(values).to_pandas()) == len(values)


def test_windows_without_what_was_not_asked_for_become_tables_too() -> None:
    window = HistoryWindow(kind=Kind.PROPERTY, name="flow", start=NOON, end=NOON + MINUTE, avg=1.5)
    history = History(HistoryWindow, [window])

    assert history.to_arrow().column("sum").to_pylist() == [None]
    assert history.to_pandas()["avg"].tolist() == [1.5]
    assert list(history) == [window]
    assert repr(history) == "<History of 1 HistoryWindow>"


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(Unavailable, match="pip install pandas"):
        a_history([1]).to_pandas()
    with pytest.raises(Unavailable, match="pip install pyarrow"):
        a_history([1]).to_arrow()


def a_history(values: list[JsonValue]) -> History[HistoryRow]:
    return History(
        HistoryRow,
        [
            HistoryRow(
                row_id=number,
                thing_id=PUMP,
                kind=Kind.PROPERTY,
                name="flow",
                value=value,
                created=NOON,
                received=NOON,
                quality=0,
                td_version=1,
            )
            for number, value in enumerate(values)
        ],
    )
