"""Clients that ask for much and do not read it: bounded in what they hold, and cut off."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bindings.http.config import HttpConfig
from tests.bindings.http.support import LAMP, House, lamp_house
from twin.directory_service import MAX_PAGE_BYTES

pytestmark = pytest.mark.anyio

THINGS = 30


@asynccontextmanager
async def _full(home: Path, write_timeout_s: float) -> AsyncIterator[House]:
    """A house whose listing has 6 MB."""
    async with lamp_house(home, HttpConfig(write_timeout_s=write_timeout_s)) as lamps:
        async with lamps.client("lights") as lights:
            for number in range(THINGS):
                td = LAMP | {"description": "x" * 200_000}
                assert (await lights.put(f"/agent/things/big{number}", json=td)).status_code == 201
        yield lamps


def _asked(house: House, path: str, times: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", int(house.url.rpartition(":")[2])))
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.tokens['viewer1']}\r\n\r\n"
    sock.sendall(head.encode() * times)
    return sock


def _read(sock: socket.socket) -> bytes:
    """What still comes before the end of the connection."""
    found = b""
    try:
        while part := sock.recv(1_048_576):
            found += part
    except ConnectionResetError:
        pass
    finally:
        sock.close()
    return found


async def test_a_page_of_the_directory_ends_at_its_bound_and_the_next_ones_hold_the_rest(tmp_path: Path) -> None:
    async with _full(tmp_path / "home", 30) as lamps, lamps.client("viewer1") as viewer:
        path, found, pages = "/things?limit=1000", set[str](), 0
        while path:
            reply = await viewer.get(path)
            assert len(reply.content) < MAX_PAGE_BYTES + 300_000
            found |= {td["id"] for td in reply.json() if td["id"].startswith("dtw:lights:big")}
            pages += 1
            following = re.search(r'<([^>]*)>; rel="next"', reply.headers.get("link", ""))
            path = following[1] if following else ""

    assert len(found) == THINGS
    assert pages == 2


async def test_who_does_not_read_is_cut_off(tmp_path: Path) -> None:
    async with _full(tmp_path / "home", 0.5) as lamps:
        sock = await anyio.to_thread.run_sync(_asked, lamps, "/things?limit=1000", 3)
        with anyio.fail_after(30):
            while not lamps.binding.stalled:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            while lamps.binding.stalled:  # noqa: ASYNC110
                await anyio.sleep(0.01)

        assert len(await anyio.to_thread.run_sync(_read, sock)) < 3 * MAX_PAGE_BYTES


async def test_who_reads_slowly_gets_everything(tmp_path: Path) -> None:
    async with _full(tmp_path / "home", 5) as lamps:
        sock = await anyio.to_thread.run_sync(_asked, lamps, "/things?limit=1000", 2)
        with anyio.fail_after(30):
            while not lamps.binding.stalled:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        found = b""
        while found.count(b"HTTP/1.1 200") < 2 or len(found) < 2 * MAX_PAGE_BYTES:
            found += await anyio.to_thread.run_sync(sock.recv, 262_144)
        sock.close()

    assert found.count(b"HTTP/1.1 200") == 2


async def test_the_end_of_an_account_cuts_off_who_does_not_read(tmp_path: Path) -> None:
    async with _full(tmp_path / "home", 60) as lamps:
        sock = await anyio.to_thread.run_sync(_asked, lamps, "/things?limit=1000", 1)
        with anyio.fail_after(30):
            while not lamps.binding.stalled:  # noqa: ASYNC110
                await anyio.sleep(0.01)

        async with lamps.client("admin1") as admin:
            reply = await admin.post("/rpc/dtw:authn:admin/endSessions", json={"clientID": "viewer1"})
            assert reply.status_code in (200, 204), reply.text

        assert not lamps.binding.stalled
        assert len(await anyio.to_thread.run_sync(_read, sock)) < MAX_PAGE_BYTES
