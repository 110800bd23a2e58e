"""A table that grows by batches, in a bounded number of folders that are each only written whole.

Batches are runs of level 0. Every `FANOUT` runs of a level are folded into one of the next, so that there are few
however many batches there were, and a row is written anew only a logarithmic number of times. Which runs make up the
table after a batch, and where they lie, follows from the batch's number alone: nothing is listed, nothing is deleted,
and a killed attempt is repeated over the same input. A folder is used again only after twice as many runs as one fold
takes, so readers have the time of `FANOUT` batches to finish.
"""

from collections.abc import Iterator
from typing import NamedTuple

FANOUT = 16


class Run(NamedTuple):
    """One folder's content: batches `number` · FANOUT^`level` up to those of the next number."""

    level: int
    number: int

    @property
    def folder(self) -> str:
        return f"level={self.level}/slot={self.number % (2 * FANOUT):02d}"

    @property
    def sources(self) -> list["Run"]:
        """The runs of the level below that are folded into this one."""
        return [Run(self.level - 1, self.number * FANOUT + one) for one in range(FANOUT)]


def due(batch: int) -> Iterator[Run]:
    """The folds to make before this batch is written, in this order: all batches before it are committed."""
    level, size = 1, FANOUT
    while batch and batch % size == 0:
        yield Run(level, batch // size - 1)
        level, size = level + 1, size * FANOUT


def after(batch: int) -> list[Run]:
    """The runs that hold all batches up to this one, which is the last that was committed."""
    found = [Run(0, batch)]
    level, rest = 0, batch
    while rest:
        rest, own = divmod(rest, FANOUT)
        found += [Run(level, rest * FANOUT + one) for one in range(own)]
        level += 1
    return found
