"""Agents that poll: what comes between two polls, and who gets it if somebody else is there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiomqtt
import anyio
import httpx2
import pytest

from tests.support import PUMP, Account, Skep, skep
from tests.trials.process import mqtt_client

pytestmark = pytest.mark.anyio

TD = {**PUMP, "actions": {"turn": {}, "now": {"skep:expires": "PT0S"}}}
SOON_S = 15.0
"""Less than the interval of 30 s that a poll keeps its agent reachable."""


@dataclass(frozen=True, slots=True)
class Site:
    """A runtime with a Thing, its agent and a caller."""

    runtime: Skep
    agent: Account
    works: httpx2.AsyncClient
    ann: httpx2.AsyncClient

    async def ask(self, action: str) -> str:
        reply = await self.ann.post(f"/things/dtw:works:pump/actions/{action}")
        assert reply.status_code == 201, reply.text
        return reply.headers["location"].rpartition("/")[2]

    async def polled(self, wait_s: float) -> list[str]:
        reply = await self.works.get(f"/agent/requests?wait={wait_s:g}")
        return [one["requestID"] for one in reply.json()["items"]]

    @asynccontextmanager
    async def mqtt(self) -> AsyncIterator[aiomqtt.Client]:
        """Another session of the agent, subscribed to its inbox."""
        async with mqtt_client(self.runtime.mqtt_address, self.agent) as client:
            await client.subscribe("inbox/works/#", qos=1)
            yield client

    async def said_by_mqtt(self, client: aiomqtt.Client, count: int) -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(SOON_S):
            async for message in client.messages:
                found.append(str(message.topic).rpartition("/")[2])
                if len(found) == count:
                    break
        return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with skep(tmp_path / "home") as runtime:
        agent, caller = await runtime.add("works", "agent"), await runtime.add("ann")

        def client(account: Account) -> httpx2.AsyncClient:
            headers = {"authorization": f"Bearer {account.token}"}
            return httpx2.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False, timeout=30)

        async with client(agent) as works, client(caller) as ann:
            reply = await works.put("/agent/things/pump", json=TD)
            assert reply.status_code == 201, reply.text
            yield Site(runtime, agent, works, ann)


async def test_what_comes_between_two_polls_goes_to_a_newer_session_at_once(site: Site) -> None:
    assert await site.polled(0) == []
    sent = [await site.ask("turn"), await site.ask("now")]

    async with site.mqtt() as client:
        assert await site.said_by_mqtt(client, 2) == sent


async def test_what_comes_between_two_polls_goes_to_the_next_one_even_if_it_does_not_wait(site: Site) -> None:
    assert await site.polled(0) == []
    for _ in range(3):
        sent = [await site.ask("turn"), await site.ask("now")]
        assert await site.polled(0) == sent


async def test_the_first_poll_gets_what_waited_even_if_it_does_not_wait(site: Site) -> None:
    sent = await site.ask("turn")

    assert await site.polled(0) == [sent]


async def test_what_no_poll_fetched_expires_and_was_never_handed_over(site: Site) -> None:
    assert await site.polled(0) == []
    reply = await site.ann.post("/things/dtw:works:pump/actions/turn", headers={"x-expires-in": "0.5"})
    request_id = reply.headers["location"].rpartition("/")[2]
    with anyio.fail_after(30):
        while True:
            row = (await site.ann.get(f"/requests/{request_id}")).json()
            if row["state"] != "pending":
                break
            await anyio.sleep(0.02)

    assert (row["reason"], row["attempts"]) == ("expired", 0)


async def test_a_long_poll_whose_client_leaves_holds_nothing_back(site: Site) -> None:
    assert await site.polled(0) == []
    with pytest.raises(httpx2.ReadTimeout):
        await site.works.get("/agent/requests?wait=30", timeout=0.3)
    sent = await site.ask("turn")

    async with site.mqtt() as client:
        assert await site.said_by_mqtt(client, 1) == [sent]
