"""Errors that another process reported: of the class with their code, and whole."""

import pytest

from things import errors
from things.errors import (
    ConfirmationRequired,
    Conflict,
    Invalid,
    Locked,
    NotConnected,
    RateLimited,
    SkepError,
    TooLarge,
    UnknownThing,
    error_named,
)


def _classes() -> list[type[SkepError]]:
    found = [SkepError]
    for kind in found:
        found += [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_error_crosses_a_wire_as_its_own_class_in_the_words_of_who_raised_it(kind: type[SkepError]) -> None:
    error = error_named(kind.code, "the runtime's own words")

    assert type(error) is kind
    assert (error.code, error.detail, str(error)) == (kind.code, "the runtime's own words", "the runtime's own words")


def test_reported_error_has_all_that_its_class_has() -> None:
    reported = {kind: error_named(kind.code, "x") for kind in _classes()}

    for kind, made in (
        (Invalid, Invalid("x")),
        (TooLarge, TooLarge(1)),
        (ConfirmationRequired, ConfirmationRequired("rule", "token", 1.0)),
        (RateLimited, RateLimited(1.0)),
        (Locked, Locked("x")),
        (UnknownThing, UnknownThing("x")),
        (NotConnected, NotConnected("x")),
        (Conflict, Conflict("x")),
    ):
        for name, value in vars(made).items():
            assert type(getattr(reported[kind], name)) is type(value), (kind, name)


def test_error_that_this_version_does_not_know_keeps_its_code() -> None:
    error = error_named("brand-new", "x")

    assert type(error) is SkepError
    assert error.code == "brand-new"
    assert SkepError.code == "internal"


def test_no_two_classes_share_a_code() -> None:
    codes = [kind.code for kind in _classes()]

    assert sorted(codes) == sorted(set(codes))
