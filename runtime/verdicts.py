"""Publications that are judged like the one before in their series.

An agent says the same few things again and again. What the middleware found of one publication holds for the next of
the same sender, until rights, the account or the Thing's description change; only its budget and its value are looked
at each time. `Router.judge` stays the one judge: it is asked first, and says what is left.
"""

from dataclasses import dataclass

from runtime.ports import Authorizer, Check, Directory, Entry
from runtime.router import Router
from things.errors import UnknownThing
from things.identity import Principal
from things.messages import Message

MAX_KNOWN = 10_000
"""Series whose verdict is remembered."""


@dataclass(slots=True, eq=False)
class _Verdict:
    sender: Principal
    entry: Entry
    version: int
    """Of the rights."""
    check: Check


class Verdicts:
    """Judges publications; remembers what it may."""

    def __init__(self, router: Router, authorizer: Authorizer, directory: Directory) -> None:
        self._router = router
        self._authorizer = authorizer
        self._directory = directory
        self._known: dict[tuple[str, str, str], _Verdict] = {}

    def judge(self, message: Message) -> Entry:
        """The entry of the Thing that a publication is about; raises what the middleware refuses it with."""
        entry = self._directory.get(message.thing_id)
        key = (message.thing_id, message.operation._value_, message.name)
        known = self._known.get(key)
        if (
            known is not None
            and known.entry is entry
            and known.sender is message.principal
            and known.version == self._authorizer.version
        ):
            known.check(message)
            return known.entry
        self._router.judge(message)
        if entry is None:
            raise UnknownThing(message.thing_id)
        check = self._router.rest(message)
        if check is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = _Verdict(message.principal, entry, self._authorizer.version, check)
        return entry
