"""How much of the registry each account fills, in entries and bytes; all guests together count as one."""

from bindings.messaging_node.settings import NodeSettings
from things.errors import QueueFull
from things.names import GUEST_PREFIX


class Quota:
    """Counts what is registered."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._counted: dict[str, tuple[str, int]] = {}
        """Owner and size by address."""
        self._entries: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def check(self, url: str, account: str, size: int) -> None:
        """Raise QueueFull if an entry of this size at `url` would be too much for its account."""
        owner = _counted_as(account)
        before = self._counted.get(url)
        is_new = before is None or before[0] != owner
        entries = self._entries.get(owner, 0) + is_new
        if entries > self._settings.max_registrations_of_account:
            raise QueueFull(f"account {owner!r}", self._settings.max_registrations_of_account, "registrations")
        replaced = 0 if before is None or is_new else before[1]
        if self._bytes.get(owner, 0) - replaced + size > self._settings.max_registration_bytes_of_account:
            limit = self._settings.max_registration_bytes_of_account
            raise QueueFull(f"account {owner!r}", limit, "bytes of registrations, or would have more,")

    def put(self, url: str, account: str, size: int) -> None:
        """Count an entry, in the place of an earlier one."""
        self.drop(url)
        owner = _counted_as(account)
        self._counted[url] = (owner, size)
        self._entries[owner] = self._entries.get(owner, 0) + 1
        self._bytes[owner] = self._bytes.get(owner, 0) + size

    def drop(self, url: str) -> None:
        """Count it no more; idempotent."""
        owner, size = self._counted.pop(url, ("", 0))
        if owner:
            self._entries[owner] -= 1
            self._bytes[owner] -= size
            if not self._entries[owner]:
                del self._entries[owner], self._bytes[owner]

    def size(self, url: str) -> int:
        """Bytes of the entry at an address; 0 for none."""
        return self._counted.get(url, ("", 0))[1]


def _counted_as(account: str) -> str:
    return "guests" if account.startswith(GUEST_PREFIX) else account
