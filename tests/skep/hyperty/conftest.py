"""A runtime with an open node."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import Skep, skep


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, messaging_node={"open": True, "resume_s": 5}) as runtime:
        yield runtime
