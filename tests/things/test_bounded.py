"""A map of bounded size that goes on being useful when it is full."""

import pytest

from things.bounded import Bounded, Recent


def test_a_key_over_the_bound_takes_the_place_of_one_other() -> None:
    known = Bounded[int, str](3)
    for number in range(4):
        known[number] = str(number)

    assert len(known) == 3
    assert known[3] == "3"


def test_a_key_that_is_there_takes_no_place() -> None:
    known = Bounded[str, int](2)
    known["a"], known["b"] = 1, 2
    known["a"] = 3

    assert known == {"a": 3, "b": 2}


def test_keys_in_turn_one_more_than_fit_are_mostly_found() -> None:
    known = Bounded[int, int](100)
    found = 0
    for turn in range(50):
        for key in range(101):
            found += key in known
            known[key] = turn

    assert found > 0.9 * 49 * 101


def test_removed_keys_make_room_and_the_bound_still_holds() -> None:
    known = Bounded[int, int](4)
    for number in range(1_000):
        known[number] = number
        if number % 3 == 0:
            del known[number]
        known.pop(number - 1, None)
        assert len(known) <= 4


def test_a_map_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="room for one"):
        Bounded[int, int](0)


def test_entries_are_discarded_until_none_is_left() -> None:
    known = Bounded[int, str](3)
    for number in range(5):
        known[number] = str(number)
    del known[4]

    discarded = [known.discard_one() for _ in range(2)]

    assert known == {}
    assert all(value == str(key) for key, value in discarded)
    with pytest.raises(KeyError):
        known.discard_one()
    known[7] = "7"
    assert known == {7: "7"}


def test_the_entry_set_longest_ago_goes_first() -> None:
    recent = Recent[str, int](2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    recent["c"] = 4

    assert list(recent.items()) == [("a", 3), ("c", 4)]
    with pytest.raises(ValueError, match="room for one"):
        Recent[int, int](0)
