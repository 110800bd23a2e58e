"""The checks by rights and by Thing Description, and what remains of them for the next message of its kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.admission.checks import DescriptionCheck, RightsCheck
from runtime.admission.rate import Rates
from runtime.registry import Services
from tests.runtime.doubles import agent_principal, principal
from tests.runtime.harness import House, RoleOnly, house
from things.addresses import Address
from things.decisions import CONFIRM, Context, Decision
from things.errors import ConfirmationRequired, Forbidden, Invalid, SkepError, UnknownName, UnknownThing
from things.identity import Principal, Role
from things.messages import Message, Operation

pytestmark = pytest.mark.anyio


class Obliging(RoleOnly):
    """Allows everything, with obligations."""

    def __init__(self, *obligations: str) -> None:
        self.obligations = obligations

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision:
        return Decision(allowed=True, rule="r1", obligations=self.obligations)


def rights(h: House, authorizer: RoleOnly | None = None, confirmed: Sequence[str] = ()) -> RightsCheck:
    def confirm(message: Message, decision: Decision) -> None:
        if message.name not in confirmed:
            raise ConfirmationRequired(decision.rule, "token", 60)

    return RightsCheck(
        authorizer=authorizer or RoleOnly(),
        directory=h.twin.directory,
        services=Services(),
        clock=lambda: 0,
        rates=Rates(clock=lambda: 0),
        confirm=confirm,
    )


async def test_what_may_not_be_read_looks_unknown_and_what_may_be_read_is_forbidden(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        check = rights(h)

        check(h.message(Operation.INVOKE_ACTION, principal("ann", Role.OPERATOR), pump, "setSpeed", 1))
        with pytest.raises(Forbidden):
            check(h.message(Operation.INVOKE_ACTION, principal("ann", Role.VIEWER), pump, "setSpeed", 1))
        with pytest.raises(UnknownThing):
            check(h.message(Operation.INVOKE_ACTION, agent_principal("other"), pump, "setSpeed", 1))
        with pytest.raises(Forbidden):
            check(h.message(Operation.PUBLISH_EVENT, agent_principal("other"), pump, "alarm", "x"))


async def test_obligation_to_confirm_is_met_by_a_confirmation_only_and_is_asked_each_time(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        check = rights(h, Obliging(CONFIRM), confirmed=["setSpeed"])
        confirmed = h.message(Operation.INVOKE_ACTION, principal("ann"), pump, "setSpeed", 1)

        check(confirmed)
        with pytest.raises(ConfirmationRequired):
            check(h.message(Operation.INVOKE_ACTION, principal("ann"), pump, "now", None))

        assert check.remaining(confirmed) is None


async def test_obligation_that_is_not_known_forbids(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")

        with pytest.raises(Forbidden, match="two-people"):
            rights(h, Obliging("two-people"))(h.message(Operation.INVOKE_ACTION, principal("ann"), pump, "now", None))


@pytest.mark.parametrize(
    ("operation", "name", "data", "more", "refusal"),
    [
        (Operation.PUBLISH_PROPERTY, "flow", 50, {}, None),
        (Operation.PUBLISH_PROPERTY, "flow", 500, {}, None),  # true all the same, and flagged where it is stored
        (Operation.PUBLISH_PROPERTY, "flow", "much", {}, Invalid),
        (Operation.PUBLISH_PROPERTY, "flow", None, {"has_data": False}, Invalid),
        (Operation.PUBLISH_PROPERTY, "undeclared", 1, {}, None),
        (Operation.PUBLISH_EVENT, "alarm", "hot", {}, None),
        (Operation.PUBLISH_EVENT, "alarm", None, {"has_data": False}, Invalid),
        (Operation.INVOKE_ACTION, "setSpeed", 3, {}, None),
        (Operation.INVOKE_ACTION, "setSpeed", 30, {}, Invalid),
        (Operation.INVOKE_ACTION, "stop", None, {}, UnknownName),
        (Operation.WRITE_PROPERTY, "target", 3, {}, None),
        (Operation.WRITE_PROPERTY, "target", None, {"has_data": False}, Invalid),
        (Operation.WRITE_PROPERTY, "flow", 3, {}, SkepError),  # read only
    ],
)
async def test_message_is_held_against_the_description(
    tmp_path: Path, operation: Operation, name: str, data: Any, more: dict[str, Any], refusal: type[SkepError] | None
) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        message = h.message(operation, agent_principal("mill"), pump, name, data, **more)
        check = DescriptionCheck(h.twin.directory)

        if refusal is None:
            check(message)
        else:
            with pytest.raises(refusal):
                check(message)
        for test in check.remaining(message) or ():
            # What remains for the next one like it refuses what the whole check refuses.
            if refusal is None:
                test(message)
            else:
                with pytest.raises(refusal):
                    test(message)


async def test_nothing_can_be_published_about_a_thing_without_a_description(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        message = h.message(Operation.PUBLISH_EVENT, agent_principal("mill"), "dtw:mill:none", "alarm", "x")

        with pytest.raises(UnknownThing):
            DescriptionCheck(h.twin.directory)(message)
        assert DescriptionCheck(h.twin.directory).remaining(message) is None
