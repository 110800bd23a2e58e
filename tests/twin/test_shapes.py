"""The stores have the shape the runtime asks for; a type checker reads the first function, the test the second half."""

from pathlib import Path

import pytest

from runtime.ports import Directory, History, Ledger, Service, ValueStore
from tests.twin.conftest import Clock
from tests.twin.doubles import All, NoLake, Plain
from twin.directory_service import DirectoryService
from twin.history_service import HistoryService
from twin.rdf.index import RdfIndex
from twin.readings import Readings
from twin.search import Search
from twin.store import Twin, open_twin
from twin.values_service import ValuesService

pytestmark = pytest.mark.anyio


def as_ports(twin: Twin) -> tuple[Directory, ValueStore, History, Ledger]:
    return twin.directory, twin.values, twin.history, twin.ledger


def as_services(twin: Twin) -> tuple[Service, ...]:
    search = Search(twin.directory, twin.values, lambda *_: True, clock=lambda: 0)
    readings = Readings(twin.history, NoLake())
    return (
        DirectoryService(twin.directory, lambda *_: True, Plain(), search, RdfIndex(twin.directory, All())),
        ValuesService(twin.directory, twin.values, lambda *_: True, clock=lambda: 0),
        HistoryService(twin.directory, readings, lambda *_: True, lambda *_: {}, clock=lambda: 0),
    )


async def test_stores_and_services_have_the_shape_of_their_ports(tmp_path: Path, clock: Clock) -> None:
    async with open_twin(tmp_path, clock=clock, reserve_bytes=4096) as twin:
        for port, store in zip((Directory, ValueStore, History, Ledger), as_ports(twin), strict=True):
            wanted = {name for name in vars(port) if not name.startswith("_")}
            assert wanted <= set(dir(store)), port
        assert [service.thing_id for service in as_services(twin)] == [
            "dtw:directory:things",
            "dtw:values:latest",
            "dtw:history:readings",
        ]
