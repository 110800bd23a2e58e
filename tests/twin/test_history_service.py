"""Sums by window and time travel: what the history service gives, and what it hides."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.twin.conftest import Clock
from tests.twin.doubles import NoLake
from tests.twin.test_directory_contract import td
from things.addresses import Address, Kind
from things.errors import Invalid, UnknownThing
from things.identity import AccountType, Principal
from things.messages import Operation
from things.records import Entry, Reading
from things.times import rfc3339
from twin.history_service import HistoryService
from twin.readings import Readings
from twin.store import Twin, open_twin

pytestmark = pytest.mark.anyio

LAMP, SECRET = "dtw:a:lamp", "dtw:a:secret"
CAROL = Principal(account="carol", type=AccountType.CONSUMER, role="viewer")
ROOT = Principal(account="root", type=AccountType.CONSUMER, role="admin")
SECOND, MINUTE = 1_000_000, 60_000_000
START = 1_770_000_000_000_000


def may(principal: Principal, operation: Operation, address: Address) -> bool:
    return principal is ROOT or (address.thing_id != SECRET and address.name != "hidden")


def view(entry: Entry, principal: Principal, protocol: str | None) -> dict[str, Any]:
    return {**entry.td.document, "skep:online": True}


@dataclass
class House:
    """A twin whose time the test sets, and its history service."""

    twin: Twin
    clock: Clock
    service: HistoryService

    async def publish(
        self, value: bytes, *, name: str = "level", thing: str = LAMP, created: int | None = None
    ) -> None:
        now = self.clock.now
        one = Reading(
            thing_id=thing,
            kind=Kind.PROPERTY,
            name=name,
            value=value,
            created=now if created is None else created,
            received=now,
            sender="a",
        )
        await self.twin.history.append([one])

    async def describe(self, thing: str, **members: Any) -> None:
        await self.twin.directory.put(thing, td(thing, **members), agent="a")

    async def call(self, method: str, principal: Principal = CAROL, /, **given: Any) -> Any:
        self.service.requirement(method, given)
        return await self.service.call(method, given, principal)

    async def values(self, time: int, thing: str = LAMP, principal: Principal = CAROL) -> dict[str, Any]:
        found = await self.call("readAsOf", principal, thingID=thing, time=rfc3339(time))
        return {name: one["value"] for name, one in found["properties"].items()}


@pytest.fixture
async def house(tmp_path: Path, clock: Clock) -> AsyncIterator[House]:
    with anyio.fail_after(60):
        async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as twin:
            readings = Readings(twin.history, NoLake())
            yield House(twin, clock, HistoryService(twin.directory, readings, may, view, clock=clock))


async def test_a_thing_is_read_as_it_was(house: House) -> None:
    await house.describe(LAMP, properties={"level": {"type": "integer"}})
    await house.publish(b"1")
    house.clock.now += MINUTE
    await house.describe(LAMP, properties={"level": {"type": "number"}, "mode": {}})
    await house.publish(b"2.5")
    await house.publish(b'"on"', name="mode")

    before = await house.call("readAsOf", thingID=LAMP, time=rfc3339(START + MINUTE - 1))
    now = await house.call("readAsOf", thingID=LAMP, time=rfc3339(START + MINUTE))

    assert before["td"]["properties"] == {"level": {"type": "integer"}}
    assert (before["version"], before["published"]) == (1, rfc3339(START))
    assert "skep:online" not in before["td"]
    assert {name: one["value"] for name, one in before["properties"].items()} == {"level": 1}
    assert before["properties"]["level"]["created"] == rfc3339(START)
    assert (now["version"], set(now["td"]["properties"])) == (2, {"level", "mode"})
    assert {name: one["value"] for name, one in now["properties"].items()} == {"level": 2.5, "mode": "on"}
    with pytest.raises(UnknownThing):
        await house.call("readAsOf", thingID=LAMP, time=rfc3339(START - 1))


async def test_a_late_value_counts_at_the_time_it_tells_of(house: House) -> None:
    await house.describe(LAMP)
    await house.publish(b"1")
    house.clock.now += MINUTE
    await house.publish(b"3")
    assert await house.values(START + 30 * SECOND) == {"level": 1}

    await house.publish(b"2", created=START + 20 * SECOND)

    assert await house.values(START + 30 * SECOND) == {"level": 2}
    assert await house.values(START + MINUTE) == {"level": 3}


async def test_a_removed_thing_is_there_before_and_starts_again_without_values(house: House) -> None:
    await house.describe(LAMP)
    await house.publish(b"1")
    house.clock.now += MINUTE
    await house.twin.directory.remove(LAMP)
    house.clock.now += MINUTE
    await house.describe(LAMP)
    house.clock.now += MINUTE
    await house.publish(b"4")

    assert await house.values(START + SECOND) == {"level": 1}
    with pytest.raises(UnknownThing):
        await house.values(START + MINUTE + SECOND)
    assert await house.values(START + 2 * MINUTE + SECOND) == {}
    assert await house.values(START + 3 * MINUTE) == {"level": 4}


async def test_what_the_caller_may_not_see_is_not_in_the_past_either(house: House) -> None:
    for thing in (LAMP, SECRET):
        await house.describe(thing)
        await house.publish(b"1", thing=thing)
        await house.publish(b"7", thing=thing, name="hidden")

    listed = await house.call("listAsOf", time=rfc3339(START))
    everything = await house.call("listAsOf", ROOT, time=rfc3339(START))
    changes = await house.call("difference", **{"from": rfc3339(START - 1)})

    assert await house.values(START) == {"level": 1}
    assert await house.values(START, principal=ROOT) == {"level": 1, "hidden": 7}
    with pytest.raises(UnknownThing):
        await house.values(START, SECRET)
    assert [one["title"] for one in listed["items"]] == [LAMP]
    assert [one["title"] for one in everything["items"]] == [LAMP, SECRET]
    assert [(one["thingID"], list(one["properties"])) for one in changes["items"]] == [(LAMP, ["level"])]
    assert house.service.requirement("readAsOf", {"thingID": LAMP, "time": rfc3339(START)}) == (
        Operation.HISTORY,
        Address(LAMP),
    )


async def test_the_directory_of_an_instant_is_read_in_pages(house: House) -> None:
    for number in range(7):
        await house.describe(f"dtw:a:{number}")
    house.clock.now += MINUTE
    await house.twin.directory.remove("dtw:a:3")
    await house.describe("dtw:a:9")

    async def titles(time: int, **given: Any) -> list[str]:
        found: list[str] = []
        page: dict[str, Any] = {"cursor": None}
        while "cursor" in page:
            more = {"cursor": page["cursor"]} if page["cursor"] else {}
            page = await house.call("listAsOf", time=rfc3339(time), limit=2, **more, **given)
            found += [one["title"].removeprefix("dtw:a:") for one in page["items"]]
        return found

    assert await titles(START) == ["0", "1", "2", "3", "4", "5", "6"]
    assert await titles(START + MINUTE) == ["0", "1", "2", "4", "5", "6", "9"]
    assert await titles(START - 1) == []
    assert (await house.call("listAsOf", time=rfc3339(START), offset=5))["items"][0]["title"] == "dtw:a:5"


async def test_the_difference_of_two_instants_names_what_came_went_and_changed(house: House) -> None:
    for number in range(4):
        await house.describe(f"dtw:a:{number}", description="old")
        await house.publish(b"1", thing=f"dtw:a:{number}")
    house.clock.now += MINUTE
    await house.twin.directory.remove("dtw:a:0")
    await house.describe("dtw:a:1", description="new")
    await house.publish(b"2", thing="dtw:a:2")
    await house.publish(b"1", thing="dtw:a:3")
    await house.describe("dtw:a:4")

    found: list[dict[str, Any]] = []
    page: dict[str, Any] = {"cursor": None}
    while "cursor" in page:
        more = {"cursor": page["cursor"]} if page["cursor"] else {}
        span = {"from": rfc3339(START), "to": rfc3339(START + MINUTE)}
        page = await house.call("difference", limit=2, **span, **more)
        found += page["items"]
    one = await house.call("difference", thingID="dtw:a:2", **{"from": rfc3339(START)})
    same = await house.call("difference", thingID="dtw:a:3", **{"from": rfc3339(START)})

    by_id = {item["thingID"].removeprefix("dtw:a:"): item for item in found}
    assert sorted(by_id) == ["0", "1", "2", "4"]
    assert (by_id["0"]["change"], by_id["4"]["change"]) == ("removed", "created")
    assert by_id["1"] == {"thingID": "dtw:a:1", "change": "updated", "patch": {"description": "new"}}
    level = by_id["2"]["properties"]["level"]
    assert (level["from"]["value"], level["to"]["value"]) == (1, 2)
    assert one["items"] == [by_id["2"]]
    assert same == {"items": []}


async def test_windows_are_summed_up_here_where_there_is_no_lake(house: House) -> None:
    await house.describe(LAMP)
    begin = START - START % MINUTE + MINUTE
    for number, value in enumerate((b"4", b"true", b"-1.5", b'"off"')):
        await house.publish(value, created=begin + number * 20 * SECOND)
    await house.publish(b"7", created=begin + 20 * SECOND, name="hidden")

    every = ["count", "avg", "min", "max", "sum", "first", "last"]
    found = await house.call("readWindows", thingID=LAMP, window="1m", agg=every)
    usual = await house.call("readWindows", thingID=LAMP, window="1m", to=rfc3339(begin + MINUTE))

    first = {"count": 3, "avg": 1.25, "min": -1.5, "max": 4.0, "sum": 2.5, "first": 4, "last": -1.5}
    second = {"count": 1, "avg": None, "min": None, "max": None, "sum": None, "first": "off", "last": "off"}
    series = {"kind": "property", "name": "level"}
    assert found["window"] == 60
    assert found["items"] == [
        {**series, "from": rfc3339(begin), "to": rfc3339(begin + MINUTE), **first},
        {**series, "from": rfc3339(begin + MINUTE), "to": rfc3339(begin + 2 * MINUTE), **second},
    ]
    assert [set(one) for one in usual["items"]] == [{"kind", "name", "from", "to", "avg", "min", "max", "count"}]


@pytest.mark.parametrize(
    ("points", "seconds", "most"), [(1_000, 10, 720), (100, 120, 60), (5, 1_800, 5), (1, 7_200, 2)]
)
async def test_a_number_of_points_chooses_a_window_people_expect(
    house: House, points: int, seconds: float, most: int
) -> None:
    await house.describe(LAMP)
    house.clock.now += 7_200 * SECOND
    for number in range(720):
        await house.publish(b"1", created=START + number * 10 * SECOND)

    found = await house.call("readWindows", thingID=LAMP, points=points)

    assert found["window"] == seconds
    assert len(found["items"]) <= most
    assert sum(one["count"] for one in found["items"]) == 720
    empty = await house.call("readWindows", thingID=LAMP, points=points, name="none")
    assert empty["items"] == []


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("readWindows", {"thingID": LAMP}),
        ("readWindows", {"thingID": LAMP, "window": "5m", "points": 3}),
        ("readWindows", {"thingID": LAMP, "window": "soon"}),
        ("readWindows", {"thingID": LAMP, "window": "5m", "agg": ["median"]}),
        ("readWindows", {"window": "5m"}),
        ("readAsOf", {"thingID": LAMP}),
        ("readAsOf", {"thingID": LAMP, "time": "yesterday"}),
        ("listAsOf", {}),
        ("difference", {}),
    ],
)
async def test_bad_input_is_refused(house: House, method: str, given: dict[str, Any]) -> None:
    await house.describe(LAMP)
    with pytest.raises(Invalid):
        await house.call(method, **given)


async def test_too_many_windows_are_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twin.history_service.MAX_WINDOWS", 3)
    await house.describe(LAMP)
    for number in range(4):
        await house.publish(b"1", created=START + number * SECOND)

    with pytest.raises(Invalid, match="wider window"):
        await house.call("readWindows", thingID=LAMP, window="1s")
    assert len((await house.call("readWindows", thingID=LAMP, window="2s"))["items"]) in (2, 3)
