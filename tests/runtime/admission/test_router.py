"""The way of a message: every check in its order, then the handler; counted once, whatever became of it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from runtime.admission.router import Router
from runtime.admission.trace import Trace
from runtime.metrics import Metrics
from runtime.ports import Test
from tests.runtime.doubles import agent_principal
from things.delivery import DeliveryStatus, State
from things.errors import Forbidden, RateLimited, SkepError
from things.messages import Message, Operation

pytestmark = pytest.mark.anyio

EVENT = Message(
    operation=Operation.PUBLISH_EVENT, principal=agent_principal("mill"), thing_id="dtw:mill:pump", name="x", received=1
)
DONE = DeliveryStatus(request_id="r", state=State.COMPLETED)


class Noting:
    """A check that notes what it saw; refuses with `error`, and leaves `tests` for what is like it."""

    def __init__(
        self, seen: list[str], name: str, error: SkepError | None = None, tests: Sequence[Test] | None = ()
    ) -> None:
        self.seen, self.name, self.error, self.tests = seen, name, error, tests

    def __call__(self, message: Message) -> None:
        self.seen.append(self.name)
        if self.error is not None:
            raise self.error

    def remaining(self, message: Message) -> Sequence[Test] | None:
        return self.tests


def routed(seen: list[str], *checks: Noting) -> tuple[Router, Metrics]:
    async def handle(message: Message) -> DeliveryStatus:
        seen.append("handled")
        return DONE

    metrics = Metrics()
    return Router({Operation.PUBLISH_EVENT: handle}, checks, Trace(metrics)), metrics


async def test_a_message_passes_every_check_in_order_and_is_then_handled_and_counted() -> None:
    seen: list[str] = []
    router, metrics = routed(seen, Noting(seen, "rate"), Noting(seen, "rights"))

    assert await router(EVENT) is DONE
    assert seen == ["rate", "rights", "handled"]
    assert metrics.handled[Operation.PUBLISH_EVENT, "embedded"] == 1
    assert not metrics.refused


async def test_what_one_check_refuses_reaches_neither_the_next_nor_the_handler() -> None:
    seen: list[str] = []
    router, metrics = routed(seen, Noting(seen, "rate", RateLimited(1.0)), Noting(seen, "rights"))

    with pytest.raises(RateLimited):
        await router(EVENT)

    assert seen == ["rate"]
    assert metrics.refused[Operation.PUBLISH_EVENT, "embedded", "rate-limited"] == 1
    assert not metrics.handled


async def test_what_the_handler_refuses_counts_as_refused() -> None:
    async def refuse(message: Message) -> DeliveryStatus:
        raise Forbidden("not this one")

    metrics = Metrics()
    router = Router({Operation.PUBLISH_EVENT: refuse}, (), Trace(metrics))

    with pytest.raises(Forbidden):
        await router(EVENT)
    assert metrics.refused[Operation.PUBLISH_EVENT, "embedded", "forbidden"] == 1
    assert not metrics.handled


async def test_an_operation_without_a_handler_is_an_error_until_one_is_added() -> None:
    seen: list[str] = []
    router, _ = routed(seen)
    other = replace(EVENT, operation=Operation.PUBLISH_PROPERTY)

    with pytest.raises(SkepError, match="nothing handles"):
        await router(other)

    async def handle(message: Message) -> DeliveryStatus:
        return DONE

    router.add_handler(Operation.PUBLISH_PROPERTY, handle)
    assert await router(other) is DONE


def test_checking_alone_calls_no_handler_and_is_counted_alike() -> None:
    seen: list[str] = []
    router, metrics = routed(seen, Noting(seen, "rate"))

    router.check(EVENT)

    assert seen == ["rate"]
    assert metrics.handled[Operation.PUBLISH_EVENT, "embedded"] == 1


def test_what_remains_of_the_checks_is_tested_in_their_place() -> None:
    seen: list[str] = []
    tests = [lambda message: seen.append("budget"), lambda message: seen.append("value")]
    router, metrics = routed(seen, Noting(seen, "rate", tests=tests[:1]), Noting(seen, "td", tests=tests[1:]))

    remaining = router.remaining(EVENT)
    assert remaining is not None
    router.check(EVENT, remaining)

    assert seen == ["budget", "value"]
    assert metrics.handled[Operation.PUBLISH_EVENT, "embedded"] == 1


def test_one_check_that_must_see_every_message_keeps_all_of_them() -> None:
    seen: list[str] = []
    router, _ = routed(seen, Noting(seen, "rate"), Noting(seen, "rights", tests=None))

    assert router.remaining(EVENT) is None
