"""Rows that clients published themselves: the latest of each, and those of the latest clients."""

from bindings.mqtt.own_rows import MAX_CLIENTS, MAX_ROWS, OwnRows


def test_rows_are_known_by_account_and_client() -> None:
    own = OwnRows()
    for row_id in (3, 5, 9):
        own.add(("bridge", "one"), row_id)

    assert [row_id for row_id in range(11) if own.has(("bridge", "one"), row_id)] == [3, 5, 9]
    assert not own.has(("bridge", "two"), 5)
    assert not own.has(("other", "one"), 5)


def test_the_oldest_rows_and_clients_are_forgotten_first() -> None:
    own = OwnRows()
    for row_id in range(MAX_ROWS + 1):
        own.add(("bridge", "one"), row_id)

    assert not own.has(("bridge", "one"), 0)
    assert own.has(("bridge", "one"), MAX_ROWS // 2)
    assert own.has(("bridge", "one"), MAX_ROWS)

    for number in range(MAX_CLIENTS):
        own.add(("many", str(number)), 1)
    assert not own.has(("bridge", "one"), MAX_ROWS)
