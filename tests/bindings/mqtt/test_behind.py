"""A reader that is behind: pieces of history, then what was published meanwhile, then nothing is left."""

from collections.abc import Sequence

from bindings.mqtt.behind import MAX_HELD_BYTES, Behind
from bindings.mqtt.engines.seam import Publish


def row(row_id: int, payload: bytes = b"") -> Publish:
    return Publish(topic="t", payload=payload, row_id=row_id)


def taken(behind: Behind[Publish], most: int = 100) -> Sequence[int]:
    """The rows of the next steps, each taken."""
    found: list[int] = []
    while len(found) < most:
        stored = behind.step()
        if stored is not None:
            found.append(stored.row_id)
            behind.taken()
        elif not behind.has_piece:
            break
    return found


def read(behind: Behind[Publish], *rows: int, last_row: int, has_more: bool = False) -> None:
    behind.begin(7)
    assert behind.is_reading
    behind.came(map(row, rows), last_row, has_more=has_more)


def test_it_is_over_when_a_last_piece_was_taken_and_nothing_was_published_meanwhile() -> None:
    behind = Behind[Publish](10)
    assert (behind.step(), behind.has_piece, behind.is_over) == (None, False, False)

    read(behind, 11, 13, last_row=14, has_more=True)
    assert (behind.is_first, behind.rights) == (False, 7)
    assert taken(behind) == [11, 13]
    assert (behind.position, behind.is_over) == (14, False)

    read(behind, last_row=20)
    assert taken(behind) == []
    assert (behind.position, behind.is_over) == (20, True)


def test_what_is_published_while_a_last_piece_is_read_and_sent_is_the_next_piece() -> None:
    behind = Behind[Publish](0)
    behind.begin(None)
    behind.hold(row(2))
    behind.hold(row(3))
    behind.came([row(1), None, row(2)], 2, has_more=False)
    assert taken(behind, 2) == [1, 2]
    behind.hold(row(4))

    assert behind.step() is None
    assert behind.step() == row(3)
    assert behind.step() == row(3), "until it is taken"
    behind.hold(row(5))
    assert taken(behind, 2) == [3, 4]
    assert (behind.position, behind.is_over) == (4, False)
    assert taken(behind) == [5]
    assert behind.is_over


def test_what_is_published_before_anything_is_read_or_beyond_the_bound_is_read() -> None:
    behind = Behind[Publish](0)
    behind.hold(row(1))
    behind.begin(None)
    for row_id in range(2, 7):
        behind.hold(row(row_id, bytes(MAX_HELD_BYTES // 4)))
    behind.came([row(1)], 1, has_more=False)

    assert taken(behind) == [1]
    assert not behind.is_over
    assert not behind.has_piece
