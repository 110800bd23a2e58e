"""Rows that a wrong clock stamped: found by what they show, moved, flagged, and noted for the audit log."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.inventory import read_inventory
from gateway.restamping import doubtful_rows, restamp_rows
from skep.cli import main
from tests.support import PUMP, skep
from things.errors import Invalid
from things.lake import Quality
from things.td import ThingDescription
from twin.history import files

pytestmark = pytest.mark.anyio

S = 1_000_000
NOON = 1_772_000_000 * S
HOUR = 3_600 * S


def _stored(home: Path, *rows: tuple[int, int | None, int]) -> Path:
    """A home with rows: (received, created if the agent said it, quality)."""
    (home / "history").mkdir(parents=True)
    file = files.create(home / "history", files.day_of(NOON), 1)
    with closing(files.writer(file)) as connection:
        connection.execute("INSERT INTO keys VALUES (1, 'dtw:a:b', 'property', 'flow')")
        for row_id, (received, created, quality) in enumerate(rows, start=1):
            values = (row_id, 1, received if created is None else created, row_id, b"1", received, quality)
            connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, 1, NULL)", values)
    with closing(sqlite3.connect(home / "twin.db")) as connection, connection:
        connection.execute("CREATE TABLE latest (row_id INTEGER, created INTEGER, received INTEGER)")
        connection.execute("INSERT INTO latest VALUES (?, ?, ?)", (len(rows), rows[-1][0], rows[-1][0]))
    return home


def _found(home: Path) -> list[tuple[int, int, int]]:
    return [(one.first, one.last, one.by) for one in doubtful_rows(home, Config())]


def test_rows_stamped_while_the_clock_was_ahead_are_found_and_set_right(tmp_path: Path) -> None:
    seconds = (0, 1, 2, 3_603, 3_604, 3_605, 6, 7)
    home = _stored(tmp_path, *((NOON + second * S, None, 0) for second in seconds))
    ((first, last, by),) = _found(home)
    assert (first, last, by) == (4, 6, -HOUR + S)

    done = restamp_rows(home, Config(), first, last, -3_600)

    assert done.rows == 3
    with closing(sqlite3.connect(next((home / "history").glob("*.db")))) as connection:
        rows = connection.execute("SELECT created, received, quality, source_time FROM rows ORDER BY row_id").fetchall()
    assert [received for _, received, _, _ in rows] == [NOON + second * S for second in range(8)]
    assert rows[3] == (NOON + 3 * S, NOON + 3 * S, Quality.RESTAMPED, NOON + 3_603 * S)
    assert rows[6][2:] == (0, None)
    assert not _found(home)
    inventory = read_inventory(home)
    assert inventory is not None
    assert inventory.asked == ["restamp rows 4 to 6 by -3600 s"]


def test_rows_flagged_until_the_clock_was_set_are_found(tmp_path: Path) -> None:
    early = [(NOON + second * S, None, int(Quality.CLOCK)) for second in range(3)]
    home = _stored(tmp_path, (NOON - S, None, 0), *early, (NOON + 2 * HOUR, None, 0))

    assert _found(home) == [(2, 4, 2 * HOUR - 2 * S)]


def test_quiet_hours_are_no_wrong_clock(tmp_path: Path) -> None:
    home = _stored(tmp_path, *((NOON + hour * HOUR, None, 0) for hour in range(5)))

    assert not _found(home)


def test_what_the_agent_said_of_the_time_stays_and_the_latest_value_follows(tmp_path: Path) -> None:
    home = _stored(tmp_path, (NOON, NOON - 5 * S, 0), (NOON + S, None, 0))

    restamp_rows(home, Config(), 1, 2, 10)

    with closing(sqlite3.connect(next((home / "history").glob("*.db")))) as connection:
        first = connection.execute("SELECT created, received, source_time FROM rows WHERE row_id = 1").fetchone()
    assert first == (NOON - 5 * S, NOON + 10 * S, None)
    with closing(sqlite3.connect(home / "twin.db")) as connection:
        assert connection.execute("SELECT created, received FROM latest").fetchone() == (NOON + 11 * S, NOON + 11 * S)


def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = _stored(tmp_path / "home", (NOON, None, 0))

    for by_s in (0, 1e12):
        with pytest.raises(Invalid):
            restamp_rows(home, Config(), 1, 1, by_s)
    with pytest.raises(Invalid, match="sealed"):
        restamp_rows(home, Config(), 1, 0, 5)
    assert main(["history", "restamp", "--first", "1", "--home", str(home)]) == 2
    assert main(["history", "restamp", "--home", str(home)]) == 0
    assert "no row seems to have a wrong time" in capsys.readouterr().out


async def test_values_that_come_while_the_clock_is_not_trusted_are_flagged(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text('{"now": 4000000000000000, "steady": 4000000000000000, "trusted": true}')
    async with skep(tmp_path) as running:
        stores = running.running.stores
        works = await running.add("works", "agent")
        await stores.twin.directory.put("dtw:works:p1", ThingDescription.of(PUMP, agent=True), agent="works")
        import httpx2

        bearer = {"authorization": f"Bearer {works.token}"}
        async with httpx2.AsyncClient(base_url=running.http, headers=bearer) as agent:
            (await agent.post("/agent/things/p1/properties", json={"flow": 7})).raise_for_status()
            history = (await agent.get("/things/dtw:works:p1/history")).json()
    assert [item["quality"] for item in history["items"] if item["name"] == "flow"] == [Quality.CLOCK]
