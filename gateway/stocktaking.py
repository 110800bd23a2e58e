"""Holds the stores of a home against their inventory at each start, and keeps the inventory while they are open.

`before_opening` looks at the files: what must not be begun anew is refused by name, what may be done without is noted.
`after_opening` compares how far the open stores come with how far they had come. `keep` notes that from time to time:
at once when something was committed after a pause, then less and less often down to once a second, so that it costs the
stores one small synced write a second and nothing while they rest. What each store means is in docs/operations.md.
"""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.home import GATEWAY_FILE, gateway_id, write_gateway_id
from gateway.inventory import (
    ACCOUNTS,
    FILE,
    HISTORY,
    TWIN,
    Inventory,
    Marks,
    Note,
    new_inventory,
    read_inventory,
    read_notes,
    write_inventory,
    write_notes,
)
from gateway.sqlite_files import FileKind, is_readable, kind_of, lost_frames, put_stamp
from runtime.clocks import wall_clock
from things.errors import NewerSchema, NotFound, StorageDamaged, StorageFailed, StorageFull
from things.times import rfc3339

log = logging.getLogger(__name__)

KEEP_S = 1.0
"""Between two notes while the stores are busy."""
LOOK_S = 0.05
"""The same after a pause."""
MAX_NOTES = 100
ROW_ID_RESERVE = 2_000_000
"""More than the row ids that can be promised beyond what the inventory knows."""
SEQ_RESERVE = 1_000_000
"""The same for the ledger's sequence numbers."""

RIGHTS, KEYS, ROW_IDS = "rights.json", "keys", f"{HISTORY}/row-ids"
AUTHORITY = "certs/ca.pem"
DROPPED = f"{HISTORY}/dropped"
REPAIR = "skep repair (save what can be read)"

CONVENIENCES = {
    "mqtt-sessions.db": "sessions of MQTT clients that are away are gone, and with them where they stood",
    "node.db": "sessions and registrations of the messaging node are gone",
}
"""Stores that are begun anew, and what that means."""


class Stocktaking:
    """The inventory of one held home, from its start to its end."""

    def __init__(self, home: Path, *, is_on_server: bool) -> None:
        """Raises NewerSchema."""
        self._home = home
        self._is_on_server = is_on_server
        try:
            found = read_inventory(home)
        except NewerSchema:
            raise
        except StorageDamaged as error:
            aside = _set_aside(home / FILE)
            found = None
            self._note(FILE, f"{error.detail}; it was set aside as {aside.name} and made anew from what is there")
        self.inventory = found or new_inventory(is_on_server=is_on_server)
        self._is_known = found is not None
        if self.inventory.is_on_server != is_on_server:
            # Moved to a server or back by configuration: other stores than those that were noted.
            for name in (ACCOUNTS, TWIN):
                self.inventory.stores.pop(name, None)
            self.inventory.is_on_server = is_on_server
        self._writing = anyio.Lock()
        self._going: set[str] = set()
        """Stores that are being dropped."""
        self.seq_reserve = 0
        """What to add to the ledger's sequence numbers, because some that were given may be gone."""

    # ------------------------------------------------------------ before the stores are opened

    def before_opening(self) -> None:
        """Look at the files. Raises StorageDamaged for a store that must not be begun anew."""
        had_stores = self._is_known or _has_run(self._home)
        if not self._is_known and had_stores and not (self._home / FILE).exists():
            log.info("there is no inventory yet: made from what is there", extra={"home": str(self._home)})
        if not self._is_on_server:
            for name in (ACCOUNTS, TWIN):
                self._check_database(name)
        for name, reason in self.inventory.refused.items():
            raise self._refusal(name, reason)
        if RIGHTS in self.inventory.stores and not (self._home / RIGHTS).exists():
            raise self._refusal(RIGHTS, "missing: custom roles and rules, and what they denied, are gone")
        if KEYS in self.inventory.stores and not any((self._home / KEYS).glob("token-*.pem")):
            self._note(KEYS, "the signing key is missing: a new one was made, and every token ended")
        self._check_authority()
        self._restore_gateway()
        self._check_history()
        self._check_conveniences()

    def _check_authority(self) -> None:
        path = self._home / AUTHORITY
        if AUTHORITY not in self.inventory.stores or (path.exists() and path.stat().st_size):
            return
        if not path.parent.exists():
            self._note(AUTHORITY, "missing: a new authority was made, whose certificate clients have to be given")
            return
        log.critical("a store is not what it was", extra={"store": AUTHORITY})
        raise StorageDamaged(
            f"{AUTHORITY} is missing or empty: restore it, or move certs/ away, and a new authority is made that "
            "clients have to be given"
        )

    def _check_database(self, name: str) -> None:
        path = self._home / name
        had = self.inventory.stores.get(name)
        if had is None and not (not self._is_known and _must_have_had(self._home, name)):
            return  # a first start, or one for which that was asked
        lost = lost_frames(path)
        if lost and name == ACCOUNTS:
            # Looking has finished what the crash left, so that the next start could not see it any more.
            reason = f"shortened: its log lost {lost} pages that were committed, perhaps an ended credential"
            self.inventory.refused[name] = reason
            self._write()
            raise self._refusal(name, reason)
        if lost:
            self.seq_reserve = SEQ_RESERVE
            self._note(name, f"its log lost {lost} pages that were committed; kept as {name}-wal.damaged")
        kind = kind_of(path, self.inventory.stamp if had is not None else None)
        if kind is not FileKind.OURS:
            raise self._refusal(name, f"{kind}{_summary(had)}")

    def _check_history(self) -> None:
        folder, stores = self._home / HISTORY, self.inventory.stores
        prefix = f"{HISTORY}/"
        listed = {name: marks for name, marks in stores.items() if name.startswith(prefix) and "first" in marks}
        for name, marks in listed.items():
            if not (self._home / name).exists():
                del stores[name]
                if marks["last"] >= marks["first"]:
                    self._note(name, f"missing: at least {_rows(marks['first'], marks['last'])} of it are gone")
        if self._is_known and folder.is_dir():
            for path in sorted(folder.glob("*.db")):
                if lost := lost_frames(path):
                    kept = f"{path.name}-wal.damaged"
                    self._note(prefix + path.name, f"its log lost {lost} pages that were committed; kept as {kept}")
                if kind_of(path, self.inventory.stamp) is FileKind.FOREIGN:
                    aside = _set_aside(path)
                    stores.pop(prefix + path.name, None)
                    self._note(prefix + path.name, f"of another installation: set aside as {aside.name}")
        self._check_dropped()
        self._check_row_ids(max((marks["last"] for marks in listed.values()), default=0))

    def _check_dropped(self) -> None:
        """Without it, whatever is older than the hot files is looked for in the lake."""
        path = self._home / DROPPED
        try:
            int(path.read_text("ascii"))
        except FileNotFoundError:
            return
        except (ValueError, OSError):
            self.set_aside(DROPPED, "damaged: more is looked for in the lake than has to be")

    def _check_conveniences(self) -> None:
        """What holds nothing that was acknowledged as stored never stops a start."""
        for name, meaning in CONVENIENCES.items():
            path = self._home / name
            if not path.exists() or not path.stat().st_size:
                if name in self.inventory.stores:
                    self._note(name, f"missing or empty: {meaning}")
            elif not _has_content(path) or not is_readable(path):
                self._note(name, f"damaged: set aside as {_set_aside(path).name}; {meaning}")

    async def try_conveniences(self, openings: Mapping[str, Callable[[Path], Awaitable[object]]]) -> None:
        """Open each of them as its owner is going to; what it could not go on with is set aside. Raises NewerSchema."""
        for name, opening in openings.items():
            path = self._home / name
            if not path.exists():
                continue
            try:
                await opening(path)
            except NewerSchema:
                raise
            except StorageDamaged as error:
                self.set_aside(name, f"{error.detail} ({CONVENIENCES[name]})")

    def set_aside(self, name: str, reason: str) -> None:
        """Move a file that can be done without out of the way, loudly."""
        self._note(name, f"{reason}; set aside as {_set_aside(self._home / name).name}")

    def _check_row_ids(self, known: int) -> None:
        """The file says which row ids must not be given again."""
        path = self._home / ROW_IDS
        try:
            promised = int(path.read_text("ascii"))
        except FileNotFoundError:
            promised = None
        except (ValueError, OSError):
            promised = -1
        had = self.inventory.stores.get(ROW_IDS, {}).get("last", 0)
        known = max(known, had)
        if promised is None and not known:
            return
        if promised is None or promised < known:
            if promised is not None or had:
                self._note(ROW_IDS, f"missing or damaged: row ids go on after {known + ROW_ID_RESERVE}")
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_text(f"{known + ROW_ID_RESERVE}\n", "ascii")
        elif not self._is_known and promised and not any(path.parent.glob("*.db")):
            self._note(HISTORY, f"there is no file of hot history, though row ids up to {promised} may have been given")

    def _restore_gateway(self) -> None:
        path, gateway = self._home / GATEWAY_FILE, self.inventory.gateway
        if gateway is None:
            return
        what = "missing or empty"
        if path.exists() and path.stat().st_size:
            try:
                gateway_id(self._home)
                return
            except StorageDamaged:
                what = f"damaged: set aside as {_set_aside(path).name}"
        write_gateway_id(self._home, gateway)
        self._note(GATEWAY_FILE, f"{what}; written again with the id {gateway}")

    # ------------------------------------------------------------ once they are open

    def least(self, name: str, counter: str) -> int:
        """How far a store had come at least."""
        return self.inventory.stores.get(name, {}).get(counter, 0)

    def after_opening(self, found: Mapping[str, Marks], damaged: Sequence[Path]) -> None:
        """Compare with what the open stores hold, and write the inventory. `damaged`: history files that were set
        aside."""
        for path in damaged:
            name = f"{HISTORY}/{path.name.partition('.db')[0]}.db"
            had = self.inventory.stores.pop(name, None)
            self._note(name, f"damaged: set aside as {path.name}{_summary(had)}")
        for name, marks in found.items():
            had = self.inventory.stores.get(name, {})
            shorter = {counter: had[counter] for counter in _RISING if marks.get(counter, 0) < had.get(counter, 0)}
            if name.startswith(f"{HISTORY}/") and "last" in shorter:
                rows = _rows(marks["last"] + 1, had["last"])
                self._note(name, f"shortened: at least {rows} are gone")
            elif name == TWIN and shorter:
                what = " and ".join(_COUNTED[counter] for counter in shorter)
                self.seq_reserve = SEQ_RESERVE
                self._note(name, f"shortened: the last {what} are gone")
        self._take(found)
        self._stamp_files()
        self._write()

    def asked(self) -> Sequence[str]:
        """What somebody asked for since the last start; told once."""
        asked, self.inventory.asked = self.inventory.asked, []
        return asked

    def note_gateway(self, gateway: str) -> None:
        """Take note of the id in `gateway.json`."""
        self.inventory.gateway = gateway

    async def keep(self, progress: Callable[[], object], marks: Callable[[], Mapping[str, Marks]]) -> None:
        """Note how far the stores have come, for ever; `progress` is cheap and differs whenever `marks` do."""
        noted, pause_s = progress(), LOOK_S
        await self._noted(marks())  # what the start itself has changed
        while True:
            await anyio.sleep(pause_s)
            seen = progress()
            if seen == noted:
                pause_s = max(LOOK_S, pause_s / 2)
                continue
            await self._noted(marks())
            noted, pause_s = seen, min(2 * pause_s, KEEP_S)

    async def forget(self, name: str) -> None:
        """A store is about to be dropped: from now on nobody will miss it."""
        self._going.add(name)
        await self._noted(self.inventory.stores)

    def close(self, marks: Mapping[str, Marks]) -> None:
        """Note how far the stores have come at their end."""
        self._take(marks)
        self._write()

    async def _noted(self, found: Mapping[str, Marks]) -> None:
        self._take(found)
        async with self._writing:
            await anyio.to_thread.run_sync(self._write, replace(self.inventory))

    def _take(self, found: Mapping[str, Marks]) -> None:
        self._going &= found.keys()
        self.inventory.stores = {name: dict(marks) for name, marks in found.items() if name not in self._going}

    def _stamp_files(self) -> None:
        for name in self.inventory.stores.keys() - CONVENIENCES.keys():
            if not name.endswith(".db") or (self._is_on_server and name in (ACCOUNTS, TWIN)):
                continue
            try:
                put_stamp(self._home / name, self.inventory.stamp)
            except (sqlite3.Error, OSError) as error:
                log.warning("a store is not marked as of this home", extra={"file": name, "reason": str(error)})

    def _write(self, inventory: Inventory | None = None) -> None:
        try:
            write_inventory(self._home, inventory or self.inventory)
        except (StorageFailed, StorageFull) as error:
            # A full disk stops neither a start nor an end; an older note says less, and nothing wrong.
            log.error("the inventory is not written", extra={"detail": error.detail})

    def _note(self, store: str, detail: str) -> None:
        note_set_aside(self._home, store, detail)

    def _refusal(self, name: str, reason: str) -> StorageDamaged:
        log.critical("a store is not what it was", extra={"store": name, "reason": reason})
        ways = (
            []
            if name == RIGHTS or reason.startswith((FileKind.MISSING, FileKind.EMPTY, FileKind.FOREIGN))
            else [REPAIR]
        )
        if name != RIGHTS:
            ways.append(f"skep stores reset {name} (begin anew)")
        if name == RIGHTS or _has_content(self._home / name):
            ways.append(f"skep stores accept {name} (go on with what is there)")
        return StorageDamaged(
            f"{name} is {reason}. Restore a backup (skep restore), or ask for what is wanted: {', '.join(ways)}"
        )


_COUNTED = {"revision": "changes of accounts", "seq": "requests", "change": "changes of the directory"}
_RISING = (*_COUNTED, "last")


def note_set_aside(home: Path, store: str, detail: str) -> None:
    """Say in the log, and in the notes until somebody clears them, that something of a store is gone."""
    log.critical("something of a store is gone or was set aside", extra={"store": store, "detail": detail})
    notes = list(read_notes(home))
    if any((one.store, one.detail) == (store, detail) for one in notes):
        return
    notes.append(Note(store=store, detail=detail, at=rfc3339(wall_clock())))
    try:
        write_notes(home, notes[-MAX_NOTES:])
    except (StorageFailed, StorageFull) as error:
        log.error("what was set aside is not noted", extra={"detail": error.detail})


def clear_notes(home: Path, store: str | None = None) -> Sequence[Note]:
    """Forget the notes of a store, or all; those that went."""
    notes = read_notes(home)
    gone = [one for one in notes if store in (None, one.store)]
    if gone:
        write_notes(home, [one for one in notes if one not in gone])
    return gone


def ask_for(home: Path, name: str, *, anew: bool) -> Path | None:
    """Let the next start go on with a store as it is, or (`anew`) without it: then it is moved away; where it is now.
    The home must be held. Raises NotFound where there is nothing to go on with, StorageDamaged, StorageFailed."""
    if not anew and name != RIGHTS and not _has_content(home / name):
        raise NotFound(f"{name} holds nothing that could be gone on with; begin anew by: skep stores reset {name}")
    inventory = inventory_of(home, name)
    aside = None
    if anew and (home / name).exists():
        aside = _set_aside(home / name)
    inventory.stores.pop(name, None)
    inventory.refused.pop(name, None)
    inventory.asked.append(f"{'reset' if anew else 'accept'} {name}")
    write_inventory(home, inventory)
    return aside


def inventory_of(home: Path, but: str | None = None) -> Inventory:
    """The inventory of a held home, for changing it; one that has none gets one from what is there. `but`: a store that
    is about to be begun anew. Raises StorageDamaged."""
    inventory = read_inventory(home)
    if inventory is None:
        # What lies beside a store says that it existed; from now on that is said by what is listed.
        inventory = new_inventory(is_on_server=False)
        inventory.stores = {store: {} for store in (ACCOUNTS, TWIN) if _must_have_had(home, store)}
        for store in inventory.stores.keys() - {but}:
            if _has_content(home / store):
                put_stamp(home / store, inventory.stamp)
    return inventory


def _has_content(path: Path) -> bool:
    return kind_of(path, None) is FileKind.OURS


def _has_run(home: Path) -> bool:
    return any((home / name).exists() for name in (ACCOUNTS, TWIN, KEYS, HISTORY, GATEWAY_FILE))


def _must_have_had(home: Path, name: str) -> bool:
    """Whether a home without an inventory had this store: what is made after it is there."""
    if name == TWIN:
        return (home / GATEWAY_FILE).exists() or (home / ROW_IDS).exists()
    later = (home / KEYS).glob("token-*.pem"), (home / "audit").glob("*"), home.glob(TWIN), home.glob(GATEWAY_FILE)
    return any(True for found in later for _ in found) or (home / ROW_IDS).exists()


def _set_aside(path: Path) -> Path:
    """Move a file with what SQLite has put beside it; where it is now."""
    number, target = 1, path.with_name(f"{path.name}.set-aside")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.set-aside.{number}")
    for part in ("", "-wal", "-shm"):
        source = path.with_name(path.name + part)
        if source.exists():
            source.rename(target.with_name(target.name + part))
    return target


def _rows(first: int, last: int) -> str:
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _summary(had: Marks | None) -> str:
    """What was in a store, as far as it is known."""
    if not had:
        return ""
    if "accounts" in had:
        return f" ({had['accounts']} accounts were in it)"
    if "things" in had:
        return f" ({had['things']} Things and requests up to number {had['seq']} were in it)"
    if "last" in had:
        return f" ({_rows(had['first'], had['last'])} were in it)"
    return ""
