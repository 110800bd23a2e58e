"""Passwords: which are accepted, how they are kept (argon2id), and how they are checked without telling anything.

Hashing runs in a pool of two threads with a bounded queue, so that a flood of logins costs neither the event loop nor
memory. Unknown accounts cost the same work as known ones. A password that was right is recognised without that work for
a minute, by a keyed hash that this process alone can make: clients that send it with every request keep nobody waiting.
A wrong one always costs it.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from authn.weak_passwords import is_the_name, is_tried_first
from things.bounded import Recent
from things.errors import Invalid, RateLimited

MIN_CHARS = 8
MAX_BYTES = 1_024
MAX_WAITING = 64
"""Checks that may wait for the pool; about two seconds of work on a small board, after which a caller does better to
come back."""

PROVEN_S = 60.0
"""How long a right password is recognised; the hash it is compared with changes with the password."""
MAX_PROOFS = 1_000

PASSES, MEMORY_KIB = 2, 19 * 1_024
"""OWASP's smallest argon2id setting, with one lane; the library's default takes 0.3 s a login."""

_T = TypeVar("_T")


class Passwords:
    """Checks and hashes passwords; holds no account."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1, type=Type.ID)
        self._limiter = CapacityLimiter(2)
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._proofs = Recent[str, tuple[bytes, float]](MAX_PROOFS)
        """By the hash that is kept: what a right password makes with our key, and when it was checked."""
        self._nobody = self._hasher.hash(secrets.token_hex(16))

    async def hash(self, password: str) -> str:
        """The hash to keep for an accepted password."""
        return await self._in_pool(lambda: self._hasher.hash(password))

    async def matches(self, kept: str | None, password: str) -> bool:
        """Whether `password` made the hash `kept`; None costs the same and is always False."""
        if len(password.encode("utf-8", "surrogatepass")) > MAX_BYTES or not password:
            password, kept = "-", None
        if self._is_proven(kept, password):
            return True
        is_right = await self._in_pool(lambda: self._check(kept, password))
        if is_right and kept is not None:
            self._proofs[kept] = self._proof(kept, password), self._monotonic()
        return is_right

    def is_outdated(self, kept: str) -> bool:
        """Whether `kept` was made with other costs than today's, so that a login should renew it."""
        return self._hasher.check_needs_rehash(kept)

    def _is_proven(self, kept: str | None, password: str) -> bool:
        proof, at = self._proofs.get(kept or "", (b"", 0.0))
        return (
            bool(proof)
            and self._monotonic() - at < PROVEN_S
            and hmac.compare_digest(proof, self._proof(kept or "", password))
        )

    def _proof(self, kept: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{kept}\n{password}".encode("utf-8", "surrogatepass"), "sha256")

    def _check(self, kept: str | None, password: str) -> bool:
        # Of many that came at once, others may have shown it while this one waited.
        if self._is_proven(kept, password):
            return True
        try:
            self._hasher.verify(kept if kept is not None else self._nobody, password)
        except (VerificationError, InvalidHashError):
            return False
        return kept is not None

    async def _in_pool(self, work: Callable[[], _T]) -> _T:
        if self._waiting >= MAX_WAITING:
            raise RateLimited(1.0)
        self._waiting += 1
        try:
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._waiting -= 1


def checked_password(password: object, account: str) -> str:
    """`password` if it may protect `account`; raises Invalid with the reason."""
    if not isinstance(password, str) or not password:
        raise Invalid("the password is empty")
    try:
        size = len(password.encode())
    except UnicodeEncodeError as error:
        raise Invalid("the password is not valid Unicode text") from error
    if len(password) < MIN_CHARS:
        raise Invalid(f"the password is too short; use at least {MIN_CHARS} characters, better 15")
    if size > MAX_BYTES:
        raise Invalid(f"the password is longer than {MAX_BYTES} bytes")
    if is_tried_first(password):
        raise Invalid("the password is one of those tried first; choose another")
    if is_the_name(password, account):
        raise Invalid("the password is the account's own name; choose another")
    if looks_like_token(password):
        raise Invalid("the password has the form of a token; choose another")
    return password


def looks_like_token(secret: str) -> bool:
    """Whether `secret` has the form of a JSON Web Token, which is accepted where a password is expected."""
    return secret.startswith("eyJ") and secret.count(".") == 2
