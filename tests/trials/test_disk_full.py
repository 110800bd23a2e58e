"""The disk is full: writes are refused with a clear error, reads, logins and revocation go on, and writes resume by
themselves when there is room again. A small file system of the runtime's own, in a namespace that only it sees.
"""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import httpx2
import pytest

from skep.mqtt_client import MQTTConnection, MQTTVersion
from tests.support import PUMP, Account, skep
from tests.trials.process import RuntimeProcess, add, runtime_process
from things.errors import StorageFull
from things.identity import AccountType, Role
from things.td import ThingDescription

SIZE = "24m"
WITHIN_S = 30.0
PASSWORD = "correct horse battery staple"
_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$0" && cp -a "$2/." "$0" && shift 2 && exec "$@"'


def _can_mount() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "-rm", "true"], capture_output=True, timeout=10).returncode == 0


pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not _can_mount(), reason="no namespaces of its own here")]


class Site:
    """A runtime on a small disk; the test sees that disk through the process."""

    def __init__(self, process: RuntimeProcess, works: Account, boss: Account) -> None:
        self.process, self.works, self.boss = process, works, boss
        self.acknowledged: list[int] = []
        self._next = 0

    @property
    def disk(self) -> Path:
        return Path(f"/proc/{self.process.pid}/root{self.process.home}")

    def fill(self) -> None:
        """Write until nothing more fits."""
        with suppress(OSError), (self.disk / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4_096))

    def make_room(self) -> None:
        (self.disk / "ballast").unlink()

    async def publish(self, client: httpx2.AsyncClient) -> httpx2.Response:
        """One event, of some size; what is acknowledged is noted."""
        number, self._next = self._next, self._next + 1
        body = json.dumps(f"{number} {'x' * 4_000}")
        reply = await client.post("/agent/things/pump-1/events/alarm", content=body)
        if reply.is_success:
            self.acknowledged.append(number)
        return reply

    async def published_until(
        self, client: httpx2.AsyncClient, wanted: Callable[[httpx2.Response], bool]
    ) -> httpx2.Response:
        """Publish until the answer is the wanted one."""
        with anyio.fail_after(WITHIN_S):
            while not wanted(reply := await self.publish(client)):
                pass
        return reply

    async def stored(self, client: httpx2.AsyncClient) -> set[int]:
        """The numbers of the events that history has."""
        found: set[int] = set()
        after = ""
        while True:
            reply = await client.get(f"/things/dtw:works:pump-1/history?kind=event&limit=500{after}")
            page = reply.json()
            found |= {int(item["value"].split()[0]) for item in page["items"] if item["value"] != "by MQTT"}
            if "cursor" not in page:
                return found
            after = f"&cursor={page['cursor']}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    home, made = tmp_path / "home", tmp_path / "made"
    async with skep(made) as runtime:
        works, boss = await add(runtime, "works", "agent"), await add(runtime, "boss", "admin")
        await runtime.running.stores.authenticator.administration.add(
            "ann", AccountType.CONSUMER, Role.VIEWER, password=PASSWORD, by="test"
        )
        described = ThingDescription.of(PUMP, agent=True)
        await runtime.running.stores.twin.directory.put("dtw:works:pump-1", described, agent="works")
    home.mkdir()
    wrapped = ["unshare", "-rm", "sh", "-c", _MOUNT, str(home), SIZE, str(made)]
    async with runtime_process(home, wrapped=wrapped) as process:
        yield Site(process, works, boss)


async def test_a_full_disk_refuses_writes_clearly_and_nothing_else(site: Site) -> None:
    async with site.process.client(site.works) as works, site.process.client(site.boss) as boss:
        assert (await site.publish(works)).is_success
        site.fill()
        refused = await site.published_until(works, lambda reply: not reply.is_success)
        action = await asked_until_refused(boss)
        with pytest.raises(StorageFull):
            await said_by_mqtt(site)
        ready = await boss.get("/readyz")

        async with httpx2.AsyncClient(base_url=site.process.http, trust_env=False, timeout=20) as ann:
            login = await ann.post("/authn/login", json={"login": "ann", "password": PASSWORD})
            bearer = {"authorization": f"Bearer {login.json()['accessToken']}"}
            things = await ann.get("/things", headers=bearer)
            history = await ann.get("/things/dtw:works:pump-1/history?kind=event&limit=1", headers=bearer)
            disabled = await boss.post("/rpc/dtw:authn:admin/disableClient", content='{"clientID": "ann"}')
            revoked = await ann.get("/things", headers=bearer)

        site.make_room()
        await site.published_until(works, lambda reply: reply.is_success)
        ready_again = await boss.get("/readyz")
        stored = await site.stored(boss)

    assert (refused.status_code, refused.json()["code"]) == (507, "storage-full")
    assert (action.status_code, action.json()["code"]) == (507, "storage-full")
    assert ready.status_code == 503
    assert (login.status_code, things.status_code, history.status_code) == (200, 200, 200)
    assert (disabled.status_code, revoked.status_code) == (200, 401), disabled.text
    assert ready_again.status_code == 200
    assert set(site.acknowledged) <= stored


async def asked_until_refused(client: httpx2.AsyncClient) -> httpx2.Response:
    """The ledger is a file of its own, and takes what still fits into it."""
    with anyio.fail_after(WITHIN_S):
        while (reply := await client.post("/things/dtw:works:pump-1/actions/setSpeed", content="3")).is_success:
            pass
    return reply


async def said_by_mqtt(site: Site) -> None:
    host, port = site.process.mqtt_address
    connection = MQTTConnection(
        host=host,
        port=port,
        account="works",
        secret=site.works.token,
        client_id="works",
        version=MQTTVersion.V5,
    )
    await connection.connect()
    try:
        await connection.publish("agents/works/event/pump-1/alarm", b'"by MQTT"')
    finally:
        await connection.close()
