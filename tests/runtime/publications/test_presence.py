"""Whether agents are here, told of their Things."""

from pathlib import Path

import pytest

from runtime.ports import Publication
from runtime.publications.presence import Presence, Seen
from tests.runtime.harness import PUMP, House, house
from things.times import rfc3339

pytestmark = pytest.mark.anyio

PUMP_ID = "dtw:mill:pump"


class Watched:
    """A presence with a clock of the test's own, and what it told."""

    def __init__(self, h: House) -> None:
        self.now = 1_000_000
        self.told: list[Publication] = []
        self.recorded: list[tuple[str, Seen]] = []
        self.presence = Presence(
            directory=h.twin.directory,
            publish=self.told.append,
            clock=lambda: self.now,
            recorded=lambda agent, seen: self.recorded.append((agent, seen)),
        )

    @property
    def values(self) -> list[tuple[str, object]]:
        return [(one.name, one.value) for one in self.told]


async def test_each_change_is_recorded_once_and_told_of_every_thing_of_the_agent(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump")
        await h.publish_td("mill", "gate")
        await h.publish_td("other", "pump")
        watched = Watched(h)

        watched.presence.changed("mill", True)
        watched.presence.changed("mill", True)
        watched.now += 5_000_000
        watched.presence.changed("mill", False)

        assert watched.recorded == [("mill", Seen(True, 1_000_000)), ("mill", Seen(False, 6_000_000))]
        assert {one.thing_id for one in watched.told} == {PUMP_ID, "dtw:mill:gate"}
        assert [value for name, value in watched.values if name == "online"] == [True, True, False, False]


async def test_absent_agent_was_seen_last_when_it_left_and_a_present_one_now(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump")
        watched = Watched(h)

        watched.presence.changed("mill", True)
        watched.now += 9_000_000
        here = watched.presence.properties(PUMP_ID)
        watched.presence.changed("mill", False)
        watched.now += 9_000_000

        assert here == {"online": True, "lastSeen": rfc3339(10_000_000)}
        assert watched.presence.properties(PUMP_ID) == {"online": False, "lastSeen": rfc3339(10_000_000)}


async def test_names_that_the_description_declares_are_left_to_it(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump", PUMP | {"properties": {"online": {"type": "boolean"}}})
        watched = Watched(h)

        watched.presence.changed("mill", True)

        assert {name for name, _ in watched.values} == {"skep:online", "lastSeen"}


async def test_after_a_start_nobody_is_here_and_each_is_remembered(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump")
        watched = Watched(h)

        described = h.twin.directory.get(PUMP_ID)
        assert described is not None
        assert watched.presence.properties(PUMP_ID) == {"online": False, "lastSeen": rfc3339(described.created)}
        watched.presence.restore("mill", 500_000)

        assert watched.presence.of("mill") == Seen(False, 500_000)
        assert watched.presence.properties(PUMP_ID) == {"online": False, "lastSeen": rfc3339(500_000)}
        assert not watched.told


async def test_other_entries_of_the_directory_have_no_presence(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        assert Watched(h).presence.properties("urn:lamp") == {}
