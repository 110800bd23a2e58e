"""What was acknowledged is there after kill -9, in order and once; what was not may be there or not."""

import os
import random
import signal
import sys
from pathlib import Path

import anyio
import pytest

from things.delivery import State
from things.records import HistoryQuery
from twin.store import open_twin

pytestmark = pytest.mark.anyio

KILLS = 4
REPOSITORY = Path(__file__).parents[2]


async def test_acknowledged_rows_and_requests_survive_kills(tmp_path: Path) -> None:
    rows: dict[int, str] = {}
    states: dict[str, tuple[int, str]] = {}
    rng = random.Random(1)
    with anyio.fail_after(120):
        for run in range(KILLS):
            for line in await acknowledged_before_kill(tmp_path, f"run{run}", lines=rng.randrange(200, 900)):
                kind, number, *names = line.split()
                if kind == "row":
                    assert int(number) not in rows, "a row id was used twice"
                    rows[int(number)] = names[1]
                else:
                    states[names[0]] = (int(number), kind)

        async with open_twin(tmp_path, clock=lambda: 0, reserve_bytes=4096) as twin:
            stored = {row.row_id: row.value for row in await twin.history.read(HistoryQuery(after_row=0, limit=10**6))}
            lost = [row_id for row_id, value in rows.items() if stored.get(row_id) != f'"{value}"'.encode()]
            for request_id, (seq, state) in states.items():
                request = await twin.ledger.get(request_id)
                if request is None or request.seq < seq or (state == "completed") > (request.state is State.COMPLETED):
                    lost.append(seq)
            inbox = await twin.ledger.inbox("c", after=0, limit=10**6)

    print(f"{len(lost)} lost of {len(rows) + len(states)} over {KILLS} kills")
    assert lost == []
    assert [status.seq for status in inbox] == sorted({status.seq for status in inbox})
    assert len(rows) > 100
    assert len(states) > 100


async def acknowledged_before_kill(home: Path, run: str, *, lines: int) -> list[str]:
    """Start the publisher, read this many acknowledgements, kill it, and read what it had said until then."""
    said = bytearray()
    command = [sys.executable, "-m", "tests.twin.publisher", str(home), run]
    async with await anyio.open_process(command, cwd=REPOSITORY, stderr=None, stdin=None) as process:
        assert process.stdout is not None
        async for chunk in process.stdout:
            said += chunk
            if said.count(b"\n") >= lines:
                break
        os.kill(process.pid, signal.SIGKILL)
        async for chunk in process.stdout:
            said += chunk
        await process.wait()
    # A line that was cut off by the kill says nothing.
    return said[: said.rfind(b"\n")].decode().splitlines()
