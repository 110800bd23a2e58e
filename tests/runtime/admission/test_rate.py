"""Budgets: so many messages and bytes at once, so many a second afterwards, by account and role; and busy Things."""

from dataclasses import replace

import pytest

from runtime.admission.rate import MAX_THINGS, Budget, Rates
from tests.runtime.doubles import principal
from things.errors import RateLimited
from things.messages import Message, Operation

SECOND = 1_000_000


class Clock:
    """A steady clock that stands until it is moved."""

    now = 0

    def __call__(self) -> int:
        return self.now


def message(account: str = "ann", role: str = "viewer", size: int = 0) -> Message:
    return Message(
        operation=Operation.INVOKE_ACTION,
        principal=principal(account, role),
        thing_id="dtw:works:pump-1",
        name="setSpeed",
        received=0,
        size=size,
    )


def spent(rates: Rates, one: Message, times: int = 1_000) -> int:
    """How many pass before one is refused."""
    for number in range(times):
        try:
            rates.spend(one)
        except RateLimited:
            return number
    return times


def test_messages_pass_up_to_the_burst_and_then_at_the_rate_for_each_account() -> None:
    clock = Clock()
    rates = Rates(clock, Budget(messages_per_second=2, message_burst=5))
    assert spent(rates, message()) == 5
    with pytest.raises(RateLimited) as refused:
        rates.spend(message())
    assert refused.value.retry_after_s == pytest.approx(0.5)
    assert spent(rates, message("bob")) == 5

    clock.now += 2 * SECOND
    assert spent(rates, message()) == 4
    clock.now += 60 * SECOND
    assert spent(rates, message()) == 5


def test_bytes_have_a_budget_of_their_own() -> None:
    clock = Clock()
    rates = Rates(clock, Budget(bytes_per_second=100, byte_burst=1_000))
    assert spent(rates, message(size=300)) == 3
    with pytest.raises(RateLimited) as refused:
        rates.spend(message(size=300))
    assert refused.value.retry_after_s == pytest.approx(2.0)
    assert spent(rates, message(size=50)) == 2
    assert spent(rates, message(size=0), 10) == 10

    clock.now += 3 * SECOND
    assert spent(rates, message(size=300)) == 1


def test_a_role_has_another_budget_with_a_burst_of_as_many_seconds() -> None:
    budget = Budget(messages_per_second=100, message_burst=200, bytes_per_second=1_000, byte_burst=4_000)
    rates = Rates(Clock(), budget, {"viewer": budget.of_role(5, None, least_bytes=10)})
    assert spent(rates, message(role="viewer")) == 10
    assert spent(rates, message("otto", role="operator")) == 200
    assert budget.of_role(None, 1, least_bytes=10).byte_burst == 10
    assert budget.of_role(None, 10, least_bytes=10).byte_burst == 40


def test_the_rate_of_a_thing_is_what_was_let_through_in_the_last_minute() -> None:
    clock = Clock()
    rates = Rates(clock)
    ann = principal("ann")
    for _ in range(30):
        rates.passed("dtw:works:pump-1")
    assert rates.counters(ann, "dtw:works:pump-1")["thing"] == 30
    assert rates.counters(ann, "dtw:works:pump-2")["thing"] == 0
    clock.now += 30 * SECOND
    assert rates.counters(ann, "dtw:works:pump-1")["thing"] == pytest.approx(15)
    clock.now += 60 * SECOND
    assert rates.counters(ann, "dtw:works:pump-1")["thing"] == 0


def test_a_steady_sender_is_seen_at_its_rate() -> None:
    clock = Clock()
    rates = Rates(clock)
    for _ in range(600):
        clock.now += SECOND // 2
        rates.spend(message())
        rates.passed("dtw:works:pump-1")
    counters = rates.counters(principal("ann"), "dtw:works:pump-1")
    assert counters == {"account": pytest.approx(120, rel=0.05), "thing": pytest.approx(120, rel=0.05)}


def test_things_busy_long_ago_are_forgotten_first() -> None:
    rates = Rates(Clock())
    for number in range(MAX_THINGS + 1):
        rates.passed(f"dtw:works:{number}")
    assert rates.counters(principal("ann"), "dtw:works:0")["thing"] == 0
    assert rates.counters(principal("ann"), "dtw:works:1")["thing"] == 1


def test_a_paced_message_is_taken_on_credit_and_paid_by_time() -> None:
    clock = Clock()
    rates = Rates(clock=clock, budget=Budget(messages_per_second=10.0, message_burst=2.0))
    paced = replace(message(), paced=True)
    for _ in range(7):
        rates.spend(paced)

    assert rates.owed_s(paced.principal) == pytest.approx(0.5)
    with pytest.raises(RateLimited):
        rates.spend(message())
    clock.now += 500_000
    assert rates.owed_s(paced.principal) == 0.0


def test_what_is_charged_is_owed_like_a_message() -> None:
    rates = Rates(clock=Clock(), budget=Budget(messages_per_second=10.0, message_burst=2.0))
    principal = message().principal

    assert rates.owed_s(principal) == 0.0
    rates.charge(principal, 3)
    assert rates.owed_s(principal) == pytest.approx(0.1)
