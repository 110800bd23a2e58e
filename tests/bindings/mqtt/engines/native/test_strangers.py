"""What somebody without a login may cost, and what a client that takes small packets is told."""

import pytest

from bindings.mqtt.engines.seam import Limits
from tests.bindings.mqtt.engines.native.peer import connect, packet, props, serving

pytestmark = pytest.mark.anyio


async def test_connections_before_login_are_bounded_by_source_and_the_oldest_goes_first() -> None:
    async with serving(Limits(max_unauthenticated_per_source=2)) as served, served.client() as member:
        await member.connect("member")
        async with served.client() as first, served.client() as second, served.client() as third:
            assert await first.closed() == b""
            await third.connect("third")
            await second.connect("second")
            await member.ping()

            assert served.engine.counts["too-many-of-a-source"] == 1
            assert served.engine.connections.sources == 0


@pytest.mark.parametrize(
    ("largest", "first"), [(4, b""), (10, b"\x20\3\0\x95\0"), (13, b"\x20\x0b\0\0"), (16, b"\x20\x0e\0\0")]
)
async def test_no_connack_is_larger_than_the_client_takes(largest: int, first: bytes) -> None:
    async with serving() as served, served.client() as client:
        client.send(connect(level=5, keep_alive=60, properties=props(b"\x27" + largest.to_bytes(4, "big"))))
        client.send(packet(0xE0, b""))
        answer = await client.closed()

        assert len(answer) <= largest
        assert answer[: len(first)] == first
        assert bool(served.gate.links) is (largest >= 13)


async def test_a_refusal_is_not_larger_than_the_client_takes_either() -> None:
    async with serving() as served, served.client() as client:
        client.send(connect(level=5, password=b"wrong", properties=props(b"\x27\0\0\0\4")))

        assert await client.closed() == b""
