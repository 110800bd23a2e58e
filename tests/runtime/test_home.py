"""The data folder: whoever may enter it finds no database, key or secret that opens."""

from pathlib import Path

import pytest

from tests.bindings.mqtt.support import Client
from tests.support import PUMP, skep

pytestmark = pytest.mark.anyio

OPEN = {"ca.pem", "server.pem", "reserve", "accounts.reserve", "row-ids"}
"""Certificates are there to be shown; reserves hold nothing, and row-ids one number."""


async def test_a_folder_that_others_may_enter_shows_them_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    async with skep(home, tls=True) as runtime:
        works = await runtime.add("works", "agent")
        async with Client(runtime.mqtt_address, works.name, works.token) as agent:
            await agent.publish("agents/works/td/pump-1", PUMP)
            await agent.publish("agents/works/property/pump-1/flow", 7)
        files = {path.relative_to(home): path.stat().st_mode & 0o777 for path in home.rglob("*") if path.is_file()}

    assert {"accounts.db", "twin.db", "node.db", "history"} <= {path.parts[0] for path in files}
    assert any(path.name.endswith(".db-wal") for path in files)
    assert {str(path): f"{mode:o}" for path, mode in files.items() if mode & 0o077 and path.name not in OPEN} == {}
