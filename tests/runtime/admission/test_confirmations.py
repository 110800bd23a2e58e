"""Confirmation tokens: what they are good for, how long, how often, and how many there are."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.admission.confirmations import MAX_ACCOUNTS, MAX_PER_ACCOUNT, VALID_S, Confirmations
from tests.runtime.doubles import Recorded, principal
from things.decisions import Decision
from things.errors import ConfirmationRequired
from things.messages import Message, Operation

DECISION = Decision(allowed=True, rule="policy doors/all/sure", obligations=("confirm",))
OPEN = Message(
    operation=Operation.INVOKE_ACTION,
    principal=principal("alice"),
    thing_id="dtw:house:door",
    name="open",
    data={"wide": True, "for": 5},
    received=0,
)


class Clock:
    """A steady clock that stands until it is moved."""

    now = 0

    def __call__(self) -> int:
        return self.now


def asked(confirmations: Confirmations, message: Message = OPEN, decision: Decision = DECISION) -> str:
    """The token of a refusal."""
    with pytest.raises(ConfirmationRequired) as refused:
        confirmations.require(message, decision)
    assert refused.value.token not in refused.value.detail
    return refused.value.token


def test_token_is_good_once_for_the_same_message() -> None:
    audit = Recorded()
    confirmations = Confirmations(Clock(), audit)
    again = replace(OPEN, confirmation=asked(confirmations), data={"for": 5, "wide": True}, received=7)

    confirmations.require(again, DECISION)
    assert audit.confirmations == [(again, DECISION.rule)]
    asked(confirmations, again)


@pytest.mark.parametrize(
    "change",
    [
        {"principal": principal("mallory")},
        {"principal": replace(principal("alice"), account_id="2-another-of-the-name")},
        {"operation": Operation.CALL_RPC},
        {"thing_id": "dtw:house:gate"},
        {"name": "close"},
        {"data": {"wide": True, "for": 6}},
        {"data": None},
        {"data": None, "has_data": False},
    ],
)
def test_token_is_good_for_nothing_else(change: dict[str, Any]) -> None:
    confirmations = Confirmations(Clock(), Recorded())
    token = asked(confirmations)
    asked(confirmations, replace(OPEN, confirmation=token, **change))


def test_token_of_one_rule_is_no_answer_to_another() -> None:
    confirmations = Confirmations(Clock(), Recorded())
    again = replace(OPEN, confirmation=asked(confirmations))
    asked(confirmations, again, replace(DECISION, rule="policy doors/all/really"))


def test_token_tried_on_something_else_is_spent() -> None:
    confirmations = Confirmations(Clock(), Recorded())
    again = replace(OPEN, confirmation=asked(confirmations))
    asked(confirmations, replace(again, name="close"))
    asked(confirmations, again)


def test_token_ends_with_its_time() -> None:
    clock = Clock()
    confirmations = Confirmations(clock, Recorded())
    first, second = (replace(OPEN, confirmation=asked(confirmations)) for _ in range(2))

    clock.now = int(VALID_S * 1_000_000) - 1
    confirmations.require(first, DECISION)
    clock.now += 1
    asked(confirmations, second)


def test_nobody_else_loses_a_token_to_an_account_that_asks_much() -> None:
    confirmations = Confirmations(Clock(), Recorded())
    other = replace(OPEN, principal=principal("bob"))
    other = replace(other, confirmation=asked(confirmations, other))
    tokens = [asked(confirmations) for _ in range(3 * MAX_PER_ACCOUNT)]

    confirmations.require(other, DECISION)
    kept = tokens[-MAX_PER_ACCOUNT:]
    asked(confirmations, replace(OPEN, confirmation=tokens[-MAX_PER_ACCOUNT - 1]))
    # Asking once more has pushed out the oldest of them.
    for token in kept[1:]:
        confirmations.require(replace(OPEN, confirmation=token), DECISION)


def test_accounts_asked_long_ago_are_forgotten_first() -> None:
    confirmations = Confirmations(Clock(), Recorded())
    first = replace(OPEN, confirmation=asked(confirmations))
    for number in range(MAX_ACCOUNTS):
        last = replace(OPEN, principal=principal(f"a{number}"))
        last = replace(last, confirmation=asked(confirmations, last))

    confirmations.require(last, DECISION)
    asked(confirmations, first)
