"""The service that tells of requests: one's own, those asked of oneself, and all to who manages them."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.doubles import agent_principal, principal
from tests.runtime.harness import House, house
from things.errors import BadCursor, Invalid, UnknownRequest
from things.identity import Principal, Role
from things.service_ids import REQUESTS

pytestmark = pytest.mark.anyio

ANN, BOB = principal("ann", Role.OPERATOR), principal("bob", Role.OPERATOR)


async def call(h: House, who: Principal, method: str, **given: Any) -> Any:
    service = h.runtime.services.get(REQUESTS)
    assert service is not None
    return await service.call(method, given, who)


async def asked(h: House, count: int = 1) -> list[str]:
    pump = await h.publish_td("mill", "pump")
    return [(await h.invoke(pump, "setSpeed", n, caller="ann", correlation=f"n{n}")).request_id for n in range(count)]


async def test_own_requests_are_listed_newest_first_and_in_pages(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        ids = await asked(h, 3)

        first = await call(h, ANN, "listRequests", limit=2)
        rest = await call(h, ANN, "listRequests", limit=2, cursor=first["cursor"])

        assert [row["requestID"] for row in (*first["items"], *rest["items"])] == ids[::-1]
        with pytest.raises(BadCursor):
            await call(h, ANN, "listRequests", cursor="x")


async def test_requests_of_others_are_shown_to_the_agent_and_to_managers_only(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        (request_id,) = await asked(h)

        assert (await call(h, BOB, "listRequests"))["items"] == []
        assert (await call(h, BOB, "listRequests", caller="ann"))["items"] == []
        with pytest.raises(UnknownRequest):
            await call(h, BOB, "readRequest", requestID=request_id)
        for who in (ANN, agent_principal("mill"), principal("root", Role.MANAGER)):
            assert (await call(h, who, "readRequest", requestID=request_id))["requestID"] == request_id
        listed = await call(h, principal("root", Role.MANAGER), "listRequests", caller="ann")
        assert [row["requestID"] for row in listed["items"]] == [request_id]


async def test_request_is_found_by_its_callers_reference_and_by_nobody_elses(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        (request_id,) = await asked(h)

        assert (await call(h, ANN, "readRequest", callerRef="n0"))["requestID"] == request_id
        with pytest.raises(UnknownRequest):
            await call(h, BOB, "readRequest", callerRef="n0")
        with pytest.raises(Invalid):
            await call(h, ANN, "readRequest")


async def test_inbox_goes_on_after_a_number(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        await asked(h, 2)

        statuses = (await call(h, ANN, "readInbox"))["items"]
        later = (await call(h, ANN, "readInbox", after=statuses[0]["seq"]))["items"]

        assert [status["state"] for status in statuses] == ["pending", "pending"]
        assert later == statuses[1:]
        assert (await call(h, BOB, "readInbox"))["items"] == []
