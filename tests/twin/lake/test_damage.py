"""Damage of every kind is named, never answered from, and nothing is derived or removed because of it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.twin.lake.samples import NOON, SECOND, Lake, Rows, hot_row
from things.blocks import BLOCK
from things.errors import StorageDamaged
from things.lake import commit_document, commit_of
from things.manifest import HEAD
from twin.lake.compaction import Compactor
from twin.lake.reader import LakeReader, Selection
from twin.lake.retention import Retention, RetentionRule
from twin.lake.verification import verify

HEAD_FILE = f"_manifest/gateway=gw/{HEAD}"


def commit_file(seq: int) -> str:
    return f"_manifest/gateway=gw/{seq:012d}.json"


def three_commits(root: Path, rows: int = 200) -> tuple[Lake, Rows]:
    lake, hot = Lake(root), Rows([])
    for commit in range(3):
        first = commit * rows
        hot.rows += [hot_row(first + i + 1, 20 + i / 7, created=NOON + (first + i) * SECOND) for i in range(rows)]
        lake.sealer.seal(hot)
    return lake, hot


def rows_of(lake: Lake) -> list[tuple[Any, ...]]:
    return LakeReader(lake.manifest).rows(Selection(), limit=5_000, sealed_only=True)


def test_no_flipped_bit_of_a_part_changes_an_answer(tmp_path: Path) -> None:
    lake, _ = three_commits(tmp_path)
    good = rows_of(lake)
    part = tmp_path / lake.snapshot().parts[0].path
    whole = part.read_bytes()
    named = 0

    for bit in range(0, len(whole) * 8, len(whole) * 8 // 400):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        part.write_bytes(flipped)
        try:
            assert rows_of(lake) == good
        except StorageDamaged as damage:
            named += f"{part.relative_to(tmp_path).as_posix()}, rows 1 to 200" in damage.detail

    assert named > 390


ASKED: dict[str, Callable[[Lake], object]] = {
    "rows": rows_of,
    "latest": lambda lake: LakeReader(lake.manifest).latest(Selection()),
    "windows": lambda lake: LakeReader(lake.manifest).windows(Selection(), 60 * SECOND, limit=9),
    "rollup": lambda lake: LakeReader(lake.manifest).rollup(Selection(), 60 * SECOND),
    "export": lambda lake: LakeReader(lake.manifest).arrow(Selection()),
    "compaction": lambda lake: Compactor(lake.manifest).compact(),
    "retention": lambda lake: Retention(lake.manifest, [RetentionRule(name="temperature", bytes=1)]).apply(),
}


@pytest.mark.parametrize("how", ["flipped", "short", "long", "missing"])
@pytest.mark.parametrize("asked", ASKED)
def test_nothing_is_answered_or_made_from_a_damaged_part(tmp_path: Path, asked: str, how: str) -> None:
    lake, _ = three_commits(tmp_path)
    before = lake.snapshot()
    path = tmp_path / before.parts[1].path
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    match how:
        case "flipped":
            path.write_bytes(data)
        case "short":
            path.write_bytes(data[:-1])
        case "long":
            path.write_bytes(path.read_bytes() + b"x")
        case _:
            path.unlink()

    with pytest.raises(StorageDamaged, match="rows 201 to 400"):
        ASKED[asked](lake)

    assert lake.snapshot() == before


def test_a_part_that_was_written_before_blocks_had_checksums_is_compared_whole(tmp_path: Path) -> None:
    lake, _ = three_commits(tmp_path)
    good = rows_of(lake)
    begun_without_digests(lake)
    path = tmp_path / lake.snapshot().parts[0].path

    assert rows_of(lake) == good
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)

    with pytest.raises(StorageDamaged, match="rows 1 to 200"):
        rows_of(lake)


def test_a_part_of_several_blocks_is_read_in_pieces(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    text = "".join(chr(33 + i * 7919 % 90) for i in range(5_000))
    lake.sealer.seal(Rows([hot_row(i, f"{text[i:]}{i * 104_729}") for i in range(1, 1_500)]))
    (part,) = lake.snapshot().parts
    path = tmp_path / part.path
    whole = path.read_bytes()
    assert len(part.sums) == -(-len(whole) // BLOCK) * 8
    good = rows_of(lake)
    assert len(good) == 1_499

    for at in range(0, len(whole), max(1, len(whole) // 20)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StorageDamaged):
            rows_of(lake)

    path.write_bytes(whole)
    assert rows_of(lake) == good


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_commit_is_refused_wherever_it_stood_and_its_data_stay(tmp_path: Path, lost: int) -> None:
    lake, hot = three_commits(tmp_path)
    parts = lake.files("readings")
    (tmp_path / commit_file(lost)).unlink()

    for ask in (rows_of, lambda lake: verify(lake.manifest), lambda lake: lake.sealer.clear_unlisted(hot)):
        with pytest.raises(StorageDamaged, match=f"lacks commit {lost}"):
            ask(lake)

    assert lake.files("readings") == parts


def test_a_lost_head_is_refused(tmp_path: Path) -> None:
    lake, _ = three_commits(tmp_path)
    (tmp_path / HEAD_FILE).unlink()

    with pytest.raises(StorageDamaged, match=r"lacks head\.json"):
        rows_of(lake)


@pytest.mark.parametrize("path", [commit_file(1), commit_file(2), commit_file(3), HEAD_FILE])
def test_no_flipped_bit_of_the_manifest_changes_an_answer(tmp_path: Path, path: str) -> None:
    lake, _ = three_commits(tmp_path, 20)
    good = rows_of(lake)
    file = tmp_path / path
    whole = file.read_bytes()

    for bit in range(0, len(whole) * 8, 5):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with suppress(StorageDamaged):
            assert rows_of(lake) == good


def test_a_commit_that_was_replaced_by_another_is_noticed(tmp_path: Path) -> None:
    lake, _ = three_commits(tmp_path / "one", 20)
    other = Lake(tmp_path / "other")
    other.sealer.seal(Rows([hot_row(i, 1.0) for i in range(1, 21)]))
    (lake.root / commit_file(1)).write_bytes((other.root / commit_file(1)).read_bytes())

    with pytest.raises(StorageDamaged, match="does not follow"):
        rows_of(lake)


def test_a_checkpoint_carries_the_chain_on(tmp_path: Path) -> None:
    lake, hot = three_commits(tmp_path, 20)
    lake.manifest.checkpoint(lake.snapshot())
    before = lake.snapshot()
    lake.now += 2 * 86_400 * SECOND
    assert lake.manifest.trim() == 3
    assert lake.snapshot() == before

    hot.rows.append(hot_row(61, 1.0))
    lake.sealer.seal(hot)

    assert len(rows_of(lake)) == 61
    (tmp_path / commit_file(4)).unlink()
    with pytest.raises(StorageDamaged, match="lacks commit 4"):
        rows_of(lake)


def test_a_lake_that_was_begun_without_digests_goes_on_with_them(tmp_path: Path) -> None:
    lake, hot = three_commits(tmp_path, 20)
    begun_without_digests(lake)
    assert len(rows_of(lake)) == 60

    hot.rows.append(hot_row(61, 1.0))
    lake.sealer.seal(hot)

    assert len(rows_of(lake)) == 61
    (tmp_path / commit_file(3)).write_bytes((tmp_path / commit_file(2)).read_bytes())
    with pytest.raises(StorageDamaged):
        rows_of(lake)


def test_killed_between_a_commit_and_its_head_the_commit_counts(tmp_path: Path) -> None:
    lake, hot = three_commits(tmp_path, 20)
    head = (tmp_path / HEAD_FILE).read_bytes()
    hot.rows.append(hot_row(61, 1.0))
    lake.sealer.seal(hot)

    (tmp_path / HEAD_FILE).write_bytes(head)

    assert len(rows_of(lake)) == 61
    hot.rows.append(hot_row(62, 1.0))
    lake.sealer.seal(hot)
    assert len(rows_of(lake)) == 62


@pytest.mark.parametrize("lost", ["the last commit and its head", "the whole manifest"])
def test_a_manifest_that_is_older_than_the_lake_is_not_built_upon(tmp_path: Path, lost: str) -> None:
    lake, _ = three_commits(tmp_path, 20)
    if lost == "the whole manifest":
        for path in lake.files("_manifest"):
            (tmp_path / path).unlink()
    else:
        (tmp_path / commit_file(3)).unlink()
        two = Lake(tmp_path / "two")
        hot = Rows([])
        for commit in range(2):
            hot.rows += [
                hot_row(commit * 20 + i + 1, 20 + i / 7, created=NOON + (commit * 20 + i) * SECOND) for i in range(20)
            ]
            two.sealer.seal(hot)
        (tmp_path / HEAD_FILE).write_bytes((two.root / HEAD_FILE).read_bytes())
    parts = lake.files("readings")

    with pytest.raises(StorageDamaged, match="it lacks commit"):
        lake.sealer.clear_unlisted(Rows([hot_row(61, 1.0)]))

    assert lake.files("readings") == parts


def test_only_what_a_commit_passed_over_is_removed(tmp_path: Path) -> None:
    lake, hot = three_commits(tmp_path, 20)
    folder = "readings/gateway=gw/day=2026-01-01"
    left = tmp_path / f"{folder}/part-{21:015d}-{30:015d}-{2:012d}.parquet"
    torn = tmp_path / f"{folder}/.part-x.parquet.123.tmp"
    ahead = tmp_path / f"{folder}/part-{61:015d}-{70:015d}-{4:012d}.parquet"
    foreign = tmp_path / f"{folder}/notes.parquet"
    for path in (left, torn, ahead, foreign):
        path.write_bytes(b"")
    hot.rows += [hot_row(i, 1.0) for i in range(61, 71)]

    assert lake.sealer.clear_unlisted(hot) == 2

    assert [path.exists() for path in (left, torn, ahead, foreign)] == [False, False, True, True]


def begun_without_digests(lake: Lake) -> None:
    """The manifest as it was written before commits vouched for each other."""
    from things.jsontext import decode, encode

    for seq in (1, 2, 3):
        file = lake.root / commit_file(seq)
        document = commit_document(commit_of(decode(file.read_bytes()), file.name))
        del document["before"]
        for part in document["parts"]:
            del part["sums"]
        file.write_bytes(encode(document))
    (lake.root / HEAD_FILE).unlink()
