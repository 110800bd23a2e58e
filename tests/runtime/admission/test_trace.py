"""What is counted and logged of a message."""

import logging

import pytest

from runtime.admission.trace import Trace
from runtime.metrics import Metrics
from tests.runtime.doubles import principal
from things.errors import Forbidden
from things.messages import Message, Operation, Origin

ASKED = Message(
    operation=Operation.INVOKE_ACTION,
    principal=principal("ann"),
    thing_id="dtw:mill:pump",
    name="setSpeed",
    received=1,
    origin=Origin(binding="http"),
)


def test_what_was_handled_is_counted_by_operation() -> None:
    trace = Trace(Metrics())

    trace.handled(ASKED)
    trace.handled(ASKED)

    assert trace.metrics.handled == {(Operation.INVOKE_ACTION, "http"): 2}
    assert not trace.metrics.refused


def test_what_was_refused_is_counted_by_code_and_logged_with_who_asked_for_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trace = Trace(Metrics())

    with caplog.at_level(logging.INFO, "runtime.admission.trace"):
        trace.refused(ASKED, Forbidden())

    assert trace.metrics.refused == {(Operation.INVOKE_ACTION, "http", "forbidden"): 1}
    (record,) = caplog.records
    said = vars(record)
    assert (said["who"], said["code"], said["thing"], said["affordance"]) == (
        "ann",
        "forbidden",
        "dtw:mill:pump",
        "setSpeed",
    )
