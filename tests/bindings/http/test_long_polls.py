"""Long polls of one affordance, request after request with nothing handed over: no value falls between two of them."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from bindings.http.config import HttpConfig
from bindings.http.poll_positions import MAX_ALIKE, PollPositions, poller
from tests.bindings.http.support import House, lamp_house
from things.addresses import Kind
from things.identity import AccountType, Principal, Role

pytestmark = pytest.mark.anyio

LAMP = "/things/dtw:lights:lamp"
EVENT = f"{LAMP}/events/overheated?wait=3600"
LEVEL = f"{LAMP}/properties/level?wait=3600"
DEADLINE_S = 30


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def published(lights: httpx.AsyncClient, values: Sequence[int], *, name: str = "overheated") -> None:
    """All in one transaction."""
    operation = "publish_event" if name == "overheated" else "publish_property"
    batch = [{"operation": operation, "thingID": "lamp", "name": name, "data": value} for value in values]
    reply = await lights.post("/agent/batch", content=json.dumps(batch))
    assert reply.json()["stored"] == len(values)


async def polled(viewer: httpx.AsyncClient, path: str, count: int) -> list[Any]:
    with anyio.fail_after(DEADLINE_S):
        return [(await viewer.get(path)).json() for _ in range(count)]


@pytest.mark.parametrize(("path", "name"), [(EVENT, "overheated"), (LEVEL, "level")])
async def test_a_client_that_polls_again_and_again_gets_every_value_of_a_batch(
    lamps: House, path: str, name: str
) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await published(lights, [0], name=name)
        assert (await viewer.head(path)).is_success

        await published(lights, range(1, 101), name=name)
        assert await polled(viewer, path, 50) == list(range(1, 51))
        await published(lights, range(1, 11), name=name)

        assert await polled(viewer, path, 60) == [*range(51, 101), *range(1, 11)]


async def test_a_client_on_a_new_connection_for_each_poll_misses_nothing_either(lamps: House) -> None:
    async with lamps.client("lights") as lights:
        async with lamps.client("viewer1") as viewer:
            await viewer.head(EVENT)
        await published(lights, range(10))

        for number in range(10):
            async with lamps.client("viewer1") as viewer:
                assert await polled(viewer, EVENT, 1) == [number]


async def test_two_clients_of_one_token_get_every_value_each(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as one, lamps.client("viewer1") as other:
        found: dict[httpx.AsyncClient, list[Any]] = {}

        async def poll(viewer: httpx.AsyncClient) -> None:
            found[viewer] = await polled(viewer, EVENT, 30)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll, one)
            tasks.start_soon(poll, other)
            with anyio.fail_after(DEADLINE_S):
                while len(lamps.runtime.sessions.everyone()) < 2:  # noqa: ASYNC110 - nobody is told
                    await anyio.sleep(0.005)
            await published(lights, range(30))

        assert found[one] == found[other] == list(range(30))


async def test_what_came_between_two_polls_is_judged_by_the_rights_of_the_second(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await viewer.head(EVENT)
        await published(lights, [1])
        await lamps.authenticator.administration.set_role("viewer1", Role.NONE, by="test")

        assert (await viewer.get(EVENT)).status_code == 403


async def test_a_client_that_has_not_polled_for_a_while_begins_anew(tmp_path: Path) -> None:
    config = HttpConfig(poll_position_s=0.0)
    async with (
        lamp_house(tmp_path / "home", config) as lamps,
        lamps.client("lights") as lights,
        lamps.client("viewer1") as viewer,
    ):
        await viewer.head(EVENT)
        await published(lights, [1])

        assert (await viewer.get(f"{LAMP}/events/overheated?wait=0.05")).status_code == 204


VIEWER = Principal(account="viewer1", type=AccountType.CONSUMER, role=Role.VIEWER, token_id="t")
WHO = poller(VIEWER, "127.0.0.1", "", "dtw:lights:lamp", Kind.EVENT, "overheated")


def test_positions_are_bounded_in_number() -> None:
    positions = PollPositions(lambda: 0.0, keep_s=10, most=100)

    for number in range(200):
        with positions.at(WHO._replace(name=str(number)), None, 0):
            pass

    assert len(positions) == 100


def test_clients_that_look_alike_have_positions_of_their_own_up_to_a_bound() -> None:
    positions = PollPositions(lambda: 0.0, keep_s=10, most=100)

    with positions.at(WHO, 1, 5) as one:
        with positions.at(WHO, 2, 7) as other:
            assert one is not other
            assert other.row == 5, "it may be the first one's client, which has given up"
        with positions.at(WHO, 3, 7) as again:
            assert again is other
    with positions.at(WHO, 1, 9) as back:
        assert back is one
    opened = [positions.at(WHO, number, 0) for number in range(100)]
    for each in opened:
        each.__enter__()
    assert len(positions) == MAX_ALIKE
