"""Acknowledgements keep the order of arrival while commits overlap."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest

from bindings.mqtt.engines.acks import Acknowledgements
from bindings.mqtt.engines.seam import ACCEPTED, Outcome, Publish

pytestmark = pytest.mark.anyio


class Client:
    """Records what would be acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, int, int]] = []
        self.failures: list[BaseException] = []
        self.tasks: list[asyncio.Task[object]] = []
        self.acks = Acknowledgements(self.acknowledge, self.refused, self.failures.append, self.start)

    def acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        self.acknowledged.append((qos, packet_id, outcome.reason_code))

    def refused(self, message: Publish, error: Exception) -> Outcome:
        if isinstance(error, PermissionError):
            return Outcome(reason_code=0x87)
        raise error

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task


def publish(qos: int) -> Publish:
    return Publish(topic="t", payload=b"", qos=qos)


def future() -> asyncio.Future[Outcome]:
    return asyncio.get_running_loop().create_future()


async def test_a_commit_that_ends_early_waits_for_the_one_before_it() -> None:
    client, first, second = Client(), future(), future()
    client.acks.add(publish(1), 10, first)
    client.acks.add(publish(2), 11, second)

    second.set_result(Outcome(reason_code=0x87))
    await asyncio.sleep(0)
    assert client.acknowledged == []
    first.set_result(ACCEPTED)
    with anyio.fail_after(30):
        await client.acks.settled()

    assert client.acknowledged == [(1, 10, 0), (2, 11, 0x87)]
    assert len(client.acks) == 0


async def test_a_commit_is_acceptance_and_a_refused_one_is_answered_in_its_turn() -> None:
    client, commits = Client(), [asyncio.get_running_loop().create_future() for _ in range(3)]
    for number, each in enumerate(commits, start=1):
        client.acks.add(publish(1), number, each)

    commits[2].set_result("row 3")
    commits[1].set_exception(PermissionError())
    commits[0].set_result("row 1")
    with anyio.fail_after(30):
        await client.acks.settled()

    assert client.acknowledged == [(1, 1, 0), (1, 2, 0x87), (1, 3, 0)]
    assert not client.acks.broken
    assert client.failures == []


async def test_an_answer_that_is_ready_is_acknowledged_at_once() -> None:
    client, ready = Client(), future()
    ready.set_result(ACCEPTED)

    client.acks.add(publish(1), 1, ready)

    assert client.acknowledged == [(1, 1, 0)]


async def test_coroutines_run_at_the_same_time() -> None:
    client, gate, running = Client(), asyncio.Event(), []

    async def commit(number: int) -> Outcome:
        running.append(number)
        await gate.wait()
        return ACCEPTED

    for number in range(1, 4):
        client.acks.add(publish(1), number, commit(number))
    await asyncio.sleep(0)
    assert running == [1, 2, 3]
    gate.set()
    with anyio.fail_after(30):
        await client.acks.settled()

    assert [packet_id for _, packet_id, _ in client.acknowledged] == [1, 2, 3]


async def test_a_failed_commit_ends_acknowledging_and_is_reported_once() -> None:
    client, futures = Client(), [future() for _ in range(4)]
    for number, each in enumerate(futures, start=1):
        client.acks.add(publish(1), number, each)

    futures[0].set_result(ACCEPTED)
    futures[1].set_exception(OSError("disk"))
    futures[2].set_exception(OSError("disk"))
    futures[3].set_result(ACCEPTED)
    with anyio.fail_after(30):
        await client.acks.settled()

    assert client.acknowledged == [(1, 1, 0)]
    assert len(client.failures) == 1
    assert client.acks.broken


async def test_qos_0_needs_no_acknowledgement_and_fails_alone() -> None:
    client, lost, kept = Client(), future(), future()
    client.acks.add(publish(0), 0, lost)
    client.acks.add(publish(1), 1, kept)

    lost.set_exception(OSError("disk"))
    kept.set_result(ACCEPTED)
    with anyio.fail_after(30):
        await client.acks.settled()

    assert client.acknowledged == [(1, 1, 0)]
    assert client.failures == []


async def test_a_cancelled_commit_counts_as_failed() -> None:
    client, cancelled = Client(), future()
    client.acks.add(publish(1), 1, cancelled)

    cancelled.cancel()
    with anyio.fail_after(30):
        await client.acks.settled()

    assert client.acknowledged == []
    assert len(client.failures) == 1
