"""Fixtures every test may use."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """amqtt and uvicorn are asyncio servers, so that is the loop tests run on."""
    return "asyncio"
