"""More sockets than the process may hold open: stores, HTTP and who has logged in go on."""

import asyncio
from pathlib import Path

import anyio
import httpx
import pytest

from tests.support import PUMP
from tests.trials.process import furnished, runtime_process

pytestmark = pytest.mark.anyio

LIMIT = 400
LIMITED = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")


async def test_idle_sockets_without_a_login_take_nothing_from_stores_and_clients(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = await furnished(home, {"works": "agent"}, {"dtw:works:pump-1": PUMP})
    held: list[asyncio.StreamWriter] = []
    async with runtime_process(home, wrapped=LIMITED) as process:
        try:
            async with process.mqtt(made["works"]) as agent:
                for _ in range(2 * LIMIT):
                    _, writer = await asyncio.open_connection(*process.mqtt_address)
                    held.append(writer)
                with anyio.fail_after(20):
                    # The first row of a day: its file is opened now.
                    await agent.publish("agents/works/event/pump-1/alarm", b'"hot"', qos=1)
                    async with process.client(made["works"]) as client:
                        for _ in range(3):
                            answer = await client.post("/agent/things/pump-1/events/alarm", json="hot")
                            assert answer.status_code == 204
                    async with process.mqtt(made["works"]) as another:
                        await another.publish("agents/works/event/pump-1/alarm", b'"hot"', qos=1)
                async with httpx.AsyncClient(base_url=process.http) as client:
                    ready = (await client.get("/readyz")).json()
        finally:
            for writer in held:
                writer.close()

        assert ready["ready"]
        assert f"{LIMIT} open files" in ready["warnings"]["descriptors"]
        assert "those without a login go first" in process.said()
