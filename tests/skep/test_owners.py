"""A command of root in a folder that is another user's works as that user: nothing is left that the user cannot read.

The folders lie below pytest's own, which only root may enter, as those of a service below `/var/lib/private`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skep import Consumer
from tests.skep.runtimes import process
from things.service_ids import ACCOUNTS

OWNER = 61234
KEPT = (1 << 1) | (1 << 10)
"""CAP_DAC_OVERRIDE and CAP_NET_BIND_SERVICE."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    os.chown(folder, OWNER, OWNER)
    return folder


def _run(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "skep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _owners(home: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (home, *home.rglob("*"))}


def test_commands_where_nothing_runs_leave_no_file_of_root(home: Path) -> None:
    for arguments in (
        ("client", "add", "ann", "--type", "service"),
        ("client", "ls"),
        ("config", "set", "log.level", "warning"),
        ("stores", "ls"),
        ("repair",),
        ("upgrade",),
        ("doctor",),
    ):
        said = _run(*arguments, "--home", str(home))
        assert said.returncode == 0 or arguments == ("doctor",), (arguments, said.stderr)

    assert {"accounts.db", "inventory.json", "run.lock", "skep.toml"} <= {path.name for path in home.iterdir()}
    assert _owners(home) == {(OWNER, OWNER)}


def test_a_copy_may_go_where_only_root_may_write(home: Path, tmp_path: Path) -> None:
    assert _run("client", "ls", "--home", str(home)).returncode == 0
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    made = _run("backup", "create", str(closed / "site.tar"), "--home", str(home))
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    os.chown(other, OWNER, OWNER)
    restored = _run("restore", str(closed / "site.tar"), "--home", str(other))

    assert (made.returncode, restored.returncode) == (0, 0), made.stderr + restored.stderr
    assert _owners(home) == _owners(other) == {(OWNER, OWNER)}


def test_a_runtime_has_two_rights_of_root_left_and_lets_both_users_in(home: Path) -> None:
    async def accounts_as_root() -> object:
        async with Consumer(socket=home / "control.sock") as consumer:
            return await consumer.call(ACCOUNTS, "listClients")

    with process(home) as ready:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{ready['pid']}/status").read_text().splitlines()
            if ":\t" in line
        )
        as_owner = _run("client", "ls", "--home", str(home))
        as_root = asyncio.run(accounts_as_root())

    assert status["Uid"].split() == [str(OWNER)] * 4
    assert status["Groups"].split() == []
    assert {int(status[name], 16) & ~KEPT for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert as_owner.returncode == 0, as_owner.stderr
    assert as_root is not None
    assert _owners(home) == {(OWNER, OWNER)}


def test_root_that_may_not_become_the_owner_is_told_so(home: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")

    said = _run("client", "ls", "--home", str(home), before=("setpriv", "--bounding-set=-setuid"))

    assert said.returncode == 3
    assert f"belongs to user {OWNER}" in said.stderr
    assert list(home.iterdir()) == []


def test_what_root_left_before_is_named_with_what_mends_it(home: Path) -> None:
    assert _run("client", "ls", "--home", str(home)).returncode == 0
    os.chown(home / "inventory.json", 0, 0)

    refused = _run("client", "ls", "--home", str(home))
    looked_at = _run("doctor", "--home", str(home))
    mend = refused.stderr.strip().rpartition(": ")[2]
    subprocess.run(mend.split(), check=True)

    assert refused.returncode == 7
    assert f"inventory.json in {home} is closed to the folder's owner" in refused.stderr
    assert mend in looked_at.stdout
    assert _run("client", "ls", "--home", str(home)).returncode == 0
