"""SIGHUP: what is read again while the runtime runs, and that it goes on running."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from gateway import server_certificate
from gateway.reloading import reload
from tests.pairs import make_pair, own_files, shown_serial
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
    files = own_files(tmp_path / "own")
    make_pair(files)
    own = {"certificate": str(files.certificate), "certificate_key": str(files.key)}
    async with skep(home, tls=True, security=own) as runtime:
        stores = runtime.running.stores
        other = make_pair(files)
        (home / "skep.toml").write_text('[log]\nlevel = "error"\n', "utf-8")
        (home / "policies").mkdir(exist_ok=True)
        (home / "policies" / "night.json").write_text("{", "utf-8")
        await reload(runtime.running)

        assert logging.getLogger().level == logging.ERROR
        assert stores.authorizer.problem is not None
        assert await shown_serial(_port(runtime.https)) == other.serial_number

        (home / "policies" / "night.json").unlink()
        (home / "skep.toml").write_text("[log\n", "utf-8")
        await reload(runtime.running)
        assert logging.getLogger().level == logging.ERROR, "what cannot be read stays as it was"
        assert stores.authorizer.problem is None


async def test_own_certificates_are_taken_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_certificate, "EVERY_S", 0.02)
    files = own_files(tmp_path / "own")
    make_pair(files)
    own = {"certificate": str(files.certificate), "certificate_key": str(files.key)}
    async with skep(tmp_path / "home", tls=True, security=own) as runtime:
        ports = [_port(runtime.https), _port(runtime.running.mqtts or "")]
        async with httpx2.AsyncClient(base_url=runtime.http) as anybody:

            async def warnings() -> str:
                return str((await anybody.get("/readyz")).json().get("warnings", {}))

            other = make_pair(files)
            with anyio.fail_after(20):
                while [await shown_serial(port) for port in ports] != [other.serial_number] * 2:
                    pass
            assert "certificate" not in await warnings()

            files.certificate.write_text("nothing")
            with anyio.fail_after(20):
                while "the former certificate is served" not in await warnings():
                    pass
            assert [await shown_serial(port) for port in ports] == [other.serial_number] * 2


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


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
