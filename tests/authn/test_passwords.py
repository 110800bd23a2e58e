"""A right password costs its work once a minute, a wrong one every time."""

import asyncio
import time
from pathlib import Path

import httpx2
import pytest
from argon2 import PasswordHasher

from authn.passwords import MAX_WAITING, PROVEN_S, Passwords, checked_password
from authn.weak_passwords import is_tried_first
from tests.support import skep
from things.errors import Invalid, RateLimited

pytestmark = pytest.mark.anyio

GOOD, WRONG = "the right one of vera", "the wrong one of vera"


class Counted(Passwords):
    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)
        self.checks = 0
        hasher = self._hasher

        class Counting:
            def verify(_, kept: str, password: str) -> bool:  # noqa: N805
                self.checks += 1
                return hasher.verify(kept, password)

        self._hasher = Counting()  # type: ignore[assignment]


@pytest.fixture
def kept() -> str:
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(GOOD)


async def test_a_right_password_is_recognised_for_a_while(kept: str) -> None:
    passwords = Counted()

    assert [await passwords.matches(kept, GOOD) for _ in range(5)] == [True] * 5
    assert passwords.checks == 1
    passwords.now = PROVEN_S
    assert await passwords.matches(kept, GOOD)
    assert passwords.checks == 2


async def test_a_wrong_one_costs_the_work_every_time_also_beside_a_right_one(kept: str) -> None:
    passwords = Counted()
    await passwords.matches(kept, GOOD)

    assert [await passwords.matches(kept, WRONG) for _ in range(3)] == [False] * 3
    assert [await passwords.matches(None, GOOD) for _ in range(3)] == [False] * 3
    assert passwords.checks == 7


async def test_a_changed_password_is_not_recognised_any_more(kept: str) -> None:
    passwords = Counted()
    await passwords.matches(kept, GOOD)
    changed = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(WRONG)

    assert not await passwords.matches(changed, GOOD)
    assert await passwords.matches(changed, WRONG)


async def test_many_at_once_are_checked_by_few(kept: str) -> None:
    passwords = Counted()

    found = await asyncio.gather(*(passwords.matches(kept, GOOD) for _ in range(MAX_WAITING)))

    assert (set(found), passwords.checks < 8) == ({True}, True)
    with pytest.raises(RateLimited):
        await asyncio.gather(*(passwords.matches(kept, f"{WRONG} {number}") for number in range(MAX_WAITING + 1)))


async def test_basic_logins_of_one_account_leave_the_others_theirs(tmp_path: Path) -> None:
    async with skep(tmp_path, security={"login_attempts_per_minute": 100}) as runtime:
        for name in ("vera", "bob"):
            await runtime.add(name)
            await runtime.running.stores.authenticator.administration.set_password(name, GOOD, by="test")
        async with httpx2.AsyncClient(base_url=runtime.http, trust_env=False, timeout=30) as client:
            crowd = await asyncio.gather(*(client.get("/authn/profile", auth=("bob", GOOD)) for _ in range(60)))
            login = await client.post("/authn/login", json={"login": "vera", "password": GOOD})

    assert {reply.status_code for reply in crowd} == {200}
    assert login.is_success


@pytest.mark.parametrize(
    "weak",
    [
        "Password123!",
        "Summer2026!",
        "P@ssw0rd1",
        "p4$$w0rd!",
        "Welcome2025",
        "2026Winter",
        "Admin#2026",
        "raspberrypi!",
    ],
)
def test_common_words_with_a_tail_are_no_passwords(weak: str) -> None:
    with pytest.raises(Invalid, match="tried first"):
        checked_password(weak, "vera")


@pytest.mark.parametrize(
    "weak",
    ["liverpool", "Jonathan", " basketball ", "12qwaszx", "b@sk3tb@ll", "fallen_angel", "raspberrypi", "12345678"],
)
def test_what_people_take_most_is_no_password(weak: str) -> None:
    with pytest.raises(Invalid, match="tried first"):
        checked_password(weak, "vera")


def test_no_password_takes_long_to_judge() -> None:
    began = time.process_time()
    for hostile in ("4@8({[<369!1|0$5+7%2" * 51, "a" * 1_000, "@" * 1_024, "passw0rd" * 128):
        is_tried_first(hostile)

    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "good", ["Summer rain on tin", "passwordless-42-moor", "winterreise911schubert", "qx7-Test-vbw-2026"]
)
def test_a_common_word_within_more_is_no_fault(good: str) -> None:
    assert checked_password(good, "vera") == good
