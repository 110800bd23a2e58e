"""Waiting for a data folder that another skep holds: a command ends soon, a runtime that was told to stop nearly so."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import click

from skep.cli.plain import plain
from things.errors import Locked

T = TypeVar("T")

FOR_COMMAND_S = 15.0
FOR_RUNTIME_S = 2.0
AGAIN_S = 0.1


class Patience:
    """How long one may still wait, and whether it was said for what."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._has_spoken = False

    def bears(self, locked: Locked) -> bool:
        """Whether to try again in `AGAIN_S`; says for whom one waits."""
        left = self._began + (FOR_COMMAND_S if locked.by_command else FOR_RUNTIME_S) - time.monotonic()
        if left > 0 and locked.by_command and not self._has_spoken:
            self._has_spoken = True
            click.echo(plain(f"waiting: {locked.detail}"), err=True)
        return left > 0


def patient(take: Callable[[], T]) -> T:
    """What `take` returns, tried again while another holds the folder. Raises Locked."""
    patience = Patience()
    while True:
        try:
            return take()
        except Locked as locked:
            if not patience.bears(locked):
                raise
        time.sleep(AGAIN_S)


@contextmanager
def held_in_time(home: Path) -> Iterator[None]:
    """Hold a folder in which nothing runs. Raises Locked if it does."""
    from gateway.home import held

    with ExitStack() as stack:
        patient(lambda: stack.enter_context(held(home)))
        yield
