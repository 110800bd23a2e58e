"""The built-in services: what they need, what they give, what they hide."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.twin.conftest import Clock
from tests.twin.doubles import All, NoLake, Plain
from tests.twin.test_directory_contract import td
from tests.twin.test_values_contract import published
from things.addresses import Address, Kind
from things.errors import (
    BadCursor,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    SkepError,
    TDInvalid,
    UnknownName,
    UnknownThing,
)
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.times import rfc3339
from twin.directory_service import DirectoryService
from twin.history_service import HistoryService
from twin.rdf.index import RdfIndex
from twin.readings import Readings
from twin.search import Search
from twin.store import Twin, open_twin
from twin.values_service import ValuesService

pytestmark = pytest.mark.anyio

LAMP, SECRET = "dtw:a:lamp", "dtw:a:secret"
CAROL = Principal(account="carol", type=AccountType.CONSUMER, role="viewer")
ROOT = Principal(account="root", type=AccountType.CONSUMER, role="admin")
FULL_TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Meter",
    "securityDefinitions": {"nosec": {"scheme": "nosec"}},
    "security": "nosec",
}


def may(principal: Principal, operation: Operation, address: Address) -> bool:
    return principal is ROOT or (address.thing_id != SECRET and address.name != "hidden")


@dataclass(frozen=True)
class Presence:
    """An agent that is here, or was."""

    is_online: bool
    since: int


class Services:
    """The three services over one twin, asked as the runtime asks them."""

    def __init__(self, twin: Twin, clock: Clock) -> None:
        search = Search(twin.directory, twin.values, may, presence=self.seen, clock=clock)
        self.twin = twin
        self.online: dict[str, Presence] = {}
        self.directory = DirectoryService(twin.directory, may, Plain(), search, RdfIndex(twin.directory, All()))
        self.values = ValuesService(twin.directory, twin.values, may, presence=self.told, clock=clock)
        self.history = HistoryService(twin.directory, Readings(twin.history, NoLake()), may, Plain().of, clock=clock)

    def seen(self, agent: str) -> Presence | None:
        return self.online.get(agent)

    def told(self, thing_id: str) -> dict[str, JSONValue]:
        return {"online": "a" in self.online}

    async def found(self, filter_: str, principal: Principal = CAROL) -> list[str]:
        page = await self.call(self.directory, "listTDs", principal, filter=filter_, limit=1_000)
        return [item["title"] for item in page["items"]]

    async def call(self, service: Any, method: str, principal: Principal = CAROL, /, **given: Any) -> Any:
        service.requirement(method, given)
        return await service.call(method, given, principal)


@pytest.fixture
async def services(tmp_path: Path, clock: Clock) -> AsyncIterator[Services]:
    async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as twin:
        for thing in (LAMP, SECRET):
            properties = {"level": {"type": "integer"}, "hidden": {"type": "integer"}, "unset": {}}
            await twin.directory.put(thing, td(thing, properties=properties), agent="a")
            for number in range(5):
                await published(twin, number, clock.now + number, thing=thing)
            await published(twin, 7, clock.now, thing=thing, name="hidden")
        yield Services(twin, clock)


async def test_every_method_is_in_a_valid_thing_description(services: Services) -> None:
    for service in (services.directory, services.values, services.history):
        assert set(td(service.td["title"], actions=service.td["actions"]).actions) == set(service.td["actions"])


@pytest.mark.parametrize(
    ("name", "given", "needed"),
    [
        ("readTD", {"thingID": LAMP}, (Operation.READ, Address(LAMP))),
        ("registerTD", {"thingID": "urn:x", "td": {}}, (Operation.PUBLISH_TD, Address("urn:x"))),
        ("removeTD", {"thingID": "urn:x"}, (Operation.REMOVE_TD, Address("urn:x"))),
        ("setOverlay", {"thingID": LAMP, "title": None}, (Operation.MANAGE, Address(LAMP))),
        ("readProperty", {"thingID": LAMP, "name": "level"}, (Operation.READ, Address(LAMP, Kind.PROPERTY, "level"))),
        ("readHistory", {"thingID": LAMP}, (Operation.HISTORY, Address(LAMP))),
        ("readHistory", {"things": [LAMP]}, (Operation.READ, Address("dtw:history:readings"))),
    ],
)
async def test_a_method_needs_the_right_to_what_it_touches(
    services: Services, name: str, given: JSONValue, needed: tuple[Operation, Address]
) -> None:
    service = next(one for one in (services.directory, services.values, services.history) if name in one.td["actions"])

    assert service.requirement(name, given) == needed


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("readNothing", {}, UnknownName),
        ("readTD", None, Invalid),
        ("readTD", [], Invalid),
        ("readTD", {"thingID": 1}, Invalid),
        ("readTD", {"thingID": LAMP, "other": 1}, Invalid),
        ("listTDs", {"limit": 0}, Invalid),
        ("listTDs", {"limit": 1001}, Invalid),
    ],
)
async def test_bad_input_is_refused_before_any_decision(
    services: Services, name: str, given: JSONValue, error: type[SkepError]
) -> None:
    with pytest.raises(error):
        services.directory.requirement(name, given)


async def test_listings_show_only_what_the_caller_may_see(services: Services) -> None:
    with anyio.fail_after(30):
        mine = await services.call(services.directory, "listTDs")
        all_ = await services.call(services.directory, "listTDs", ROOT)
        count = await services.call(services.directory, "listTDs", count=True)
        with pytest.raises(UnknownThing):
            await services.call(services.directory, "readTD", thingID=SECRET)

    assert [item["title"] for item in mine["items"]] == [LAMP]
    assert [item["title"] for item in all_["items"]] == [LAMP, SECRET]
    assert count["total"] == 1


async def test_listings_page_by_cursor_and_offset_and_filter(services: Services) -> None:
    with anyio.fail_after(30):
        for number in range(4):
            await services.call(
                services.directory, "registerTD", ROOT, thingID=f"urn:{number}", td={**FULL_TD, "title": f"M{number}"}
            )
        titles: list[str] = []
        page: dict[str, Any] = {"cursor": None}
        while "cursor" in page:
            more = {"cursor": page["cursor"]} if page["cursor"] else {}
            page = await services.call(services.directory, "listTDs", ROOT, limit=2, **more)
            titles += [item["title"] for item in page["items"]]
        offset = await services.call(services.directory, "listTDs", ROOT, offset=4)
        of_agent = await services.call(services.directory, "listTDs", ROOT, agent="a", type="Light", text="SECRET")

    assert titles == [LAMP, SECRET, "M0", "M1", "M2", "M3"]
    assert [item["title"] for item in offset["items"]] == ["M2", "M3"]
    assert [item["title"] for item in of_agent["items"]] == [SECRET]


async def test_a_filter_finds_things_by_type_title_agent_presence_and_value(services: Services, clock: Clock) -> None:
    with anyio.fail_after(30):
        for number, type_ in enumerate(("saref:Meter", "Meter", "https://example.com/t#Lamp")):
            await services.call(
                services.directory,
                "registerTD",
                ROOT,
                thingID=f"urn:{number}",
                td={**FULL_TD, "title": f"M{number}", "@type": type_},
            )
        assert await services.found("@type = Meter") == ["M0", "M1"]
        assert await services.found("@type = saref:Meter") == ["M0"]
        assert await services.found("@type = Lamp or title = M1") == ["M1", "M2"]
        assert await services.found("agent = a") == [LAMP]
        assert await services.found("agent = a", ROOT) == [LAMP, SECRET]
        assert await services.found("level > 3") == [LAMP]
        assert await services.found("level > 4") == []
        assert await services.found("online") == []
        services.online["a"] = Presence(True, clock.now)
        assert await services.found("online and level = 4") == [LAMP]
        services.online["a"] = Presence(False, 0)
        assert await services.found("online") == []
        assert await services.found('not online and lastSeen < "1990"') == [LAMP]
        assert await services.found("id = urn:1 and not (title ~ x)") == ["M1"]


async def test_a_filter_follows_the_directory(services: Services) -> None:
    with anyio.fail_after(30):
        await services.call(services.directory, "registerTD", ROOT, thingID="urn:m", td={**FULL_TD, "@type": "Meter"})
        await services.call(services.directory, "setOverlay", ROOT, thingID=LAMP, title="Hall")
        assert await services.found("@type = Meter") == ["Meter"]
        assert (await services.found("title = Hall"), await services.found(f"title = {LAMP!r}")) == (["Hall"], [])
        await services.call(services.directory, "updateTD", ROOT, thingID="urn:m", patch={"@type": "Lamp"})
        assert (await services.found("@type = Meter"), await services.found("@type = Lamp")) == ([], ["Meter"])
        await services.call(services.directory, "removeTD", ROOT, thingID="urn:m")
        assert await services.found("@type = Lamp") == []


async def test_what_the_caller_may_not_read_is_null_to_its_filter(services: Services) -> None:
    with anyio.fail_after(30):
        assert await services.found("hidden = 7", ROOT) == [LAMP, SECRET]
        assert await services.found("hidden = 7") == []
        assert await services.found("hidden = null and level > 0") == [LAMP]


async def test_pages_of_a_filtered_listing_join_without_holes(services: Services) -> None:
    with anyio.fail_after(30):
        for number in range(5):
            await services.call(
                services.directory, "registerTD", ROOT, thingID=f"urn:{number}", td={**FULL_TD, "@type": "Meter"}
            )
        ids: list[str] = []
        page: dict[str, Any] = {"cursor": None}
        while "cursor" in page:
            more = {"cursor": page["cursor"]} if page["cursor"] else {}
            page = await services.call(services.directory, "listTDs", filter="@type = Meter", limit=2, **more)
            ids += [item["id"] for item in page["items"]]
        count = await services.call(services.directory, "listTDs", filter="@type = Meter", count=True)
        with pytest.raises(Invalid, match="character"):
            await services.found("temperature >")

    assert ids == [f"urn:{number}" for number in range(5)]
    assert count["total"] == 5


async def test_former_descriptions_can_be_read_with_their_times(services: Services, clock: Clock) -> None:
    directory = services.directory
    first = clock.now
    with anyio.fail_after(30):
        await services.call(directory, "registerTD", ROOT, thingID="urn:m", td=FULL_TD)
        clock.now += 10_000_000
        await services.call(directory, "updateTD", ROOT, thingID="urn:m", patch={"title": "Later"})
        clock.now += 10_000_000
        await services.call(directory, "removeTD", ROOT, thingID="urn:m")
        versions = await services.call(directory, "listVersions", thingID="urn:m")
        then = await services.call(directory, "readTDAsOf", thingID="urn:m", time=rfc3339(first))
        for time in (first - 1, clock.now):
            with pytest.raises(UnknownThing):
                await services.call(directory, "readTDAsOf", thingID="urn:m", time=rfc3339(time))
        with pytest.raises(UnknownThing):
            await services.call(directory, "listVersions", thingID="urn:none")

    assert [(one["version"], one["isRemoved"]) for one in versions["items"]] == [(1, False), (2, False), (3, True)]
    assert (then["td"]["title"], then["published"]) == ("Meter", rfc3339(first))


async def test_entries_are_registered_changed_and_removed_under_preconditions(services: Services) -> None:
    directory = services.directory
    with anyio.fail_after(30):
        new = await services.call(directory, "registerTD", thingID="urn:x", td=FULL_TD, ifNoneMatch="*")
        with pytest.raises(PreconditionFailed):
            await services.call(directory, "registerTD", thingID="urn:x", td=FULL_TD, ifNoneMatch="*")
        changed = await services.call(
            directory, "updateTD", thingID="urn:x", patch={"title": "Other", "description": "d"}, ifMatch=new["etag"]
        )
        with pytest.raises(PreconditionFailed):
            await services.call(directory, "removeTD", thingID="urn:x", ifMatch=new["etag"])
        for patch in ({"title": None}, {"security": None}):
            with pytest.raises(TDInvalid):
                await services.call(directory, "updateTD", thingID="urn:x", patch=patch)
        with pytest.raises(Invalid):
            await services.call(directory, "updateTD", thingID="urn:x", patch={"id": "urn:y"})
        entry = await services.call(directory, "readEntry", thingID="urn:x")
        await services.call(directory, "removeTD", thingID="urn:x", ifMatch=changed["etag"])
        with pytest.raises(UnknownThing):
            await services.call(directory, "removeTD", thingID="urn:x")

    assert (new["isNew"], new["version"], changed["version"]) == (True, 1, 2)
    assert (entry["td"]["title"], entry["td"]["id"], entry["etag"]) == ("Other", "urn:x", changed["etag"])


async def test_twins_are_published_by_their_agents_only_but_may_get_a_title(services: Services) -> None:
    directory = services.directory
    with anyio.fail_after(30):
        for name, more in (("registerTD", {"td": FULL_TD}), ("updateTD", {"patch": {}}), ("removeTD", {})):
            with pytest.raises(Forbidden):
                await services.call(directory, name, ROOT, thingID=LAMP, **more)
        await services.call(directory, "setOverlay", ROOT, thingID=LAMP, title="Hall")
        with pytest.raises(Invalid):
            await services.call(directory, "setOverlay", ROOT, thingID=LAMP, properties={})
        found = await services.call(directory, "readTD", thingID=LAMP)

    assert found["title"] == "Hall"


async def test_latest_values_are_read_one_by_one_and_together(services: Services, clock: Clock) -> None:
    values = services.values
    with anyio.fail_after(30):
        one = await services.call(values, "readProperty", thingID=LAMP, name="level")
        mine = await services.call(values, "readProperties", thingID=LAMP)
        all_ = await services.call(values, "readProperties", ROOT, thingID=LAMP)
        events = await services.call(values, "readEvents", thingID=LAMP)
        with pytest.raises(NotFound):
            await services.call(values, "readProperty", thingID=LAMP, name="unset")
        with pytest.raises(UnknownName):
            await services.call(values, "readProperty", thingID=LAMP, name="none")
        with pytest.raises(UnknownThing):
            await services.call(values, "readProperties", thingID="dtw:a:none")

    assert (one["value"], one["quality"], one["created"]) == (4, 0, "2026-02-02T02:40:00.000004Z")
    assert (set(mine), set(all_), events) == ({"level", "online"}, {"level", "hidden", "online"}, {})


async def test_presence_is_read_like_a_property(services: Services, clock: Clock) -> None:
    with anyio.fail_after(30):
        away = await services.call(services.values, "readProperty", thingID=LAMP, name="online")
        services.online["a"] = Presence(True, clock.now)
        here = await services.call(services.values, "readProperty", thingID=LAMP, name="online")

    assert (away["value"], here["value"], here["created"]) == (False, True, rfc3339(clock.now))


async def test_history_pages_without_holes_and_hides_what_the_caller_may_not_see(services: Services) -> None:
    history = services.history
    with anyio.fail_after(30):
        seen: list[int] = []
        page: dict[str, Any] = {"cursor": None}
        while "cursor" in page:
            more = {"cursor": page["cursor"]} if page["cursor"] else {}
            page = await services.call(history, "readHistory", thingID=LAMP, limit=2, order="desc", **more)
            seen += [item["value"] for item in page["items"]]
        rows = await services.call(history, "readHistory", afterRow=0, limit=1_000)
        ranged = await services.call(
            history, "readHistory", things=[LAMP, SECRET], name="level", **{"from": "2026-02-02T02:40:00.000003Z"}
        )
        for cursor in ("x", "1.", "1.2.3", "²", f"{2**63}.1"):
            with pytest.raises(BadCursor):
                await services.call(history, "readHistory", thingID=LAMP, cursor=cursor)
        with pytest.raises(Invalid):
            await services.call(history, "readHistory", thingID=LAMP, **{"from": "yesterday"})
        with pytest.raises(UnknownThing):
            await services.call(history, "readHistory", thingID="dtw:a:none")

    assert seen == [4, 3, 2, 1, 0]
    assert {(item["thingID"], item["name"]) for item in rows["items"]} == {(LAMP, "level")}
    assert [item["rowID"] for item in rows["items"]] == [1, 2, 3, 4, 5]
    assert [(item["thingID"], item["value"]) for item in ranged["items"]] == [(LAMP, 3), (LAMP, 4)]
