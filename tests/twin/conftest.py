"""The twin's stores in a fresh home, over every database there is to test with."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from twin.store import Twin, open_twin

POSTGRES_URL = os.environ.get("SKEP_TEST_POSTGRES")

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


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "postgresql", marks=pytest.mark.skipif(POSTGRES_URL is None, reason="SKEP_TEST_POSTGRES names no database")
        ),
    ]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenTwin:
    """Opens the stores of one home; the second time as after a restart."""
    url: str | None = None
    if request.param == "postgresql":
        assert POSTGRES_URL is not None
        url = POSTGRES_URL
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        engine.dispose()

    @asynccontextmanager
    async def again() -> AsyncIterator[Twin]:
        async with open_twin(tmp_path, clock=clock, database_url=url, reserve_bytes=65_536) as twin:
            yield twin

    return again
