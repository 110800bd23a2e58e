"""What several bindings serve at the addresses of the HTTP interface."""

import asyncio
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.support import skep

pytestmark = pytest.mark.anyio


def connect_packet(user: str, password: str) -> bytes:
    """A CONNECT of MQTT 3.1.1 with a clean session."""
    texts = [b"", user.encode(), password.encode()]
    rest = b"\x00\x04MQTT\x04\xc2\x00\x3c" + b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    length = bytes([len(rest)]) if len(rest) < 128 else bytes([len(rest) % 128 | 0x80, len(rest) // 128])
    return b"\x10" + length + rest


async def test_mqtt_is_spoken_over_websocket_at_the_address_that_the_ready_file_names(tmp_path: Path) -> None:
    async with skep(tmp_path / "home") as runtime, asyncio.timeout(30):
        ann = await runtime.add("ann")
        url = str(runtime.running.ready_document()["mqttws"])
        answers = []
        for password in (ann.token, "wrong"):
            async with connect(url, subprotocols=[Subprotocol("mqtt")]) as socket:
                await socket.send(connect_packet("ann", password))
                answers.append(await socket.recv())

    assert answers == [b"\x20\x02\x00\x00", b"\x20\x02\x00\x05"]


async def test_a_websocket_where_nothing_is_mounted_is_refused(tmp_path: Path) -> None:
    async with skep(tmp_path / "home") as runtime, asyncio.timeout(30):
        for path in ("/things", "/mqttx", "/"):
            with pytest.raises(InvalidStatus):
                await connect(f"{runtime.http.replace('http', 'ws')}{path}")
