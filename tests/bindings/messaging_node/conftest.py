"""A runtime with an open node, and one that keeps to older clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import Skep, skep


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, messaging_node={"open": True}) as runtime:
        yield runtime


@pytest.fixture
async def old_house(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, messaging_node={"open": True, "compatible": True}) as runtime:
        yield runtime


@pytest.fixture
async def closed_house(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path) as runtime:
        yield runtime
