"""Sealing: typed, sorted, by day, exactly once, however often and wherever it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.twin.lake.samples import DAY, LAMP, NOON, SECOND, Lake, Rows, history_of, hot_row
from things.errors import Conflict, StorageDamaged
from things.lake import Commit, Quality
from twin.lake import sealing
from twin.lake.hot import HotFiles
from twin.lake.sealing import Beside

TD = {
    "properties": {"temperature": {"type": "number", "unit": "Cel"}, "count": {"type": "integer"}},
    "events": {"alarm": {"data": {"type": "string"}}},
}


def things(version: int = 1, td: object = TD) -> Beside:
    row = {"thing_id": LAMP, "td_version": version, "published": NOON, "td": json.dumps(td)}
    return Beside("things", version, [row])


def test_sealed_rows_are_typed_by_their_thing_description(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [
        hot_row(1, 21),
        hot_row(2, 7, name="count"),
        hot_row(3, "smoke", kind="event", name="alarm"),
        hot_row(4, "warm"),
        hot_row(5, True, name="unknown"),
        hot_row(6, {"x": 1}, name="unknown"),
        hot_row(7, b"{broken", name="unknown"),
        hot_row(8, 2**70, name="count", source_time=NOON + DAY, quality=int(Quality.FUTURE)),
    ]

    sealed = lake.sealer.seal(Rows(rows), [things()])

    assert (sealed.first, sealed.last, sealed.rows, sealed.commits) == (1, 8, 8, 1)
    found = {row["row_id"]: row for row in lake.table().to_pylist()}
    assert found[1]["value_double"] == 21.0
    assert found[1]["value_long"] is None
    assert found[1]["unit"] == "Cel"
    assert found[1]["agent_id"] == "agent1"
    assert found[2]["value_long"] == 7
    assert found[3]["value_string"] == "smoke"
    assert (found[4]["value_string"], found[4]["quality"]) == ("warm", Quality.TYPE)
    assert found[5]["value_bool"] is True
    assert found[6]["value_json"] == '{"x": 1}'
    assert (found[7]["value_string"], found[7]["quality"]) == ("{broken", Quality.UNREADABLE)
    assert (found[8]["value_string"], found[8]["quality"]) == (str(2**70), Quality.HUGE | Quality.FUTURE)
    assert found[8]["source_time"].timestamp() == (NOON + DAY) / SECOND


def test_a_value_is_typed_by_the_version_it_was_published_under(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    integer = {"properties": {"temperature": {"type": "integer"}}}
    rows = [hot_row(1, 21, td_version=1), hot_row(2, 21, td_version=2), hot_row(3, 21, td_version=9)]

    lake.sealer.seal(Rows([]), [things(1)])
    lake.sealer.seal(Rows(rows), [things(2, integer)])

    longs = lake.table().sort_by("row_id")["value_long"].to_pylist()
    assert longs == [None, 21, 21]


@pytest.mark.parametrize("count", [0, 5, 6, 7])
def test_a_long_backlog_is_sealed_by_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(sealing, "ROWS_PER_COMMIT", 3)
    monkeypatch.setattr(sealing, "BATCH", 1)
    lake = Lake(tmp_path)
    rows = [hot_row(row_id, row_id / 2) for row_id in range(1, count + 1)]

    sealed = lake.sealer.seal(Rows(rows), [things()])

    # The Thing Description goes with the first of them, or alone.
    commits = max(1, -(-count // 3))
    assert (sealed.first, sealed.last, sealed.rows, sealed.commits) == (1, count, count, commits)
    assert lake.snapshot().seq == commits
    assert sum(part.rows for part in lake.snapshot().parts if part.table == "readings") == count
    assert sealed.parts == len(lake.snapshot().parts)
    assert not count or lake.values() == [(row_id, row_id / 2) for row_id in range(1, count + 1)]


def test_rows_lie_in_the_day_they_were_created_in_order_of_series_and_time(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [
        hot_row(1, 1.0, created=NOON + 2 * SECOND),
        hot_row(2, 2.0, created=NOON, thing_id="dtw:agent1:bulb"),
        hot_row(3, 3.0, created=NOON),
        hot_row(4, 4.0, created=NOON - DAY),
        hot_row(5, 5.0, created=NOON),
    ]

    lake.sealer.seal(Rows(rows))

    parts = {part.day: part for part in lake.snapshot().parts}
    assert sorted(parts) == ["2025-12-31", "2026-01-01"]
    today = pq.read_table(tmp_path / parts["2026-01-01"].path, partitioning=None)
    assert today["row_id"].to_pylist() == [2, 3, 5, 1]
    assert (parts["2026-01-01"].first, parts["2026-01-01"].last, parts["2026-01-01"].rows) == (1, 5, 4)
    assert pq.read_metadata(tmp_path / parts["2026-01-01"].path).metadata[b"skep.schema"] == b"1"


def test_sealing_again_does_nothing_and_later_rows_come_beside(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    hot = Rows([hot_row(1, 1.0), hot_row(2, 2.0)])
    lake.sealer.seal(hot)

    again = lake.sealer.seal(hot)
    hot.rows.append(hot_row(3, 3.0, created=NOON - 90 * DAY))
    late = lake.sealer.seal(hot)

    assert (again.rows, again.commits) == (0, 0)
    assert (late.first, late.last, late.rows) == (3, 3, 1)
    assert lake.values() == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_sealing_stops_at_the_row_it_was_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    hot = Rows([hot_row(row_id, float(row_id)) for row_id in range(1, 6)])

    lake.sealer.seal(hot, up_to=3)

    assert lake.snapshot().sealed == 3


def test_rows_of_small_tables_are_taken_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.sealer.seal(Rows([]), [things()])

    again = lake.sealer.seal(Rows([]), [things()])

    assert again.commits == 0
    assert lake.table("things").num_rows == 1


def test_two_writers_cannot_take_the_same_number(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    base = lake.snapshot()
    lake.sealer.seal(Rows([hot_row(1, 1.0)]))

    with pytest.raises(Conflict):
        lake.manifest.commit(base, Commit(gateway="gw", seq=1, first=1, last=1))


def test_a_damaged_hot_file_is_named_and_nothing_is_sealed_past_it(tmp_path: Path) -> None:
    folder = history_of(tmp_path / "history", [hot_row(row_id, 1.0) for row_id in range(1, 2000)])
    path = next(folder.glob("*.db"))
    data = bytearray(path.read_bytes())
    data[100:4096] = os.urandom(3996)
    path.write_bytes(data)
    lake = Lake(tmp_path / "lake")

    with pytest.raises(StorageDamaged, match=path.name):
        lake.sealer.seal(HotFiles(folder))

    assert lake.snapshot().sealed == 0


def test_a_checkpoint_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    hot = Rows([])
    for row_id in range(1, 4):
        hot.rows.append(hot_row(row_id, 1.0))
        lake.sealer.seal(hot)
    before = lake.snapshot()

    lake.manifest.checkpoint(before)
    lake.now += 2 * DAY
    trimmed = lake.manifest.trim()

    assert trimmed == 3
    assert lake.snapshot() == before
    hot.rows.append(hot_row(4, 1.0))
    lake.sealer.seal(hot)
    assert [row_id for row_id, _ in lake.values()] == [1, 2, 3, 4]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.twin.lake.samples import Lake
from twin.lake import sealing
from twin.lake.hot import HotFiles
from twin.lake import sealing

history, root, instant = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
sealing.ROWS_PER_COMMIT, sealing.BATCH = 40, 40
count = 0

def counted(call):
    def counting(*arguments, **options):
        global count
        count += 1
        if count == instant:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return counting

# Every step after which the disk is different: a kill before each of them is a kill at every instant that matters.
for name in ("fsync", "replace", "link", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
lake = Lake(root)
lake.sealer.clear_unlisted(HotFiles(history))
lake.sealer.seal(HotFiles(history))
print(count)
"""


def test_killed_at_any_step_sealing_loses_and_repeats_nothing(tmp_path: Path) -> None:
    rows = [hot_row(row_id, float(row_id), created=NOON + (row_id % 2) * DAY) for row_id in range(1, 101)]
    history = history_of(tmp_path / "history", rows)
    expected = [(row.row_id, float(row.row_id)) for row in rows]
    total = int(_sealing(history, tmp_path / "whole", 0).stdout)
    kills = 0

    for instant in range(1, total + 1, 5):
        lake = Lake(tmp_path / f"lake{instant}")
        killed = _sealing(history, lake.root, instant)
        kills += killed.returncode == -signal.SIGKILL
        sealed = lake.snapshot().sealed
        partial = [pair for pair in expected if pair[0] <= sealed]
        assert (lake.values() if sealed else []) == partial  # what a reader sees is whole at any time

        lake.sealer.clear_unlisted(HotFiles(history))
        lake.sealer.seal(HotFiles(history))
        lake.sealer.clear_unlisted(HotFiles(history))

        assert lake.values() == expected
        live = {part.path for part in lake.snapshot().parts}
        assert set(lake.files("readings")) == live
    print(f"0 lost of {len(rows)} over {kills} kills")
    assert kills >= 8


def _sealing(history: Path, root: Path, instant: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(history), str(root), str(instant)],
        capture_output=True,
        text=True,
        timeout=60,
    )
