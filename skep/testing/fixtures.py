"""The pytest fixture of `skep.testing`; works with any plugin for async tests, since the test enters the gateway."""

import pytest

from skep.testing.gateway import Gateway


@pytest.fixture
def skep_gateway() -> Gateway:
    """A gateway that serves while it is entered: `async with skep_gateway as gateway: …`."""
    return Gateway()
