"""Names that no address can spell are refused by every way that HTTP takes values."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.bindings.http.support import House, lamp_house
from things.addresses import Kind

pytestmark = pytest.mark.anyio

BAD = ["", "..", "a\nb", "n" * 129, "n" * 70_000]
LAMP = "/agent/things/lamp"


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


def stored(house: House) -> set[tuple[Kind, str]]:
    return set(house.runtime.sessions.values.of_thing("dtw:lights:lamp"))


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
async def test_properties_are_refused_under_a_name_that_cannot_be_one(lamps: House, name: str) -> None:
    async with lamps.client("lights") as lights:
        reply = await lights.post(f"{LAMP}/properties", json={name: 1})
        assert (reply.status_code, reply.json()["type"]) == (400, "urn:skep:error:bad-address")
        assert not stored(lamps)

        reply = await lights.post(f"{LAMP}/properties", json={name: 1, "level": 5})
        assert (reply.status_code, reply.json()["type"]) == (400, "urn:skep:error:bad-address")
        assert reply.json()["rejected"] == {name: "bad-address"}
        assert reply.json()["stored"] == 1
    assert stored(lamps) == {(Kind.PROPERTY, "level")}


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
async def test_an_item_of_a_batch_is_rejected_under_a_name_that_cannot_be_one(lamps: House, name: str) -> None:
    def item(operation: str, name: str) -> dict[str, Any]:
        return {"v": 1, "operation": operation, "thingID": "lamp", "name": name, "data": 1}

    async with lamps.client("lights") as lights:
        items = [item("publish_property", name), item("publish_event", name), item("publish_property", "level")]
        reply = (await lights.post("/agent/batch", json=items)).json()
        assert reply["stored"] == 1
        assert [(one["index"], one["code"]) for one in reply["rejected"]] == [(0, "bad-address"), (1, "bad-address")]
    assert stored(lamps) == {(Kind.PROPERTY, "level")}


@pytest.mark.parametrize("name", [name for name in BAD if 0 < len(name) < 10_000], ids=lambda name: ascii(name)[:20])
async def test_an_event_is_refused_under_a_name_that_cannot_be_one(lamps: House, name: str) -> None:
    path = quote(name, safe="").replace(".", "%2E")
    async with lamps.client("lights") as lights:
        reply = await lights.post(f"{LAMP}/events/{path}", json=1)
        assert (reply.status_code, reply.json()["type"]) == (400, "urn:skep:error:bad-address")
    assert not stored(lamps)
