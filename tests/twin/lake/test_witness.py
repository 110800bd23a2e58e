"""Two gateways with one id, and a lake that was put back: the one that made a commit notices that it is not there."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pyarrow.fs as pafs
import pytest

from tests.twin.lake.samples import NOON, history_of, hot_row
from things.errors import Conflict, SkepError, StorageDamaged
from twin.lake import worker
from twin.lake.places import LocalPlace, Place, RemotePlace, exclusive
from twin.lake.worker import Worker

Home = Callable[[str], Worker]


def remote(root: Path) -> Place:
    """A store that replaces what is there, as object stores do."""
    return RemotePlace("test://lake", pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Gateways of one id at one lake, by the name of their homes."""
    (tmp_path / "lake").mkdir()
    monkeypatch.setattr(worker, "place_of", lambda lake: remote(Path(lake)))

    def opened(name: str) -> Worker:
        folder = tmp_path / name
        if not folder.exists():
            history_of(folder, [hot_row(row_id, row_id / 4) for row_id in range(1, 11)])
        return Worker(folder, str(tmp_path / "lake"), "gw", lambda: NOON)

    return opened


def test_a_commit_that_another_gateway_replaced_stops_the_one_that_lost_it(home: Home, tmp_path: Path) -> None:
    home("one").writes["seal"](up_to=5)
    first = remote(tmp_path / "lake").read("_manifest/gateway=gw/000000000001.json")
    rmtree(tmp_path / "lake")
    (tmp_path / "lake").mkdir()
    home("two").writes["seal"](up_to=4)  # at the same time: neither saw the other's
    assert remote(tmp_path / "lake").read("_manifest/gateway=gw/000000000001.json") != first

    with pytest.raises(Conflict, match="another gateway writes there"):
        home("one").writes["seal"]()

    assert home("two").writes["seal"]()["last"] == 10


def test_a_lake_that_was_put_back_is_not_built_upon_until_somebody_says_so(home: Home, tmp_path: Path) -> None:
    home("one").writes["seal"](up_to=5)
    copytree(tmp_path / "lake", tmp_path / "backup")
    home("one").writes["seal"](up_to=8)
    rmtree(tmp_path / "lake")
    copytree(tmp_path / "backup", tmp_path / "lake")

    for write, given in (("seal", {}), ("compact", {}), ("keep", {"budget_s": 1})):
        with pytest.raises(StorageDamaged, match="lacks commit 2"):
            home("one").writes[write](**given)

    (tmp_path / "one" / "lake-head.json").unlink()
    assert home("one").writes["seal"]()["last"] == 10


def test_a_gateway_goes_on_after_a_restart_and_when_its_note_is_damaged(home: Home, tmp_path: Path) -> None:
    home("one").writes["seal"](up_to=5)
    home("one").writes["seal"](up_to=7)
    (tmp_path / "one" / "lake-head.json").write_bytes(b"{")

    assert home("one").writes["seal"]()["last"] == 10


class Store:
    """What fsspec's filesystems offer to write a file once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb" if mode == "create" else "wb") as file:
            file.write(value)


class OldStore:
    def pipe_file(self, path: str, value: bytes) -> None:
        raise AssertionError("it would replace what is there")


def test_a_store_that_can_create_at_most_once_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    base = pafs.SubTreeFileSystem(str(tmp_path / "lake"), pafs.LocalFileSystem())
    place = RemotePlace("test://lake", base, exclusive(Store(tmp_path), "lake"))

    place.create("m/1.json", b"first")

    with pytest.raises(Conflict):
        place.create("m/1.json", b"second")
    assert place.read("m/1.json") == b"first"
    assert exclusive(OldStore(), "lake") is None


def test_two_that_write_one_name_at_the_same_time_are_told(tmp_path: Path) -> None:
    class Racing(RemotePlace):
        def exists(self, path: str) -> bool:
            return False

        def read(self, path: str) -> bytes:
            return b"the other one's"

    place = Racing("test://lake", pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()))

    with pytest.raises(SkepError, match="by another at the same time"):
        place.create("m/1.json", b"mine")


def test_a_local_place_needs_no_witness_for_one_number(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    place.create("m/1.json", b"first")

    with pytest.raises(Conflict):
        place.create("m/1.json", b"second")
