"""What one turn of the loop writes leaves in one piece for each connection."""

import asyncio
from typing import Any

import pytest

from bindings.web.coalesced_writes import FLUSH_BYTES, CoalescingTransport

pytestmark = pytest.mark.anyio


class Recorded(asyncio.Transport):
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Any] = []

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def get_write_buffer_size(self) -> int:
        return 0


def gathered() -> tuple[Recorded, CoalescingTransport]:
    raw = Recorded()
    return raw, CoalescingTransport(raw, asyncio.get_running_loop())


async def test_writes_of_one_turn_leave_together_and_those_of_two_turns_apart() -> None:
    (first, one), (second, two) = gathered(), gathered()
    one.write(b"head ")
    two.write(b"other")
    one.write(bytearray(b"body"))
    assert not first.done
    assert one.get_write_buffer_size() == 9

    await asyncio.sleep(0)
    assert first.done == [b"head body"]
    assert second.done == [b"other"]

    one.writelines([b"a", b"b"])
    await asyncio.sleep(0)
    assert first.done == [b"head body", b"ab"]


async def test_a_close_takes_along_what_was_written_and_an_abort_does_not() -> None:
    (closed, one), (aborted, two) = gathered(), gathered()
    one.write(b"last words")
    one.close()
    two.write(b"lost")
    two.abort()
    await asyncio.sleep(0)

    assert closed.done == [b"last words", "close"]
    assert aborted.done == ["abort"]


async def test_much_in_one_turn_is_handed_over_before_it_ends() -> None:
    raw, transport = gathered()
    transport.write(b"x" * FLUSH_BYTES)
    transport.write(b"y")
    assert len(raw.done) == 1


async def test_a_connection_that_was_lost_keeps_nobody_else_from_being_answered() -> None:
    class Broken(Recorded):
        def write(self, data: "bytes | bytearray | memoryview") -> None:
            raise RuntimeError("the handler is closed")

    lost, broken = Recorded(), Broken()
    loop = asyncio.get_running_loop()
    raw, transport = gathered()
    for each in (CoalescingTransport(lost, loop), CoalescingTransport(broken, loop), transport):
        each.write(b"reply")
    lost.close()
    await asyncio.sleep(0)

    assert lost.done == ["close"]
    assert broken.done == ["abort"]
    assert raw.done == [b"reply"]
