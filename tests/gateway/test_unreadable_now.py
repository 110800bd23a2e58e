"""A store that cannot be looked at, since the disk is full or something stands in its way, is not taken for damaged."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import skep
from things.errors import StorageFailed

pytestmark = pytest.mark.anyio

STORES = ("accounts.db", "twin.db", "mqtt-sessions.db", "node.db")

LOOKED = """
import resource, sys
from pathlib import Path
from gateway.sqlite_files import is_readable, kind_of
from things.errors import StorageFull
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for look in (is_readable, lambda path: kind_of(path, None)):
    try:
        look(Path(sys.argv[1]))
    except StorageFull:
        print("full")
"""
"""A database looked at where no file can grow, as on a full disk."""


async def begun(home: Path) -> None:
    """A home that was used and closed."""
    async with skep(home) as house:
        await house.add("pump", "agent")


def files(home: Path) -> list[str]:
    """The databases in a home, and what was set aside, without their logs."""
    found = (path.name for path in home.glob("*.db*") if path.is_file())
    return sorted(name for name in found if not name.endswith(("-wal", "-shm")))


@pytest.mark.parametrize("store", STORES)
async def test_what_cannot_be_opened_ends_the_start_and_is_left_as_it_is(tmp_path: Path, store: str) -> None:
    await begun(tmp_path)
    before, content = files(tmp_path), (tmp_path / store).read_bytes()
    in_the_way = tmp_path / f"{store}-wal"
    in_the_way.mkdir()

    with pytest.raises(StorageFailed):
        async with skep(tmp_path):
            pass

    assert (files(tmp_path), (tmp_path / store).read_bytes()) == (before, content)
    in_the_way.rmdir()
    async with skep(tmp_path) as house:
        assert house.running.stores.authenticator.register.account("pump")


async def test_a_disk_without_room_for_the_index_of_a_log_is_said_to_be_full(tmp_path: Path) -> None:
    await begun(tmp_path)

    looked = subprocess.run(  # noqa: ASYNC221 - short
        [sys.executable, "-c", LOOKED, str(tmp_path / "node.db")], capture_output=True, text=True, check=True
    )

    assert looked.stdout.split() == ["full", "full"]
