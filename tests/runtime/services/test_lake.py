"""The service that manages the lake: what is asked of its process, and by which rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from runtime.services.lake import LakeService
from tests.runtime.doubles import principal
from things.errors import Invalid

pytestmark = pytest.mark.anyio

CONFIGURED = [{"days": 30.0}]


class Lake:
    """Notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    async def seal(self) -> Mapping[str, Any]:
        self.asked.append(("seal", None))
        return {"rows": 3}

    async def status(self) -> Mapping[str, Any]:
        return {"rows": 3}

    async def compact(self, *, days: Sequence[str] = (), min_parts: int = 2) -> Mapping[str, Any]:
        self.asked.append(("compact", (list(days), min_parts)))
        return {"merged": 0}

    async def retain(
        self,
        rules: Sequence[Mapping[str, Any]],
        *,
        windows: Sequence[str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        self.asked.append(("retain", (list(rules), windows, force, dry_run)))
        return {"rows": 5, "days": ["2026-01-01"]}

    async def verify(self, *, quarantine: bool = False) -> Mapping[str, Any]:
        self.asked.append(("verify", quarantine))
        return {"problems": []}

    async def mend(self) -> Mapping[str, Any]:
        return {"parts": 2}

    async def vacuum(self) -> Mapping[str, Any]:
        return {"files": 7}

    async def plan(self, rules: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any]:
        return {"bytes": 1}


async def called(method: str, **given: Any) -> tuple[Any, Lake]:
    lake = Lake()
    service = LakeService(lake, lake, CONFIGURED)
    return await service.call(method, given, principal("root")), lake


async def test_configured_rules_hold_unless_others_are_given() -> None:
    _, lake = await called("retain")
    assert lake.asked == [("retain", (CONFIGURED, None, False, False))]

    _, lake = await called("retain", rules=[{"thingID": "dtw:mill:pump", "days": 1}], windows=["1h"], force=True)
    assert lake.asked == [("retain", ([{"thing_id": "dtw:mill:pump", "days": 1.0}], ["1h"], True, False))]


@pytest.mark.parametrize(("method", "report"), [("mend", {"parts": 2}), ("vacuum", {"files": 7})])
async def test_what_the_process_reports_is_handed_on(method: str, report: object) -> None:
    assert (await called(method))[0] == report


async def test_plan_tells_what_is_due_and_removes_nothing() -> None:
    plan, lake = await called("plan")

    assert plan == {"bytes": 1, "rules": CONFIGURED, "due_rows": 5, "due_days": 1}
    assert [(name, dry) for name, (*_, dry) in lake.asked] == [("retain", True)]


async def test_the_rest_is_handed_on() -> None:
    assert (await called("seal"))[0] == {"rows": 3}
    assert (await called("status"))[0] == {"rows": 3}
    assert (await called("verify", quarantine=True))[1].asked == [("verify", True)]
    assert (await called("compact", days=["2026-01-01"], minParts=4))[1].asked == [("compact", (["2026-01-01"], 4))]


@pytest.mark.parametrize(
    ("method", "given"),
    [("retain", {"rules": [{"days": 0}]}), ("compact", {"minParts": 1}), ("retain", {"rulez": []})],
)
async def test_input_that_makes_no_sense_is_refused_and_nothing_is_asked(method: str, given: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await called(method, **given)
