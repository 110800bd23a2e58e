"""The built-in service `dtw:history:lake`: sealing, size, retention and checks of the lake, for managers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from pydantic import Field

from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Input, Method, MethodService, Nothing
from things.service_ids import LAKE
from things.vocabulary import ServiceType


class Sealing(Protocol):
    """Who seals hot history into the lake."""

    async def seal(self) -> Mapping[str, Any]:
        """Seal everything there is now and report it; raises SkepError."""
        ...


class LakeKeeper(Protocol):
    """What the lake's process can be asked beside sealing; each gives a report."""

    async def status(self) -> Mapping[str, Any]: ...

    async def compact(self, *, days: Sequence[str] = (), min_parts: int = 2) -> Mapping[str, Any]: ...

    async def retain(
        self,
        rules: Sequence[Mapping[str, Any]],
        *,
        windows: Sequence[str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Mapping[str, Any]: ...

    async def verify(self, *, quarantine: bool = False) -> Mapping[str, Any]: ...

    async def mend(self) -> Mapping[str, Any]: ...

    async def vacuum(self) -> Mapping[str, Any]: ...

    async def plan(self, rules: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any]: ...


class GivenRule(Input):
    """How long readings are kept: by Thing and name where given, days and bytes at most."""

    thing_id: str | None = None
    name: str | None = None
    days: float | None = Field(default=None, gt=0)
    bytes: int | None = Field(default=None, gt=0)


class Compact(Input):
    """Which days (`2026-01-31`) to merge; all of them if none are named."""

    days: list[str] = Field(default_factory=list, max_length=1_000)
    min_parts: int = Field(default=2, ge=2)


class Retain(Input):
    """What to keep. Data that was never rolled up goes only with `force`."""

    rules: list[GivenRule] = Field(default_factory=list, max_length=1_000)
    windows: list[str] | None = None
    force: bool = False
    dry_run: bool = False


class Plan(Input):
    """Rules to try; the configured ones if none are given. What is due under them is counted too."""

    rules: list[GivenRule] = Field(default_factory=list, max_length=1_000)


class Verify(Input):
    """Whether damaged parts are set aside."""

    quarantine: bool = False


class LakeService(MethodService):
    """Methods seal, status, plan, verify, mend, compact, vacuum, retain: the lake is managed as a whole."""

    def __init__(self, lake: LakeKeeper, sealing: Sealing, rules: Sequence[Mapping[str, Any]] = ()) -> None:
        """`rules` are the configured ones."""
        self._lake = lake
        self._sealing = sealing
        self._rules = tuple(rules)
        super().__init__(
            LAKE,
            Operation.MANAGE,
            [
                Method(name="seal", title="Seal what is stored so far", input=Nothing, run=self._seal),
                Method(name="status", title="What is sealed", input=Nothing, run=self._status, safe=True),
                Method(name="plan", title="Predict the size", input=Plan, run=self._plan, safe=True),
                Method(name="verify", title="Check every sealed part", input=Verify, run=self._verify),
                Method(name="compact", title="Merge small parts", input=Compact, run=self._compact),
                Method(name="mend", title="Make damaged parts again", input=Nothing, run=self._mend),
                Method(name="vacuum", title="Remove replaced files", input=Nothing, run=self._vacuum),
                Method(name="retain", title="Drop what is no longer kept", input=Retain, run=self._retain),
            ],
            type_=ServiceType.LAKE,
            title="Lake",
            description="Sealed history as Parquet, for Spark and other readers.",
        )

    async def _seal(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return _report(await self._sealing.seal())

    async def _status(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return _report(await self._lake.status())

    async def _plan(self, given: Plan, _principal: Principal) -> JSONValue:
        rules = _rules(given.rules) or self._rules
        report = {**await self._lake.plan(rules), "rules": [dict(rule) for rule in rules]}
        if rules:
            due = await self._lake.retain(rules, dry_run=True)
            report |= {"due_rows": due["rows"], "due_days": len(due["days"])}
        return _report(report)

    async def _verify(self, given: Verify, _principal: Principal) -> JSONValue:
        return _report(await self._lake.verify(quarantine=given.quarantine))

    async def _compact(self, given: Compact, _principal: Principal) -> JSONValue:
        return _report(await self._lake.compact(days=given.days, min_parts=given.min_parts))

    async def _mend(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return _report(await self._lake.mend())

    async def _vacuum(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return _report(await self._lake.vacuum())

    async def _retain(self, given: Retain, _principal: Principal) -> JSONValue:
        report = await self._lake.retain(
            _rules(given.rules) or self._rules, windows=given.windows, force=given.force, dry_run=given.dry_run
        )
        return _report(report)


def _rules(rules: Sequence[GivenRule]) -> list[Mapping[str, Any]]:
    return [rule.model_dump(exclude_none=True) for rule in rules]


def _report(report: Mapping[str, Any]) -> JSONValue:
    return cast(JSONValue, dict(report))
