"""Publications that are checked like the one before in their series.

An agent publishes the same few affordances again and again. What the checks found of one publication holds for the
next of the same sender, until rights, the account or the Thing's description change; only its budget and its value are
tested each time. The router's checks come first, and say what remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.admission.router import Router
from runtime.ports import Authorizer, Directory, Entry, Test
from things.bounded import Bounded
from things.errors import UnknownThing
from things.identity import Principal
from things.messages import Message

MAX_KNOWN = 65_536
"""Series whose verdict is remembered."""


@dataclass(slots=True, eq=False)
class _Verdict:
    sender: Principal
    entry: Entry
    version: int
    """Of the rights."""
    tests: Sequence[Test]


class Verdicts:
    """Checks publications; remembers what it may."""

    def __init__(self, router: Router, authorizer: Authorizer, directory: Directory) -> None:
        self._router = router
        self._authorizer = authorizer
        self._directory = directory
        self._known = Bounded[tuple[str, str, str], _Verdict](MAX_KNOWN)

    def check(self, message: Message) -> Entry:
        """The entry of the Thing that a publication is about; raises what refuses it."""
        entry = self._directory.get(message.thing_id)
        key = (message.thing_id, message.operation, message.name)
        known = self._known.get(key)
        if (
            known is not None
            and known.entry is entry
            and known.sender is message.principal
            and known.version == self._authorizer.version
        ):
            self._router.check(message, known.tests)
            return known.entry
        self._router.check(message)
        if entry is None:
            raise UnknownThing(message.thing_id)
        tests = self._router.remaining(message)
        if tests is not None:
            self._known[key] = _Verdict(message.principal, entry, self._authorizer.version, tests)
        return entry
