"""Searching by index finds what looking at every Thing finds."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.twin.conftest import Clock
from tests.twin.test_directory_contract import td
from things.addresses import Address, Kind
from things.filters import parse_filter
from things.identity import AccountType, Principal
from things.jsontext import encode
from things.messages import JSONValue, Operation
from things.records import Value
from twin.search import Search
from twin.store import Twin, open_twin
from twin.titles import Titles

pytestmark = pytest.mark.anyio

CAROL = Principal(account="carol", type=AccountType.CONSUMER, role="viewer")
TITLES = ("Living room", "Bedroom", "Boiler\nroom", "ATTIC", "Straße", "Attic room")
MODES: tuple[JSONValue, ...] = ("eco", "boost", None, True, 3)


class Seen:
    def __init__(self, *, is_online: bool, since: int) -> None:
        self.is_online = is_online
        self.since = since


def may(principal: Principal, operation: Operation, address: Address) -> bool:
    return not (address.name == "mode" and address.thing_id.endswith("7"))


@pytest.fixture
async def twin(tmp_path: Path, clock: Clock) -> AsyncIterator[Twin]:
    async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as opened:
        for number in range(60):
            agent = f"a{number % 5}" if number % 7 else None
            thing_id = f"dtw:{agent}:t{number:02}" if agent else f"urn:t{number:02}"
            types = ["saref:Sensor", f"Kind{number % 4}"]
            await opened.directory.put(thing_id, td(TITLES[number % 6], **{"@type": types}), agent=agent)
            values: dict[str, JSONValue] = {"temperature": number / 2, "mode": MODES[number % 5]}
            for name, value in values.items() if number % 3 else ():
                opened.values.put(
                    thing_id,
                    Kind.PROPERTY,
                    name,
                    Value(value=value, payload=encode(value), created=number, received=number, row_id=number),
                )
        await opened.directory.set_overlay("urn:t14", {"title": "Cellar room"})
        opened.values.drop("urn:t28")
        yield opened


@pytest.mark.parametrize(
    "text",
    [
        "temperature > 20",
        "temperature <= 3.5",
        "temperature = 5",
        "temperature != 5",
        "temperature = null",
        "mode = eco",
        "mode > dull",
        "mode",
        "mode = false",
        'mode ~ "OOS"',
        'title ~ "room"',
        'title ~ "STRASSE"',
        'title ~ "r\nroom"',
        'title = "Cellar room"',
        'title > "B"',
        "@type = Sensor",
        "@type = saref:Sensor and @type = Kind2",
        '@type ~ "KIND"',
        "@type != Kind1",
        "agent = a2",
        "agent ~ A",
        "agent > a2",
        "agent != a2",
        "id = urn:t07",
        "id ~ t1",
        "online",
        "online = false",
        "not online",
        "lastSeen > 2026-01-01T00:00:00Z",
        "lastSeen = null",
        "online and temperature > 10 or title ~ attic",
        "not (agent = a1 or agent = a2)",
        "nothing = 3",
        "id = urn:none",
    ],
)
async def test_an_index_hides_nothing_that_passes(twin: Twin, clock: Clock, text: str) -> None:
    presence = {"a1": Seen(is_online=True, since=0), "a2": Seen(is_online=False, since=clock.now)}
    search = Search(twin.directory, twin.values, may, presence=presence.get, clock=clock)
    filter_ = parse_filter(text)

    everyone = twin.directory.ids()
    passing = [id_ for id_ in everyone if (entry := twin.directory.get(id_)) and search.passes(filter_, entry, CAROL)]
    with anyio.fail_after(30):
        candidates = await search.candidates(filter_)
        late = await search.candidates(filter_, "urn:t2")

    assert [id_ for id_ in candidates if id_ in passing] == passing
    assert list(candidates) == sorted(set(candidates))
    assert [id_ for id_ in late if id_ in passing] == [id_ for id_ in passing if id_ > "urn:t2"]


async def test_indexes_follow_what_comes_changes_and_goes(twin: Twin, clock: Clock) -> None:
    search = Search(twin.directory, twin.values, may, clock=clock)

    async def found(text: str) -> list[str]:
        return list(await search.candidates(parse_filter(text)))

    assert await found("title ~ loft") == []
    await twin.directory.put("urn:new", td("Loft", **{"@type": "Ladder"}), agent=None)
    assert (await found("title ~ loft"), await found("@type = Ladder")) == (["urn:new"], ["urn:new"])
    await twin.directory.set_overlay("urn:new", {"title": "Roof"})
    assert (await found("title ~ loft"), await found("title = Roof")) == ([], ["urn:new"])
    await twin.directory.remove("urn:new")
    assert (await found("title ~ roof"), await found("title = Roof"), await found("@type = Ladder")) == ([], [], [])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("room", ["a", "c"]), ("ROOM", ["a", "c"]), ("x", ["d"]), ("none", []), ("", ["a", "b", "c", "d"])],
)
def test_titles_are_looked_through_at_once(wanted: str, expected: list[str]) -> None:
    titles = Titles([("a", "Room, room"), ("b", ""), ("c", "bedRoom"), ("d", "x")])

    assert list(titles.containing(wanted)) == expected


def test_without_titles_nothing_is_found() -> None:
    assert [*Titles([]).containing("x"), *Titles([]).containing("")] == []
