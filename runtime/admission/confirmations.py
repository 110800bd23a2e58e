"""Confirmations: a message that a rule wants confirmed is refused with a token, and passes when repeated with it.

A token is good for one message, of the account that was refused, with the same operation, address and content, for as
long as the same rule asks; it is judged anew each time. What is asked lives in memory, bounded by account: a token that
was forgotten, in a restart too, costs its caller another question.
"""

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.ports import Audit
from things.bounded import Recent
from things.decisions import Decision
from things.errors import ConfirmationRequired
from things.messages import Message

VALID_S = 120.0
MAX_PER_ACCOUNT = 16
"""Open questions of one account, the oldest forgotten first."""
MAX_ACCOUNTS = 1_000
"""Accounts with open questions; the one that was asked the longest ago is forgotten first."""


class _Question(NamedTuple):
    digest: bytes
    until: int


@dataclass(slots=True)
class Confirmations:
    """What callers were asked to confirm and have not yet."""

    clock: Callable[[], int]
    """A steady clock, µs."""
    audit: Audit
    _open: Recent[str, Recent[str, _Question]] = field(default_factory=lambda: Recent(MAX_ACCOUNTS))
    """By account (its id: another one of the name was asked nothing) and token, both in the order of asking."""

    def require(self, message: Message, decision: Decision) -> None:
        """Let a confirmed message pass. Raises ConfirmationRequired, with a fresh token, for any other."""
        account, now = message.principal.account_id or message.sender_id, self.clock()
        digest = _digest(message, decision.rule)
        asked = self._taken(account, message.confirmation)
        if asked is None or asked.digest != digest or asked.until <= now:
            raise ConfirmationRequired(decision.rule, self._ask(account, digest, now), VALID_S)
        self.audit.confirmed(message, decision.rule)

    def _taken(self, account: str, token: str | None) -> _Question | None:
        """What a token was given for; it is spent with the first look."""
        questions = self._open.get(account)
        if token is None or questions is None:
            return None
        asked = questions.pop(token, None)
        if not questions:
            del self._open[account]
        return asked

    def _ask(self, account: str, digest: bytes, now: int) -> str:
        questions = self._open.get(account)
        if questions is None:
            questions = Recent[str, _Question](MAX_PER_ACCOUNT)
        self._open[account] = questions
        token = secrets.token_urlsafe(16)
        questions[token] = _Question(digest, now + int(VALID_S * 1_000_000))
        return token


def _digest(message: Message, rule: str) -> bytes:
    """One figure for all that is confirmed; members of objects count in any order."""
    asked = [rule, message.operation, message.thing_id, message.name, message.has_data, message.data]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
