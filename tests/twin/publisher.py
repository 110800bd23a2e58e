"""A program that stores readings and requests until it is killed, naming each one that was acknowledged."""

import asyncio
import sys
import time
from pathlib import Path

from things.addresses import Kind
from things.delivery import State
from things.messages import Operation
from things.records import LedgerRow, Reading
from twin.store import Twin, open_twin


def now() -> int:
    return time.time_ns() // 1_000


async def read(twin: Twin, worker: int, run: str) -> None:
    """Append one reading after the other."""
    number = 0
    while True:
        reading = Reading(
            thing_id=f"dtw:a:{worker}",
            kind=Kind.EVENT,
            name="tick",
            value=f'"{run}-{number}"'.encode(),
            created=now(),
            received=now(),
            sender="a",
            message_id=f"{run}-{worker}-{number}",
        )
        appended = (await twin.history.append([reading]))[0]
        print(f"row {appended.row_id} {worker} {run}-{number}", flush=True)
        number += 1


async def ask(twin: Twin, worker: int, run: str) -> None:
    """Open one request after the other and end it."""
    number = 0
    while True:
        request_id = f"{run}-{worker}-{number}"
        row = LedgerRow(
            request_id=request_id,
            caller_ref=request_id,
            operation=Operation.INVOKE_ACTION,
            caller="c",
            thing_id="dtw:a:1",
            agent="a",
            name="go",
            input=number,
            has_input=True,
            state=State.PENDING,
            expires=None,
            deadline_s=60.0,
            created=now(),
            updated=now(),
        )
        row, _ = await twin.ledger.open(row)
        print(f"pending {row.seq} {request_id}", flush=True)
        *_, row = await twin.ledger.advance(request_id, State.COMPLETED, now=now(), agent="a", output=number)
        print(f"completed {row.seq} {request_id}", flush=True)
        number += 1


async def main(home: Path, run: str) -> None:
    async with open_twin(home, clock=now, reserve_bytes=4096, checkpoint_s=0.05) as twin, asyncio.TaskGroup() as tasks:
        for worker in range(8):
            tasks.create_task(read(twin, worker, run))
            tasks.create_task(ask(twin, worker, run))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
