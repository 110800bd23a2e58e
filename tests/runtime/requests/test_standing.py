"""Whether a request that waited may still be handed over, by the rights of the moment."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.admission.rate import Rates
from runtime.requests.standing import Standing
from tests.runtime.harness import AllStand, House, RoleOnly, house
from things.identity import Principal, Role
from things.records import LedgerRow

pytestmark = pytest.mark.anyio


class Now(AllStand):
    """Accounts as they stand now: `role` of everybody, or nobody."""

    def __init__(self, role: str | None) -> None:
        self.role = role

    def standing(self, principal: Principal, *, after_logout: bool = False) -> Principal | None:
        return None if self.role is None else replace(principal, role=self.role)


def judged(h: House, row: LedgerRow, role: str | None) -> bool:
    standing = Standing(Now(role), RoleOnly(), h.twin.directory, Rates(clock=lambda: 0), lambda: 0)
    return standing.permits(row)


async def asked(h: House) -> LedgerRow:
    pump = await h.publish_td("mill", "pump")
    status = await h.invoke(pump, "setSpeed", 3)
    row = await h.twin.ledger.get(status.request_id)
    assert row is not None
    return row


@pytest.mark.parametrize(("role", "permitted"), [(Role.MANAGER, True), (Role.OPERATOR, True), (Role.VIEWER, False)])
async def test_role_of_now_counts_and_not_that_of_then(tmp_path: Path, role: str, permitted: bool) -> None:
    async with house(tmp_path) as h:
        assert judged(h, await asked(h), role) is permitted


async def test_caller_that_is_gone_may_ask_for_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        assert judged(h, await asked(h), None) is False


async def test_row_that_does_not_say_by_whose_authority_is_judged_by_its_callers_name(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        row = replace(await asked(h), authority=None)

        assert judged(h, row, Role.OPERATOR) is True
        assert judged(h, row, Role.NONE) is False
