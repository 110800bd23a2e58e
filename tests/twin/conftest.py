"""The twin's stores in a fresh home, over every database there is to test with."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.postgresql import emptied
from twin.store import Twin, open_twin

OpenTwin = Callable[[], AbstractAsyncContextManager[Twin]]


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_770_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenTwin:
    """Opens the stores of one home; the second time as after a restart."""
    url: str | None = None
    if request.param == "postgresql":
        url = emptied(request.getfixturevalue("postgresql_server"))

    @asynccontextmanager
    async def again() -> AsyncIterator[Twin]:
        async with open_twin(tmp_path, clock=clock, database_url=url, reserve_bytes=65_536) as twin:
            yield twin

    return again
