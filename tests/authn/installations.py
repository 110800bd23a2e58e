"""An installation in a temporary folder, with a clock that tests own and hashing that costs little."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from authn.authenticator import LocalAuthenticator
from authn.logins import OpenLogin
from authn.throttle import LoginBudgets
from things.identity import AccountType, Role

GOOD = "correct horse battery"
OTHER = "another staple, please"
HOST = "192.0.2.7"


class Clock:
    """µs UTC when called, seconds as `monotonic`; moves when told."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1_000

    def __call__(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1_000_000

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@contextmanager
def installation(home: Path, clock: Clock, *, budgets: LoginBudgets | None = None) -> Iterator[LocalAuthenticator]:
    authenticator = LocalAuthenticator.open(
        home,
        clock=clock,
        monotonic=clock.monotonic,
        budgets=budgets or LoginBudgets.per_minute(1_000),
    )
    try:
        yield authenticator
    finally:
        authenticator.close()


async def claimed(authenticator: LocalAuthenticator, name: str = "root") -> OpenLogin:
    """The first admin's login."""
    code = authenticator.claim_code.code
    assert code is not None
    return await authenticator.claim(code, name, GOOD, source=HOST)


async def consumer(authenticator: LocalAuthenticator, name: str, role: Role = Role.VIEWER) -> None:
    await authenticator.administration.add(name, AccountType.CONSUMER, role, password=GOOD, with_token=False, by="root")


async def agent_token(authenticator: LocalAuthenticator, name: str) -> str:
    _, token = await authenticator.administration.add(name, AccountType.AGENT, by="root")
    assert token is not None
    return token
