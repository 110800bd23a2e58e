"""Audiences are remembered while nothing they hang on changes, and never beyond their bound."""

from dataclasses import dataclass, field
from typing import Any

from runtime.ports import Pattern, Session
from runtime.publications.audiences import Audiences
from runtime.publications.subscriptions import Subscriptions
from tests.runtime.doubles import RecordingSession, principal
from things.addresses import Address, Kind
from things.decisions import Decision
from things.identity import Principal

SERIES = ("dtw:mill:pump", Kind.PROPERTY, "flow")


@dataclass
class Rights:
    """Who may see anything; counts how often it is asked."""

    seeing: set[str]
    version: int = 1
    is_conditional: bool = False
    asked: int = 0

    def decide(self, principal: Principal, operation: Any, address: Address, context: Any = None) -> Decision:
        self.asked += 1
        return Decision(allowed=principal.account in self.seeing, rule="test")


@dataclass
class Street:
    rights: Rights = field(default_factory=lambda: Rights({"alice", "bob"}))
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    principals: dict[Session, Principal] = field(default_factory=dict)

    def audiences(self, most: int = 100) -> Audiences:
        return Audiences(self.subscriptions, self.rights, self.principals.get, most)  # type: ignore[arg-type]

    def subscribe(self, account: str) -> Session:
        session = RecordingSession(account, principal(account))
        self.principals[session] = session.principal
        self.subscriptions.add(session, Pattern("mill"), "all")
        return session


def test_those_who_asked_and_may_see_are_given_it_with_their_tags() -> None:
    street = Street()
    alice, _ = street.subscribe("alice"), street.subscribe("eve")

    assert street.audiences().of(SERIES) == ((alice, ("all",)),)


def test_what_is_known_is_not_decided_again_until_rights_or_sessions_change() -> None:
    street = Street()
    alice, bob = street.subscribe("alice"), street.subscribe("bob")
    audiences = street.audiences()
    for _ in range(5):
        assert [session for session, _ in audiences.of(SERIES)] == [alice, bob]
    assert street.rights.asked == 2

    street.rights.seeing, street.rights.version = {"bob"}, 2
    assert [session for session, _ in audiences.of(SERIES)] == [bob]

    del street.principals[bob]
    audiences.forget()
    assert audiences.of(SERIES) == ()


def test_decisions_that_hang_on_their_context_are_made_each_time() -> None:
    street = Street()
    street.subscribe("alice")
    street.rights.is_conditional = True
    audiences = street.audiences()
    for _ in range(3):
        audiences.of(SERIES)

    assert street.rights.asked == 3


def test_series_and_receivers_together_stay_within_the_bound() -> None:
    street = Street()
    for account in ("alice", "bob"):
        street.subscribe(account)
    audiences = street.audiences(most=9)
    for number in range(50):
        audiences.of(("dtw:mill:pump", Kind.PROPERTY, f"v{number}"))
        assert sum(1 + len(each) for each in audiences._known.values()) <= 9

    crowded = Street()
    for number in range(12):
        crowded.rights.seeing.add(f"c{number}")
        crowded.subscribe(f"c{number}")
    audiences = crowded.audiences(most=9)
    assert len(audiences.of(SERIES)) == 12, "too large to be remembered, and given all the same"
    assert not audiences._known
