"""Thing Descriptions that agents publish and remove."""

from pathlib import Path

import pytest

from runtime.admission.quotas import QuotaLimits, Quotas
from runtime.ports import Publication
from runtime.publications.descriptions import Descriptions
from tests.runtime.doubles import agent_principal
from tests.runtime.harness import PUMP, House, house
from things.addresses import Kind
from things.errors import Invalid, TDInvalid, TooMany, UnknownThing
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation

pytestmark = pytest.mark.anyio

PUMP_ID = "dtw:mill:pump"


def handler(h: House, things: int = 10) -> tuple[Descriptions, list[Publication]]:
    told: list[Publication] = []
    quotas = Quotas(
        h.twin.directory,
        h.twin.values,
        QuotaLimits(things=things, description_bytes=1_000_000, series=100, undeclared=10),
    )
    return Descriptions(h.twin.directory, h.twin.values, quotas, told.append, lambda: 7, lambda: None), told


def put(h: House, data: JSONValue) -> Message:
    return h.message(Operation.PUBLISH_TD, agent_principal("mill"), PUMP_ID, "", data)


async def test_description_is_kept_as_it_was_published_and_told(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        descriptions, told = handler(h)
        text = encode(PUMP).decode()

        await descriptions.put(put(h, text))

        entry = h.twin.directory.get(PUMP_ID)
        assert entry is not None
        assert (entry.td.text.decode(), entry.agent) == (text, "mill")
        assert [(one.thing_id, one.kind, one.payload) for one in told] == [(PUMP_ID, Kind.TD, text.encode())]


@pytest.mark.parametrize(("data", "refusal"), [({"title": "x"}, Invalid), ('{"title": 7}', TDInvalid)])
async def test_description_that_is_none_changes_nothing(
    tmp_path: Path, data: JSONValue, refusal: type[Exception]
) -> None:
    async with house(tmp_path) as h:
        descriptions, told = handler(h)

        with pytest.raises(refusal):
            await descriptions.put(put(h, data))

        assert h.twin.directory.get(PUMP_ID) is None
        assert not told


async def test_removed_thing_has_no_values_and_cannot_be_removed_again(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump")
        await h.value(PUMP_ID, "flow", 3)
        descriptions, told = handler(h)
        removal = h.message(Operation.REMOVE_TD, agent_principal("mill"), PUMP_ID, "", None, has_data=False)

        await descriptions.remove(removal)

        assert h.twin.directory.get(PUMP_ID) is None
        assert h.twin.values.get(PUMP_ID, Kind.PROPERTY, "flow") is None
        assert [one.payload for one in told] == [b""]
        with pytest.raises(UnknownThing):
            await descriptions.remove(removal)


async def test_thing_beyond_the_quota_is_refused_and_one_that_is_there_is_not(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump")
        descriptions, told = handler(h, things=1)
        text = encode(PUMP).decode()

        with pytest.raises(TooMany):
            await descriptions.put(h.message(Operation.PUBLISH_TD, agent_principal("mill"), "dtw:mill:gate", "", text))
        await descriptions.put(put(h, text))

        assert h.twin.directory.get("dtw:mill:gate") is None
        assert [one.thing_id for one in told] == [PUMP_ID]
