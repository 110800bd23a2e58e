"""Stored Thing Models: versions, conditions, bounds, and a start with what was there before."""

from typing import Any

import anyio
import pytest

from tests.twin.conftest import Clock, OpenTwin
from things.errors import Conflict, TooMany
from things.thing_model import ThingModel
from twin import models
from twin.models import StoredModel

pytestmark = pytest.mark.anyio

DIMMER = "urn:dimmer"


def model(title: str = "Dimmer", **members: Any) -> ThingModel:
    document = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "@type": "tm:ThingModel", "title": title, **members}
    return ThingModel.of(document)


async def test_versions_rise_over_removals_and_restarts(opened: OpenTwin, clock: Clock) -> None:
    with anyio.fail_after(60):
        async with opened() as twin:
            first = await twin.models.put(DIMMER, model())
            assert await twin.models.put(DIMMER, model()) == first
            second = await twin.models.put(DIMMER, model("Other"))
            assert (first.version, second.version, second.title) == (1, 2, "Other")
            assert await twin.models.remove(DIMMER)
            assert not await twin.models.remove(DIMMER)
            assert twin.models.get(DIMMER) is None
            third = await twin.models.put(DIMMER, model())
            await twin.models.put("urn:gone", model())
            await twin.models.remove("urn:gone")
        async with opened() as twin:
            assert (twin.models.get(DIMMER), twin.models.ids()) == (third, [DIMMER])
            versions = await twin.models.versions(DIMMER)
            assert [(each.version, each.text is None) for each in versions] == [
                (1, False),
                (2, False),
                (3, True),
                (4, False),
            ]
            assert await twin.models.versions("urn:never") == []


async def test_a_condition_is_asked_with_what_stands_when_it_is_written(opened: OpenTwin) -> None:
    with anyio.fail_after(60):
        async with opened() as twin:
            seen: list[int | None] = []

            def first_only(standing: StoredModel | None) -> None:
                seen.append(None if standing is None else standing.version)
                if standing is not None:
                    raise Conflict("there is one")

            outcomes: list[str] = []

            async def put(title: str) -> None:
                try:
                    await twin.models.put(DIMMER, model(title), condition=first_only)
                    outcomes.append("stored")
                except Conflict:
                    outcomes.append("refused")

            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(put, f"Title {number}")

            assert sorted(outcomes) == ["refused"] * 3 + ["stored"]
            assert seen == [None, 1, 1, 1]


async def test_their_number_and_size_are_bounded(opened: OpenTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_MODELS", 2)
    monkeypatch.setattr(models, "MAX_TOTAL_BYTES", 1_000)
    with anyio.fail_after(60):
        async with opened() as twin:
            await twin.models.put("urn:1", model())
            await twin.models.put("urn:2", model())
            with pytest.raises(TooMany):
                await twin.models.put("urn:3", model())
            with pytest.raises(TooMany):
                await twin.models.put("urn:2", model(description="x" * 900))
            await twin.models.remove("urn:1")
            await twin.models.put("urn:3", model())
            assert twin.models.ids() == ["urn:2", "urn:3"]
