"""The ledger against plain grouped inserts, in one run: `python -m bench.bench_ledger`.

The plain side inserts the same ready rows in groups of the same size and with the same full sync: once into the
ledger's own tables, and once into a table with a single index. What it has not is callers that wait, checks and
futures. Rounds are interleaved and medians compared. `--pending` also tells what waiting rows cost.
"""

import argparse
import asyncio
import json
import resource
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from sqlalchemy import create_engine

from things.delivery import State
from things.messages import Operation
from things.records import LedgerRow
from twin.ledger import LedgerStore
from twin.migrations import migrate
from twin.store import open_twin
from twin.tables import MIGRATIONS

TARGET = 0.3
T0 = 1_770_000_000_000_000
GROUP = 200


def requests(count: int, start: int = 0) -> list[LedgerRow]:
    return [
        LedgerRow(
            request_id=f"01900000-0000-7000-8000-{number:012d}",
            caller_ref=f"reference-{number}",
            operation=Operation.INVOKE_ACTION,
            caller=f"caller-{number % 20}",
            thing_id=f"dtw:agent-{number % 50}:thing-{number % 500}",
            agent=f"agent-{number % 50}",
            name="toggle",
            input={"level": number % 100},
            has_input=True,
            state=State.PENDING,
            expires=T0 + number,
            deadline_s=60.0,
            created=T0,
            updated=T0,
        )
        for number in range(start, start + count)
    ]


def plain(folder: Path, rows: Sequence[LedgerRow], *, own_tables: bool) -> float:
    """The same rows, inserted one by one in groups; into a table with one index, or into the ledger's own."""
    ready = [
        (
            *(n, row.request_id, row.caller, row.caller_ref, row.operation.value, row.thing_id, row.agent, row.name),
            *(json.dumps(row.input), "pending", row.expires, 60.0, None, row.expires, T0, T0, 0, None, n),
        )
        for n, row in enumerate(rows)
    ]
    path = folder / f"plain-{own_tables}.db"
    if own_tables:
        engine = create_engine(f"sqlite:///{path}")
        migrate(engine, MIGRATIONS)
        engine.dispose()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    if not own_tables:
        connection.execute(f"CREATE TABLE requests (a INTEGER PRIMARY KEY, {', '.join(f'c{n}' for n in range(18))})")
        connection.execute("CREATE INDEX by_id ON requests (c0)")
    started = time.perf_counter()
    for first in range(0, len(rows), GROUP):
        connection.execute("BEGIN")
        for request in ready[first : first + GROUP]:
            connection.execute(f"INSERT INTO requests VALUES ({','.join('?' * 19)})", request)
        connection.execute("COMMIT")
    took = time.perf_counter() - started
    connection.close()
    return len(rows) / took


async def opened_all(ledger: LedgerStore, rows: Sequence[LedgerRow]) -> float:
    """Callers that each wait for their request to be accepted."""

    async def caller(mine: Sequence[LedgerRow]) -> None:
        for row in mine:
            await ledger.open(row)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(GROUP):
            tasks.create_task(caller(rows[number::GROUP]))
    return len(rows) / (time.perf_counter() - started)


async def advanced_all(ledger: LedgerStore, rows: Sequence[LedgerRow]) -> float:
    """Agents that complete what they were asked: two transitions each."""

    async def agent(mine: Sequence[LedgerRow]) -> None:
        for row in mine:
            await ledger.advance(row.request_id, State.COMPLETED, now=T0, agent=row.agent, output={"ok": True})

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(GROUP):
            tasks.create_task(agent(rows[number::GROUP]))
    return len(rows) / (time.perf_counter() - started)


async def ours(folder: Path, rows: Sequence[LedgerRow]) -> tuple[float, float]:
    async with open_twin(folder, clock=lambda: T0) as twin:
        return await opened_all(twin.ledger, rows), await advanced_all(twin.ledger, rows)


async def with_pending(pending: int) -> None:
    """What waiting rows cost in memory, and every operation in time."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_twin(Path(folder), clock=lambda: T0) as twin:
            before_rate = await opened_all(twin.ledger, requests(10_000))
            before = _resident_bytes()
            for first in range(10_000, pending, 10_000):
                await opened_all(twin.ledger, requests(10_000, first))
            after_rate = await opened_all(twin.ledger, requests(10_000, 10_000_000))
            print(f"{pending:,} pending rows: {(_resident_bytes() - before) / 1e6:.1f} MB")
            print(f"accepting with them: {after_rate / before_rate:.2f} × the rate without")
            for name, operation in (
                ("next_due", twin.ledger.next_due),
                ("due", lambda: twin.ledger.due(T0 + 100, limit=100)),
                ("waiting", lambda: twin.ledger.waiting("agent-7", limit=100)),
                ("unanswered", lambda: twin.ledger.unanswered("agent-7", limit=100)),
                ("inbox", lambda: twin.ledger.inbox("caller-3", after=twin.ledger.last_seq - 1_000, limit=100)),
                ("waiting_counts (at start)", twin.ledger.waiting_counts),
            ):
                started = time.perf_counter()
                await operation()
                print(f"{name:28} {(time.perf_counter() - started) * 1e3:7.2f} ms")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=0, help="also with this many waiting rows, e.g. 100000")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = requests(options.count)
    rates: dict[str, list[float]] = {"plain, one index": [], "plain, own indexes": [], "accept": [], "complete": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rates["plain, one index"].append(plain(Path(folder), rows, own_tables=False))
            rates["plain, own indexes"].append(plain(Path(folder), rows, own_tables=True))
            accepted, completed = asyncio.run(ours(Path(folder), rows))
            rates["accept"].append(accepted)
            rates["complete"].append(completed)
    figures = {name: median(each) for name, each in rates.items()}
    if options.json:
        print(json.dumps(figures))
    else:
        simple, own = figures["plain, one index"], figures["plain, own indexes"]
        for name, rate in figures.items():
            print(f"{name:20} {rate:10,.0f} /s  {rate / own:5.2f} × own indexes  {rate / simple:5.2f} × one index")
        print(f"aim: accept ≥ {TARGET} × plain inserts of the same rows; complete is two steps of each request")
    if options.pending:
        asyncio.run(with_pending(options.pending))


if __name__ == "__main__":
    main()
