"""A lake on a filesystem that is reached by URL, and a folder that cannot be written."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.twin.lake.samples import NOON, Rows, hot_row
from things.errors import Conflict, StorageFailed, Unavailable
from twin.lake.compaction import Compactor
from twin.lake.delta import path_of
from twin.lake.delta_log import DeltaLog
from twin.lake.delta_tables import DeltaTables
from twin.lake.manifest import Manifest, gateways
from twin.lake.places import LocalPlace, Place, RemotePlace, place_of
from twin.lake.reader import LakeReader, Selection
from twin.lake.sealing import Sealer
from twin.lake.verification import verify


@pytest.fixture(params=["local", "remote", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same contract for all kinds; the remote ones know no rename, sync or link."""
    if request.param == "local":
        yield LocalPlace(tmp_path / "lake")
    elif request.param == "s3":
        yield place_of(request.getfixturevalue("s3_folder"))
    else:
        (tmp_path / "lake").mkdir()
        yield RemotePlace("test://lake", pafs.SubTreeFileSystem(str(tmp_path / "lake"), pafs.LocalFileSystem()))


def test_what_is_written_is_there_whole_and_hashed(place: Place) -> None:
    written = place.write("a/b/file", lambda file: file.write(b"content"))

    assert place.read("a/b/file") == b"content"
    assert written.size == 7
    assert written.sha256 == "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert [(found.path, found.size) for found in place.walk("a")] == [("a/b/file", 7)]
    place.remove("a/b/file")
    place.remove("a/b/file")
    assert not place.exists("a/b/file")
    assert list(place.walk("nowhere")) == []


def test_many_files_are_written_together(place: Place) -> None:
    files = {f"day={number}/part": f"{number}".encode() * number for number in range(1, 30)}

    written = place.write_all([(path, partial(_put, content)) for path, content in files.items()])

    assert [(one.path, one.size) for one in written] == [(path, len(content)) for path, content in files.items()]
    assert {path: place.read(path) for path in files} == files


def _put(content: bytes, file: Any) -> None:
    file.write(content)


def test_one_of_many_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    (tmp_path / "b").write_text("a file where a folder should be")

    with pytest.raises(StorageFailed, match="cannot write"):
        place.write_all([(path, partial(_put, b"x")) for path in ("a/1", "b/2", "c/3")])
    assert not [found for found in place.walk("") if found.path.endswith(".tmp")]


def test_what_fails_while_it_is_written_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)

    def fill(file: object) -> None:
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        place.write("a/file", fill)
    assert list(place.walk("")) == []


def test_a_name_is_created_once(place: Place) -> None:
    place.create("m/1.json", b"first")

    with pytest.raises(Conflict):
        place.create("m/1.json", b"second")

    assert place.read("m/1.json") == b"first"


def test_a_lake_works_the_same_wherever_it_lies(place: Place) -> None:
    manifest = Manifest(place, "gw", lambda: NOON)
    rows = [hot_row(row_id, float(row_id)) for row_id in range(1, 7)]
    sealer = Sealer(manifest)
    tables = DeltaTables(manifest)
    for last in (2, 4, 6):
        sealer.seal(Rows(rows), up_to=last)
        tables.publish(manifest.snapshot())

    Compactor(manifest).compact()
    tables.publish(manifest.snapshot())

    found = LakeReader(manifest).rows(Selection(), limit=10)
    assert [row[0] for row in found] == [1, 2, 3, 4, 5, 6]
    assert verify(manifest).problems == []
    assert gateways(place) == ["gw"]
    log = DeltaLog(place, "readings")
    log.load()
    sizes = {file.path: file.size for file in place.walk("readings")}
    live = {path_of(add, "readings"): add["size"] for add in log.live.values()}
    assert live == {part.path: sizes[part.path] for part in manifest.snapshot().parts}
    assert log.version == 3


def test_urls_choose_the_filesystem(tmp_path: Path) -> None:
    assert isinstance(place_of(tmp_path), LocalPlace)
    assert isinstance(place_of(str(tmp_path)), LocalPlace)
    assert isinstance(place_of(f"file://{tmp_path}"), LocalPlace)
    assert isinstance(place_of("s3://bucket/lake?region=eu-west-1"), RemotePlace)
    with pytest.raises(Unavailable, match="no filesystem"):
        place_of("carrier-pigeon://coop/lake")


def test_an_unwritable_lake_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    manifest = Manifest(place_of(tmp_path / "lake"), "gw", lambda: NOON)

    with pytest.raises(StorageFailed, match="cannot write"):
        Sealer(manifest).seal(Rows([hot_row(1, 1.0)]))
