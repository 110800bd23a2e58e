"""SIGHUP: what is read again while the runtime runs, and that it goes on running."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from gateway.reloading import reload
from tests.support import PUMP, skep
from tests.trials.process import furnished, runtime_process
from things.td import ThingDescription

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_level_policies_and_certificates_are_read_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with skep(home, tls=True) as runtime:
        stores = runtime.running.stores
        loads: list[object] = []
        runtime.running.certificates._load = loads.append  # type: ignore[method-assign,assignment]
        (home / "skep.toml").write_text('[log]\nlevel = "error"\n', "utf-8")
        (home / "policies").mkdir(exist_ok=True)
        (home / "policies" / "night.json").write_text("{", "utf-8")
        await reload(runtime.running)

        assert logging.getLogger().level == logging.ERROR
        assert stores.authorizer.problem is not None
        assert loads

        (home / "policies" / "night.json").unlink()
        (home / "skep.toml").write_text("[log\n", "utf-8")
        await reload(runtime.running)
        assert logging.getLogger().level == logging.ERROR, "what cannot be read stays as it was"
        assert stores.authorizer.problem is None


async def test_limits_count_at_once_and_other_keys_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    async with skep(home) as runtime:
        works = await runtime.add("works", "agent")
        await runtime.running.stores.twin.directory.put(
            "dtw:works:p1", ThingDescription.of(PUMP, agent=True), agent="works"
        )
        bearer = {"authorization": f"Bearer {works.token}"}
        async with httpx2.AsyncClient(base_url=runtime.http, headers=bearer) as agent:

            async def publish() -> int:
                return (await agent.post("/agent/things/p1/properties", json={"flow": 7})).status_code

            assert {await publish() for _ in range(3)} == {204}
            toml = "[limits]\nmessages_per_second = 0.001\nmessage_burst = 1\n[http]\nmax_body_bytes = 5000\n"
            (home / "skep.toml").write_text(toml, "utf-8")
            await reload(runtime.running)
            assert [await publish(), await publish()] == [204, 429]
            assert "changed keys count from the next start keys=http.max_body_bytes\n" in capsys.readouterr().err

            (home / "skep.toml").write_text("[limits]\nmessages_per_second = -1\n", "utf-8")
            await reload(runtime.running)
            assert await publish() == 429, "what cannot be read stays as it was"

            (home / "skep.toml").unlink()
            await reload(runtime.running)
            with anyio.fail_after(10):
                while await publish() != 204:
                    pass


async def test_a_runtime_goes_on_after_sighup(tmp_path: Path) -> None:
    accounts = await furnished(tmp_path / "home", {"ann": "viewer"})
    async with runtime_process(tmp_path / "home") as process, process.client(accounts["ann"]) as ann:
        os.kill(process.pid, signal.SIGHUP)
        with anyio.fail_after(30):
            while "were read again" not in process.said():  # noqa: ASYNC110 - another process
                await anyio.sleep(0.02)
        assert (await ann.get("/things")).status_code == 200
        code, _ = await process.terminate()
        assert code == 0
