"""The data folder: whoever may enter it finds no database, key or secret that opens."""

from pathlib import Path

import pytest

from gateway.home import begun, close_to_others, is_begun, is_held
from tests.bindings.mqtt.support import Client
from tests.support import PUMP, skep

pytestmark = pytest.mark.anyio

OPEN = {"ca.pem"}
"""The local authority's certificate is for everybody."""


async def test_a_start_shows_from_its_first_moment_to_its_last_and_keeps_nobody_out(tmp_path: Path) -> None:
    home = tmp_path / "home"

    assert not is_begun(home)
    with begun(home):
        with begun(home):
            assert is_begun(home)
        assert is_begun(home)
        assert not is_held(home)
    assert not is_begun(home)


async def test_a_folder_that_others_may_enter_shows_them_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    async with skep(home, tls=True) as runtime:
        works = await runtime.add("works", "agent")
        async with Client(runtime.mqtt_address, works.name, works.token) as agent:
            await agent.publish("agents/works/td/pump-1", PUMP)
            await agent.publish("agents/works/property/pump-1/flow", 7)
        await runtime.running.sealing.seal()
        files = {path.relative_to(home): path.stat().st_mode & 0o777 for path in home.rglob("*") if path.is_file()}

    assert {"accounts.db", "twin.db", "node.db", "history"} <= {path.parts[0] for path in files}
    assert any(path.name.endswith(".db-wal") for path in files)
    assert any(path.suffix == ".parquet" for path in files)
    assert {str(path): f"{mode:o}" for path, mode in files.items() if mode & 0o077 and path.name not in OPEN} == {}


async def test_what_an_earlier_version_left_open_is_closed_at_the_next_start(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    part = home / "lake" / "readings" / "part.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"sealed")
    elsewhere.write_bytes(b"not ours")
    (home / "lake" / "link").symlink_to(elsewhere)
    (home / "certs").mkdir()
    (home / "certs" / "ca.pem").write_bytes(b"")
    for path in (home, *home.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    elsewhere.chmod(0o644)

    close_to_others(home)

    assert {mode_of(path) for path in (part, part.parent, home / "lake")} == {0o600, 0o700}
    assert mode_of(home / "certs" / "ca.pem") == 0o644
    assert mode_of(home / "certs") == 0o755
    assert mode_of(elsewhere) == 0o644, "what a link leads to is not ours to change"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777
