"""Damaged parts are made again from a copy or from hot rows, exactly or not at all, and what cannot be is named."""

from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any

import pytest

from tests.twin.lake.samples import DAY, LAMP, NOON, SECOND, Lake, Rows, hot_row
from things.errors import StorageDamaged
from things.lake import THINGS
from twin.lake.compaction import Compactor
from twin.lake.mending import Copies, Mended, Mender
from twin.lake.places import LocalPlace
from twin.lake.reader import LakeReader, Selection
from twin.lake.retention import Retention, RetentionRule
from twin.lake.sealing import Beside
from twin.lake.upkeep import Upkeep
from twin.lake.verification import verify

TD = '{"properties": {"temperature": {"type": "number", "unit": "Cel"}}}'
DESCRIPTION = Beside(THINGS, 1, [{"thing_id": LAMP, "td_version": 1, "published": NOON, "td": TD}])


def sealed(root: Path, commits: int = 4, rows: int = 20) -> tuple[Lake, Rows]:
    """Each commit has rows of two days, with a string among the numbers and a unit from the Thing Description."""
    lake, hot = Lake(root), Rows([])
    for commit in range(commits):
        for row_id in range(commit * rows + 1, (commit + 1) * rows + 1):
            value: object = "off" if row_id % 7 == 0 else row_id / 3
            hot.rows.append(hot_row(row_id, value, created=NOON + row_id % 2 * DAY + row_id * SECOND))
        lake.sealer.seal(hot, [DESCRIPTION])
    return lake, hot


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = LakeReader(lake.manifest).arrow(Selection()).to_pylist()
    return found


def damage(lake: Lake, index: int = 0) -> str:
    part = sorted(one.path for one in lake.snapshot().parts if one.table == "readings")[index]
    data = bytearray((lake.root / part).read_bytes())
    data[len(data) // 3] ^= 4
    (lake.root / part).write_bytes(data)
    return part


def copies_of(folder: Path) -> Copies:
    def found(wanted: Set[str]) -> Iterable[tuple[str, bytes]]:
        yield from ((path, (folder / path).read_bytes()) for path in sorted(wanted) if (folder / path).exists())

    return found


def test_a_damaged_part_is_made_again_from_hot_rows(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    good = rows_of(lake)
    path = damage(lake)

    done = Mender(lake.manifest, hot).mend()

    assert (done.parts, done.rows, done.from_copies, done.left) == (1, 10, 0, [])
    assert rows_of(lake) == good
    assert path not in [part.path for part in lake.snapshot().parts]
    assert verify(lake.manifest).problems == []
    assert Mender(lake.manifest, hot).mend() == Mended(0, 0, 0, [])


def test_a_part_that_is_missing_comes_back_too(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    good = rows_of(lake)
    (tmp_path / damage(lake)).unlink()

    assert Mender(lake.manifest, hot).mend().parts == 1
    assert rows_of(lake) == good


def test_of_a_merged_part_only_its_own_rows_are_made_again(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    good = rows_of(lake)
    day = [part for part in lake.snapshot().parts if part.day == "2026-01-01"]
    # Rows of the second commit lie between those of the first and the third.
    base = Compactor(lake.manifest).merge(lake.snapshot(), [day[0], day[2]])
    merged = base.parts[-1]
    (tmp_path / merged.path).write_bytes(b"torn")

    done = Mender(lake.manifest, hot).mend()

    assert (done.parts, done.rows) == (1, merged.rows)
    assert rows_of(lake) == good


@pytest.mark.parametrize("is_aside", [False, True])
def test_a_copy_is_put_back_bit_by_bit(tmp_path: Path, is_aside: bool) -> None:
    lake, _ = sealed(tmp_path / "lake")
    good, parts = rows_of(lake), {part.path for part in lake.snapshot().parts}
    (tmp_path / "lake").rename(tmp_path / "copy")
    lake, _ = sealed(tmp_path / "lake")
    damage(lake, 1)
    if is_aside:
        verify(lake.manifest, quarantine=True)
        assert len(rows_of(lake)) < len(good)

    done = Mender(lake.manifest).mend(copies_of(tmp_path / "copy"))

    assert (done.parts, done.from_copies, done.left) == (1, 1, [])
    assert rows_of(lake) == good
    assert {part.path for part in lake.snapshot().parts} == parts
    assert lake.files("_quarantine") == []


def test_a_copy_that_is_damaged_too_is_not_taken(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path / "lake")
    good = rows_of(lake)
    path = damage(lake)
    (tmp_path / "copy" / path).parent.mkdir(parents=True)
    (tmp_path / "copy" / path).write_bytes(b"torn")

    left = Mender(lake.manifest).mend(copies_of(tmp_path / "copy")).left
    assert [(one["path"], one["detail"]) for one in left] == [(path, "the copy is not what was written")]

    assert Mender(lake.manifest, hot).mend(copies_of(tmp_path / "copy")).parts == 1
    assert rows_of(lake) == good


def test_what_is_set_aside_comes_back_from_hot_rows_once(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    good = rows_of(lake)
    damage(lake)
    verify(lake.manifest, quarantine=True)
    records = {path: (tmp_path / path).read_bytes() for path in lake.files("_quarantine")}

    assert Mender(lake.manifest, hot).mend().parts == 1
    assert rows_of(lake) == good

    # As if it was killed before it forgot what had been set aside.
    for path, data in records.items():
        (tmp_path / path).write_bytes(data)
    assert Mender(lake.manifest, hot).mend().left == []
    assert rows_of(lake) == good
    assert lake.files("_quarantine") == []


def test_rows_that_are_hot_no_more_stay_damaged_and_are_named(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    path = damage(lake)
    hot.rows = [row for row in hot.rows if row.row_id > 5]

    done = Mender(lake.manifest, hot).mend()

    assert done.parts == 0
    assert done.left == [{"path": path, "first": 2, "last": 20, "rows": 10, "detail": "8 of its 10 rows are still hot"}]
    with pytest.raises(StorageDamaged, match="rows 2 to 20"):
        rows_of(lake)


def test_what_retention_took_is_not_brought_back(tmp_path: Path) -> None:
    lake, hot = Lake(tmp_path), Rows([])
    hot.rows = [hot_row(row_id, 1.0, name="ab"[row_id % 2]) for row_id in range(1, 11)]
    lake.sealer.seal(hot)
    lake.now += 3 * DAY
    Retention(lake.manifest, [RetentionRule(name="a", days=1)]).apply(force=True)
    damage(lake)

    done = Mender(lake.manifest, hot).mend()

    assert done.parts == 0
    assert done.left[0]["detail"] == "10 of its 5 rows are still hot"


def test_upkeep_mends_what_it_cannot_merge(tmp_path: Path) -> None:
    lake, hot = sealed(tmp_path)
    good = rows_of(lake)
    damage(lake)

    first = Upkeep(lake.manifest, hot).keep(60)
    second = Upkeep(lake.manifest, hot).keep(60)

    assert (first.mended, first.problems, first.due, first.aside) == (1, [], True, 0)
    assert (second.mended, second.problems, second.due) == (0, [], False)
    assert rows_of(lake) == good


def test_upkeep_says_what_is_set_aside(tmp_path: Path) -> None:
    lake, _ = sealed(tmp_path)
    damage(lake)
    verify(lake.manifest, quarantine=True)

    assert Upkeep(lake.manifest).keep(60).aside == 10


def test_killed_at_any_step_mending_loses_and_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all, create, remove = LocalPlace.write_all, LocalPlace.create, LocalPlace.remove
    for is_aside in (False, True):
        good: list[dict[str, Any]] = []
        step = -1
        while True:
            step += 1
            root = tmp_path / f"{is_aside}-{step}"
            with monkeypatch.context() as usual:
                usual.setattr(LocalPlace, "write_all", write_all)
                lake, hot = sealed(root)
                good = good or rows_of(lake)
                damage(lake)
                if is_aside:
                    verify(lake.manifest, quarantine=True)
            left = step

            def counted(work: Callable[..., Any]) -> Callable[..., Any]:
                def stepping(*given: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                    return work(*given)

                return stepping

            with monkeypatch.context() as dying:
                dying.setattr(LocalPlace, "write_all", counted(write_all))
                dying.setattr(LocalPlace, "create", counted(create))
                dying.setattr(LocalPlace, "remove", counted(remove))
                try:
                    Mender(lake.manifest, hot).mend()
                except KeyboardInterrupt:
                    is_done = False
                else:
                    is_done = True
            Mender(lake.manifest, hot).mend()
            assert rows_of(lake) == good, (is_aside, step)
            assert verify(lake.manifest).problems == []
            assert lake.files("_quarantine") == []
            if is_done:
                break
        assert step > 3
