"""A refused login takes the same time whatever was wrong, so that nobody learns which accounts there are: over HTTP and
at an MQTT CONNECT, for an unknown account, a wrong password, a disabled account and one that has no password.

Compared are ranks, not seconds: how often a try of one kind took longer than one of another, in tries that take turns
in random order. What else the machine does hits all kinds alike. A kind that is known to be cheaper shows that the
comparison would notice.
"""

import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.bindings.mqtt import wire
from tests.support import Skep, skep
from things.identity import AccountType, Role

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("costly_passwords")]

PASSWORD = "correct horse battery"
TRIES = {
    "unknown": ("nobody", PASSWORD),
    "wrong": ("ann", "wrong horse battery"),
    "disabled": ("dan", PASSWORD),
    "no password": ("tom", PASSWORD),
}
Try = Callable[[str, str], Awaitable[None]]
CHEAP = "cheap"
"""Refused without hashing anything, and no secret: a password in the form of a token, a body that is no login."""


@asynccontextmanager
async def _over_http(runtime: Skep) -> AsyncIterator[Try]:
    async with httpx2.AsyncClient(base_url=runtime.http, trust_env=False, timeout=30) as client:

        async def attempt(account: str, password: str) -> None:
            given = {} if account == CHEAP else {"login": account, "password": password}
            reply = await client.post("/authn/login", json=given)
            wanted = (400, "invalid") if account == CHEAP else (401, "unauthenticated")
            assert (reply.status_code, reply.json()["code"]) == wanted

        yield attempt


@asynccontextmanager
async def _over_mqtt(runtime: Skep) -> AsyncIterator[Try]:
    async def attempt(account: str, password: str) -> None:
        async with wire.raw(runtime.mqtt_address) as client:
            client.send(wire.connect("c", account, "eyJ.forged.token" if account == CHEAP else password))
            assert (await client.expect(wire.CONNACK)).body == b"\x00\x05"
            assert await client.is_cut_off()

    yield attempt


DOORS: dict[str, Callable[[Skep], AbstractAsyncContextManager[Try]]] = {"http": _over_http, "mqtt": _over_mqtt}


async def measured(attempt: Try, rounds: int) -> dict[str, list[float]]:
    """Processor time of each try, client and server together, in seconds: of one process, so nobody else's."""
    kinds = {**TRIES, CHEAP: (CHEAP, "")}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    rng = random.Random(7)
    for number in range(rounds + 2):
        for kind in rng.sample(sorted(kinds), len(kinds)):
            began = time.process_time()
            await attempt(*kinds[kind])
            if number >= 2:  # the first ones also pay for what is loaded once
                found[kind].append(time.process_time() - began)
    return found


def longer(these: Sequence[float], those: Sequence[float]) -> float:
    """How often one of these is longer than one of those: 0.5 where they are alike (Mann-Whitney)."""
    wins = sum((one > other) + (one == other) / 2 for one in these for other in those)
    return wins / (len(these) * len(those))


async def compared(home: Path, door: str, rounds: int, bound: float) -> str:
    async with skep(home, security={"login_attempts_per_minute": 100_000}) as runtime:
        administration = runtime.running.stores.authenticator.administration
        for name in ("ann", "dan"):
            await administration.add(
                name, AccountType.CONSUMER, Role.VIEWER, password=PASSWORD, with_token=False, by="test"
            )
        await administration.disable("dan", by="test")
        await runtime.add("tom", role="viewer")
        async with DOORS[door](runtime) as attempt:
            found = await measured(attempt, rounds)

    ranks = {(one, other): longer(found[one], found[other]) for one in TRIES for other in TRIES if one < other}
    worst = max(ranks, key=lambda pair: abs(ranks[pair] - 0.5))
    medians = {kind: statistics.median(times) * 1e3 for kind, times in found.items()}
    told = ", ".join(f"{kind} {ms:.2f} ms" for kind, ms in medians.items())
    said = f"{door}: {told}; {worst[0]} was longer than {worst[1]} in {ranks[worst]:.0%} of comparisons"
    assert abs(ranks[worst] - 0.5) < bound, said
    assert all(longer(found[kind], found[CHEAP]) > 0.95 for kind in TRIES), said
    return said


@pytest.mark.parametrize("door", DOORS)
async def test_refused_logins_take_the_same_time(tmp_path: Path, door: str) -> None:
    # Few tries: only a kind that is apart from another altogether, as one that is not hashed, can be told.
    print(await compared(tmp_path, door, rounds=12, bound=0.49))


@pytest.mark.trial
@pytest.mark.parametrize("door", DOORS)
async def test_refused_logins_take_the_same_time_in_many_tries(tmp_path: Path, door: str) -> None:
    # Five standard deviations of what chance does to ranks of so many.
    print(await compared(tmp_path, door, rounds=200, bound=0.15))
