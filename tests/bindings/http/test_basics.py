"""What every exchange has in common: credentials, problems, limits, methods."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bindings.http.support import House, lamp_house

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def test_without_credentials_nothing_is_served(lamps: House) -> None:
    async with lamps.client() as nobody:
        reply = await nobody.get("/things/dtw:lights:lamp/properties/level")

    assert reply.status_code == 401
    assert reply.headers["content-type"] == "application/problem+json"
    assert "Bearer" in reply.headers["www-authenticate"]
    assert reply.json()["code"] == "unauthenticated"


async def test_event_is_published_and_property_read(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        assert (await lights.post("/agent/things/lamp/properties", json={"level": 7})).status_code == 204
        reply = await viewer.get("/things/dtw:lights:lamp/properties/level")

    assert reply.status_code == 200
    assert reply.json() == 7
