"""/metrics answers an operator's questions: is it keeping up, is it filling up, what ends soon."""

import re
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics import parser

from gateway.queues import Queues
from tests.metrics import measured, read
from tests.support import PUMP, skep
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


async def test_what_happened_is_counted_by_operation_and_binding(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        agent = await house.add("works", "agent")
        bearer = {"authorization": f"Bearer {agent.token}"}
        async with httpx.AsyncClient(base_url=house.http, headers=bearer) as client:
            assert (await client.put("/agent/things/pump", json=PUMP)).is_success
            assert (await client.post("/agent/things/pump/properties", json={"flow": 1.5})).is_success
            assert (await client.post("/agent/things/pump/properties", json={"flow": "much"})).is_client_error
        async with httpx.AsyncClient(base_url=house.http) as anybody:
            found = read((await anybody.get("/metrics")).text)

    assert found['skep_messages_total{binding="http",operation="publish_property"}'] == 1
    assert found['skep_refused_total{binding="http",code="invalid",operation="publish_property"}'] == 1
    assert found['skep_commit_seconds_count{store="history"}'] >= 1
    assert (
        found['skep_commit_seconds_bucket{le="+Inf",store="history"}']
        == found['skep_commit_seconds_count{store="history"}']
    )
    assert found['skep_commit_waiting{store="history"}'] == 0
    assert found['skep_store_refuses{store="twin"}'] == 0
    assert found["skep_ready"] == 1
    assert found["skep_disk_free_bytes"] > 0
    assert found['skep_file_bytes{what="history"}'] > 0
    assert found['skep_certificate_ends_timestamp_seconds{certificate="server"}'] > time.time() + 86_400
    assert found["process_resident_memory_bytes"] > 1e6
    assert found["process_open_fds"] > 3
    (build,) = [name for name in found if name.startswith("skep_build_info{")]
    assert re.search(r'version="\d', build)


async def test_what_waits_for_agents_is_counted_with_the_age_of_the_oldest(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        ann, stores = await house.add("ann"), house.running.stores
        await house.add("works", "agent")
        await stores.twin.directory.put("dtw:works:pump", ThingDescription.of(PUMP, agent=True), agent="works")
        bearer = {"authorization": f"Bearer {ann.token}"}
        async with httpx.AsyncClient(base_url=house.http, headers=bearer) as client:
            for number in range(2):
                assert (await client.post("/things/dtw:works:pump/actions/setSpeed", json=number)).is_success
            found = read((await client.get("/metrics")).text)
        assert await stores.twin.ledger.oldest_waiting() is not None

    assert found["skep_requests_waiting"] == 2
    assert found["skep_requests_oldest_waiting_seconds"] == 0  # nobody has looked yet


async def test_the_age_of_the_oldest_follows_the_steady_clock() -> None:
    now, oldest = 50_000_000, 8_000_000

    async def looked() -> int | None:
        return oldest

    queues = Queues(waiting=lambda: 3, oldest=looked, steady=lambda: now)
    await queues.keep()
    assert measured(queues.metrics()) == {"skep_requests_waiting": 3, "skep_requests_oldest_waiting_seconds": 42}


async def test_open_metrics_are_given_to_who_asks_for_them(tmp_path: Path) -> None:
    async with skep(tmp_path) as house, httpx.AsyncClient(base_url=house.http) as client:
        reply = await client.get("/metrics", headers={"accept": OPEN_METRICS})
        plain = await client.get("/metrics")

    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.text.endswith("# EOF\n")
    assert "skep_ready" in measured(parser.text_string_to_metric_families(reply.text))  # type: ignore[no-untyped-call]
    assert plain.headers["content-type"].startswith("text/plain")
