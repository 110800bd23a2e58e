"""The accounts database in memory: read without waiting, written through, never behind what was taken from somebody.

A change is stored first and here after that. What takes a right away is different: it is here also where storing fails,
and is stored, as it is by then, before the next change, or when somebody asks for it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from anyio import CapacityLimiter, to_thread

from authn.accounts import Account, AccountStore, DeviceRequest, Kept, KnownAs, known_as
from authn.credentials import Credential


class Memory:
    """What the store keeps. One coroutine at a time writes; the store works in a thread."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self._limiter = CapacityLimiter(1)
        self.accounts = {account.name: account for account in store.accounts()}
        self.credentials: dict[str, Credential] = {}
        """Standing and ended, by id."""
        self._of: dict[str, dict[str, Credential]] = {}
        self.requests = {request.account: request for request in store.device_requests()}
        self._unstored: set[KnownAs] = set()
        """What is not on disk as it is here."""
        self.take(store.credentials())

    @property
    def is_ahead(self) -> bool:
        """Whether something is not on disk as it is here."""
        return bool(self._unstored)

    @property
    def account_ids(self) -> tuple[str, ...]:
        """Of all who have or had credentials."""
        return tuple(self._of)

    def of(self, account_id: str) -> Mapping[str, Credential]:
        """The credentials of an account by id, also of one that was removed."""
        return self._of.get(account_id, {})

    # ------------------------------------------------------------ in memory

    def take(self, values: Iterable[Kept]) -> None:
        for value in values:
            match value:
                case Account():
                    self.accounts[value.name] = value
                case Credential():
                    self.credentials[value.credential_id] = value
                    self._of.setdefault(value.account_id, {})[value.credential_id] = value
                case DeviceRequest():
                    self.requests[value.account] = value

    def forget(self, gone: Iterable[KnownAs]) -> None:
        for kind, name in gone:
            known = self._all(kind).pop(name, None)
            if isinstance(known, Credential):
                own = self._of[known.account_id]
                own.pop(name, None)
                if not own:
                    del self._of[known.account_id]

    def put(self, values: Collection[Kept], gone: Collection[KnownAs] = ()) -> None:
        """Let it be so, to be stored later."""
        self.take(values)
        self.forget(gone)
        self._unstored.update(map(known_as, values))
        self._unstored.update(gone)

    # ------------------------------------------------------------ onto the disk

    async def write(self, work: Callable[[AccountStore], None]) -> None:
        """Change the store, once nothing else is unstored. Raises what the store raises."""
        await self.settle()
        await to_thread.run_sync(work, self._store, limiter=self._limiter)

    async def apply(self, values: Collection[Kept], gone: Collection[KnownAs] = ()) -> None:
        """Store and let it be so; it is so also where storing fails, which is raised."""
        try:
            await self.write(lambda store: store.save(*values, without=gone))
        except BaseException:
            self.put(values, gone)
            raise
        self.take(values)
        self.forget(gone)

    async def settle(self) -> None:
        """Store what is unstored. Raises what the store raises."""
        if not self._unstored:
            return
        unstored, self._unstored = self._unstored, set()
        values, gone = self._as_it_is(unstored)
        try:
            await to_thread.run_sync(lambda: self._store.save(*values, without=gone), limiter=self._limiter)
        except BaseException:
            self._unstored |= unstored
            raise

    def close(self) -> None:
        """Store what is unstored, in this thread. Raises what the store raises."""
        if self._unstored:
            values, gone = self._as_it_is(self._unstored)
            self._store.save(*values, without=gone)

    def _all(self, kind: type[Kept]) -> dict[str, Account] | dict[str, Credential] | dict[str, DeviceRequest]:
        return self.accounts if kind is Account else self.credentials if kind is Credential else self.requests

    def _as_it_is(self, unstored: Iterable[KnownAs]) -> tuple[list[Kept], list[KnownAs]]:
        """What of this is to be stored, and what to be deleted."""
        found = [(one, self._all(one[0]).get(one[1])) for one in unstored]
        return [value for _, value in found if value is not None], [one for one, value in found if value is None]
