"""Changes of a schema: numbered, append-only steps, recorded in the database that they changed.

All of a start's missing steps run in one transaction: all or none. Before they touch a database that has data, it is
set aside. A database that a newer skep has changed is refused, not guessed at. How a database is read, copied and
written is its store's to say.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

from things.errors import NewerSchema

C = TypeVar("C")
"""A connection to the database, within a transaction."""


class Step(NamedTuple, Generic[C]):
    """One change of a schema; its number is its place, from 1."""

    name: str
    apply: Callable[[C], None]


class Schema(Protocol[C]):
    """The schema of one database."""

    @property
    def name(self) -> str:
        """What the database is called in a refusal."""
        ...

    def done(self) -> int:
        """How many steps were applied."""
        ...

    def set_aside(self, number: int) -> None:
        """Copy the database as it is before the step of this number, if there is a file to copy."""
        ...

    def changing(self) -> AbstractContextManager[C]:
        """One transaction; an exception undoes it."""
        ...

    def record(self, connection: C, number: int, name: str) -> None:
        """Note that a step was applied."""
        ...


def apply_missing(schema: Schema[C], steps: Sequence[Step[C]]) -> int:
    """Bring the schema up to date; returns its number. Raises NewerSchema; whatever a step raises undoes all."""
    done = schema.done()
    if done > len(steps):
        raise NewerSchema(schema.name, done, len(steps))
    if done == len(steps):
        return done
    if done:
        schema.set_aside(done + 1)
    with schema.changing() as connection:
        for number, step in enumerate(steps[done:], start=done + 1):
            step.apply(connection)
            schema.record(connection, number, step.name)
    return len(steps)
