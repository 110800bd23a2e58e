"""What the acknowledgement of a value waits for: its commit, unless the configuration gives up on that."""

from asyncio import Future, get_running_loop, shield, sleep
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from runtime.metrics import Metrics
from runtime.ports import Appended, History, HistoryQuery, Publication, Reading, Row
from runtime.publications.telemetry import Telemetry
from tests.runtime.doubles import agent_principal
from tests.runtime.harness import House, house
from things.addresses import Kind
from things.errors import StorageFull
from things.messages import Message, Operation

pytestmark = pytest.mark.anyio


class Held:
    """A history that commits when it is told to."""

    last_row = 0

    def __init__(self) -> None:
        self.waiting: list[Future[Sequence[Appended]]] = []

    def append(self, readings: Sequence[Reading]) -> "Future[Sequence[Appended]]":
        self.waiting.append(get_running_loop().create_future())
        return self.waiting[-1]

    def place(self, reading: Reading) -> int | None:
        return None

    def on_lost(self, callback: Callable[[int, BaseException], None]) -> None:
        pass

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        return ()

    async def horizon(self, query: HistoryQuery, *, max_bytes: int, received: int) -> int:
        return 0

    async def commit_all(self) -> None:
        for number, done in enumerate(self.waiting, 1):
            done.set_result([Appended(number, False)])
        self.waiting.clear()
        await sleep(0)  # what follows a commit is called in the next turn of the loop


def telemetry(h: House, history: History, published: list[Publication], *, durable: bool) -> Telemetry:
    return Telemetry(
        directory=h.twin.directory,
        values=h.twin.values,
        history=history,
        publish=published.append,
        assess=lambda reading, message, entry: 0,
        metrics=Metrics(),
        is_durable=durable,
    )


def stored(h: House, handler: Telemetry, message: Message) -> "Future[Any] | None":
    entry = h.twin.directory.get(message.thing_id)
    assert entry is not None
    return handler.store(message, entry)


def flow(h: House, thing_id: str) -> Message:
    return h.message(Operation.PUBLISH_PROPERTY, agent_principal("mill"), thing_id, "flow", 1)


async def test_a_value_is_acknowledged_when_its_row_is_committed_and_not_before(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        history, published = Held(), list[Publication]()
        handler = telemetry(h, history, published, durable=True)

        committed = stored(h, handler, flow(h, await h.publish_td("mill", "pump")))
        assert committed is not None
        assert not committed.done()
        assert not published

        await history.commit_all()
        assert [each.name for each in published] == ["flow"]


async def test_without_durable_history_nobody_waits_and_observers_still_get_what_is_committed(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        history, published = Held(), list[Publication]()
        handler = telemetry(h, history, published, durable=False)
        message = flow(h, await h.publish_td("mill", "pump"))

        assert stored(h, handler, message) is None
        assert (await handler(message)).is_final
        assert not published

        await history.commit_all()
        assert len(published) == 2
        assert all(each.durable for each in published), "subscribers still get the QoS they asked for"


async def test_what_nobody_waits_for_is_told_at_once_but_does_not_overtake_what_waits(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        published: list[Publication] = []
        handler = telemetry(h, h.twin.history, published, durable=True)
        message = flow(h, await h.publish_td("mill", "pump"))
        await handler(message)

        undurable = replace(message, durable=False, data=2)
        assert stored(h, handler, undurable) is None
        assert [each.value for each in published] == [1, 2], "its id was promised, so nobody waits for its commit"

        assert stored(h, handler, replace(message, data=3)) is not None
        assert stored(h, handler, replace(undurable, data=4)) is None
        assert [each.value for each in published] == [1, 2], "4 waits for 3"
        await handler(replace(message, data=5))
        assert [each.value for each in published] == [1, 2, 3, 4, 5]
        assert [each.row_id for each in published] == sorted({each.row_id for each in published})
        assert len(await h.twin.history.read(HistoryQuery())) == 5


async def test_a_commit_that_fails_is_told_to_who_waits_and_counted_where_nobody_does(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        for durable in (True, False):
            history = Held()
            handler = telemetry(h, history, [], durable=durable)
            committed = stored(h, handler, flow(h, await h.publish_td("mill", "pump")))
            assert (committed is not None) is durable

            history.waiting[0].set_exception(StorageFull())

            with pytest.raises(StorageFull):
                await shield(history.waiting[0])
            await sleep(0)
            assert handler.metrics.lost_undurable == (not durable)


async def test_a_value_that_is_refused_is_refused_at_once_and_stored_nowhere(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id = await h.publish_td("mill", "pump")
        stranger = h.message(Operation.PUBLISH_PROPERTY, agent_principal("other"), thing_id, "flow", 1)

        with pytest.raises(Exception, match="may not publish_property"):
            h.runtime.store(stranger)

        assert h.twin.history.last_row == 0
        assert h.twin.values.get(thing_id, Kind.PROPERTY, "flow") is None
        assert h.runtime.metrics.refused[Operation.PUBLISH_PROPERTY, "embedded", "forbidden"] == 1


async def test_a_batch_is_passed_on_though_its_sender_left_before_the_commit(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        who = agent_principal("agent")
        messages = [h.message(Operation.PUBLISH_PROPERTY, who, pump, "flow", flow) for flow in (1, 2, 3)]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(h.runtime.batch, messages)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        await h.until(lambda: h.twin.values.get(pump, Kind.PROPERTY, "flow"))
        latest = h.twin.values.get(pump, Kind.PROPERTY, "flow")
        assert latest is not None
        assert latest.value == 3
