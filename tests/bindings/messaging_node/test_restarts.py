"""What sessions hold outlives the process, however it ends."""

import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from bindings.messaging_node.journal import MAX_WAITING, Journal
from bindings.messaging_node.routes import Routes
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import SCHEMA, KeptSession, NodeStore, SessionRow, Step
from skep.hyperty import Runtime
from tests.bindings.messaging_node.support import ALLOCATION, REGISTRY, SM, client, connected, session, stub
from tests.support import skep
from tests.trials.process import furnished, runtime_process
from things.errors import NewerSchema, SkepError, StorageDamaged, StorageFull
from things.identity import AccountType, Principal

pytestmark = pytest.mark.anyio

CHANGES = "comm://localhost/o/changes"


@dataclass(frozen=True)
class Killed:
    """A runtime process, as clients of a house see it."""

    http: str


async def test_sessions_come_back_after_the_process_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    accounts = await furnished(home, {"ann": "operator"}, settings="[messaging_node]\nopen = true\n")
    token = accounts["ann"].token
    async with runtime_process(home) as process:
        house = Killed(process.http)
        async with client(house, "r1", token) as one, client(house, "guest") as guest, stub(house, "rt:/s") as bare:
            kept = (await one.allocate(number=3, allocationKey="block"))[0]
            (gone,) = await one.allocate()
            assert await one.code("delete", ALLOCATION, {"childrenResources": [gone]}) == 200
            (object_,) = await one.allocate("comm", childrenResources=["chat"])
            await one.ask("subscribe", SM, {"resources": [CHANGES, "comm://localhost/other/changes"]})
            await one.ask("unsubscribe", SM, {"resources": ["comm://localhost/other/changes"]})
            await one.ask("create", REGISTRY, {"value": {"url": kept}})
            (guests,) = await guest.allocate()
            (bares,) = await bare.allocate()
            sessions = one.session, guest.session

            await process.kill()

        await process.start()
        house = Killed(process.http)
        async with client(house, "other") as other:
            # Held for their owners, who are not back yet: nobody else gets them, and messages wait.
            assert await other.code("subscribe", SM, {"resources": [kept]}) == 403
            for address in (kept, f"{object_}/children/chat", guests, bares):
                await other.send("ping", address)
            assert await other.code("ping", gone) == 404
            await other.send("update", CHANGES, {"value": 1}, **{"from": "comm://localhost/o"})
            await other.send("update", "comm://localhost/other/changes", {}, **{"from": "comm://localhost/other"})
            assert await other.nothing()

            async with connected(house, token=token) as back:
                assert (await back.reopen(sessions[0]))["body"]["code"] == 200
                found = back.aside + [await back.next() for _ in range(3 - len(back.aside))]
                assert [one["to"] for one in found] == [kept, f"{object_}/children/chat", CHANGES]
                assert await back.code("delete", ALLOCATION, {"resource": "block"}) == 200
                assert await other.code("ping", kept) == 404
                assert (await other.ask("read", REGISTRY, {"resource": kept}))["body"]["value"]["status"] == "live"
            async with connected(house) as back:
                assert (await back.reopen(sessions[1]))["body"]["code"] == 200
                assert (back.aside or [await back.next()])[0]["to"] == guests
            async with stub(house, "rt:/s") as bare:
                assert (await bare.next())["to"] == bares
            async with connected(house) as thief:
                assert (await thief.reopen(sessions[0]))["body"]["code"] == 401


async def test_closed_sessions_stay_closed_after_the_process_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    await furnished(home, {}, settings="[messaging_node]\nopen = true\n")
    async with runtime_process(home) as process:
        async with client(Killed(process.http)) as one:
            await one.allocate()
            session = one.session
            await one.ask("close", "mn:/session", **{"from": one.runtime})
            await process.kill()
        await process.start()
        async with connected(Killed(process.http)) as late:
            assert (await late.reopen(session))["body"]["code"] == 401


async def test_sdk_goes_on_after_the_process_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    await furnished(home, {}, settings="[messaging_node]\nopen = true\n")
    async with runtime_process(home) as process, Runtime(process.http) as alice, Runtime(process.http) as bob:
        reporter = await alice.report("meter", {"count": 0})
        observer = await bob.observe(reporter.url)
        await process.restart()
        await reporter.set("count", 1)

        with anyio.fail_after(30):
            async for change in observer:
                if observer.data == {"count": 1}:
                    break
                assert change.attribute in (None, "count")


async def test_sessions_of_accounts_that_are_gone_or_out_of_time_do_not_come_back(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node={"open": True}) as house:
        ann, bob = await house.add("ann"), await house.add("bob")
        async with client(house, "a", ann.token) as a, client(house, "b", bob.token) as b:
            (address,) = await a.allocate()
            (other,) = await b.allocate()
            a.socket.transport.abort()
            b.socket.transport.abort()
    file = tmp_path / "node.db"
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE sessions SET until = 1 WHERE runtime_url LIKE '%/b'")
    connection.close()

    async with skep(tmp_path, messaging_node={"open": True}) as house:
        await house.running.stores.authenticator.administration.disable("ann", by="test")
        async with client(house) as one:
            assert await one.code("ping", other) == 404
    async with skep(tmp_path, messaging_node={"open": True}) as house, client(house) as one:
        assert await one.code("ping", address) == 404
    with sqlite3.connect(file) as connection:
        left = connection.execute("SELECT count(*) FROM held WHERE address IN (?, ?)", (address, other)).fetchone()
    connection.close()
    assert left == (0,)


async def test_file_of_the_first_schema_keeps_names_and_registrations(tmp_path: Path) -> None:
    file = tmp_path / "node.db"
    with sqlite3.connect(file) as connection:
        connection.executescript(
            "CREATE TABLE sessions (token TEXT PRIMARY KEY, until INTEGER NOT NULL, document BLOB NOT NULL)"
            " WITHOUT ROWID;"
            "CREATE TABLE addresses (address TEXT PRIMARY KEY, account TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE registrations (url TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;"
            "INSERT INTO sessions VALUES ('hash', 99, '{}');"
            "INSERT INTO addresses VALUES ('comm://localhost/room', 'ann');"
            """INSERT INTO registrations VALUES ('comm://localhost/room', '{"url": "comm://localhost/room"}');"""
            "PRAGMA user_version = 1;"
        )
    connection.close()
    store = NodeStore(file)
    await store.open()

    assert await store.named() == {"comm://localhost/room": ("ann", None)}
    assert await store.registrations() == [{"url": "comm://localhost/room"}]
    assert await store.sessions() == []
    row = SessionRow(
        session_id="s",
        token_hash=None,
        runtime_url="rt://x",
        principal=Principal(account="ann", type=AccountType.AGENT, role="agent", expires=7),
        until=None,
    )
    held = store.address_held("s", "comm://localhost/room", True, "key")
    await store.write([store.session_put(row), held, store.address_heard("s", CHANGES)])
    assert await store.sessions() == [KeptSession(row, [("comm://localhost/room", True, "key")], [CHANGES])]
    await store.write(store.session_dropped("s"))
    assert await store.sessions() == []
    await store.close()


async def test_stopping_runtime_says_so_to_its_clients_and_they_come_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as connections:
        async with skep(tmp_path, messaging_node={"open": True}) as house:
            one = await connections.enter_async_context(client(house))
            (address,) = await one.allocate()
        assert await one.closed() == 1001
    async with skep(tmp_path, messaging_node={"open": True}) as house, connected(house) as back:
        assert (await back.reopen(one.session))["body"]["code"] == 200
        await back.send("ping", address)
        assert (await back.next())["to"] == address


async def test_slow_disk_slows_down_who_changes_much_and_a_failing_one_is_told() -> None:
    class Disk(NodeStore):
        """Writes when it is let, and fails when it is told to."""

        def __init__(self) -> None:
            super().__init__(None)
            self.may_write = anyio.Event()
            self.written: list[int] = []
            self.fails = False

        async def write(self, steps: Sequence[Step]) -> None:
            await self.may_write.wait()
            if self.fails:
                raise StorageFull
            self.written.append(len(steps))

    disk = Disk()
    journal = Journal(disk)
    routes = Routes(NodeSettings(), journal)
    one = session()
    answered: list[SkepError | None] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.serve)
        for number in range(MAX_WAITING + 1):
            routes.hold(f"comm://localhost/{number}", one)
        journal.after(answered.append)
        with anyio.move_on_after(0.05) as patience:
            await journal.room()
        assert patience.cancelled_caught
        disk.may_write.set()
        with anyio.fail_after(30):
            await journal.room()
            await journal.committed()
        assert sum(disk.written) == MAX_WAITING + 1
        assert answered == [None]

        disk.fails = True
        routes.release("comm://localhost/7")
        with pytest.raises(StorageFull):
            await journal.committed()
        tasks.cancel_scope.cancel()


async def test_damaged_file_and_one_of_a_later_version_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.db"
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageDamaged):
        await NodeStore(file).open()
    file.unlink()
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    with pytest.raises(NewerSchema):
        await NodeStore(file).open()
