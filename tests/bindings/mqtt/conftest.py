"""Fixtures of the binding's tests, over every engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bindings.mqtt.engines.contract import ENGINES, EngineType
from tests.bindings.mqtt.support import House, lamp_house


@pytest.fixture(params=sorted(ENGINES))
def any_engine(request: pytest.FixtureRequest) -> EngineType:
    """Each engine in turn."""
    return ENGINES[request.param]


@pytest.fixture
def engine_5() -> EngineType:
    """An engine that speaks MQTT 5."""
    return ENGINES["native"]


@pytest.fixture
async def lamp(any_engine: EngineType, tmp_path: Path) -> AsyncIterator[House]:
    """A house over each engine."""
    async with lamp_house(tmp_path / "home", any_engine) as opened:
        yield opened


@pytest.fixture
async def lamp_5(engine_5: EngineType, tmp_path: Path) -> AsyncIterator[House]:
    """A house over an engine that speaks MQTT 5."""
    async with lamp_house(tmp_path / "home", engine_5) as opened:
        yield opened
