"""Writing hot history: what the store's thread does with a group of readings and with old files.

A group is a few statements of many rows and one synced commit. Repeated messages are found here; a row whose id was
given is left out when it is one.
"""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import date
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from things.errors import Invalid
from things.records import Appended, Reading
from twin.history import files, reading
from twin.history.files import DayFile, day_of
from twin.history.recent import MAX_RECENT, Identity, RecentIDs, Series
from twin.writer import is_storage_error, storage_error

_COLUMNS = "row_id, key, created, mid, value, received, quality, td_version, source_time"
_MOST, _MANY = 64, 256
_INSERTS = {
    count: f"INSERT OR IGNORE INTO rows ({_COLUMNS}) VALUES {','.join(['(?,?,?,?,?,?,?,?,?)'] * count)}"
    for count in (*range(1, _MOST + 1), _MANY)
}
"""Statements by number of rows. The driver lets other threads run at every step of a statement and waits for its turn
afterwards; with one row a step (`executemany`) a busy event loop makes that the greater part of a commit."""


class Append(NamedTuple):
    """Readings with the row ids given to them, from `first` on."""

    first: int
    readings: Sequence[Reading]
    is_apart: bool = False
    """They have nothing to do with each other: one that cannot be stored leaves the others."""


Job = Append | Callable[[], Any]
"""Readings to store, or something else to do between two groups."""


class DayWriter:
    """The files of one history and the connection to the newest; everything but reading its fields belongs to the
    thread."""

    def __init__(self, folder: Path, found: list[DayFile], *, durable: bool, stamp: int = 0) -> None:
        self._folder = folder
        self._stamp = stamp
        self._durable = durable
        self.files = found
        """By rising row id; the last one is being written. Replaced, never changed."""
        self.promised = files.promised_row_id(folder)
        """Up to here row ids may be shown before they are committed."""
        # Ids up to the promise may have been seen on rows that were lost; a clean end takes the promise back.
        self.last = max(max((file.last for file in found), default=0), self.promised)
        """The highest row id that is committed."""
        self.gone_created = files.gone_created(folder)
        """The latest `created` of all rows of files that were dropped; None if it was not written down."""
        self._connection: sqlite3.Connection | None = None
        self._keys: dict[Series, int] = {}
        self._recent = RecentIDs()

    @property
    def first(self) -> int:
        """The lowest row id that is still here; one more than `last` when nothing is."""
        return next((file.first for file in self.files if file.last >= file.first), self.last + 1)

    def write(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Carry out a group of jobs, all readings in one transaction; an outcome or an exception for each. Raises what
        makes the store fail."""
        outcomes: list[Any] = [None] * len(jobs)
        appends: list[tuple[int, Append]] = []
        for index, job in enumerate(jobs):
            if isinstance(job, Append):
                appends.append((index, job))
            else:
                outcomes[index] = _attempted(job)
        if appends:
            newest = max((one.received for _, append in appends for one in append.readings), default=0)
            if newest:
                self._recent.turn(newest)
                self._roll(newest)
            self._append_together(appends, outcomes)
        return outcomes

    def drop(self, file: DayFile) -> None:
        """Drop a file that is not written any more."""
        if file in self.files[:-1]:
            self._note_gone(file)
            self.files = [kept for kept in self.files if kept is not file]
            files.remove(file)

    def release(self) -> None:
        """Let go of the file that is written."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def take_back(self, used: int) -> None:
        """After the last write: no id above `used` was shown, so the next start may go on from there."""
        if self.promised > used:
            files.promise_row_id(self._folder, used)

    def _note_gone(self, file: DayFile) -> None:
        """Before a file goes, so that at worst too much is believed gone."""
        if file.last < file.first or file.max_created is None:
            return
        if self.gone_created is None and self.first > 1:
            return  # what went before was not written down, so nothing can be said of all of it
        if self.gone_created is None or file.max_created > self.gone_created:
            files.note_gone_created(self._folder, file.max_created)
            self.gone_created = file.max_created

    def _append_together(self, appends: list[tuple[int, Append]], outcomes: list[Any]) -> None:
        try:
            self._append(appends, outcomes)
        except Exception as error:
            if is_storage_error(error):
                raise
            if len(appends) == 1:
                index, append = appends[0]
                # A time beyond 64 bits, say: nothing of this call is stored.
                outcomes[index] = self._apart(append) if append.is_apart else _unstorable(error)
                return
            for one in appends:
                self._append_together([one], outcomes)

    def _apart(self, append: Append) -> Sequence[Appended]:
        """Store each reading for itself; those that can be."""
        stored: list[Appended] = []
        for row_id, one in enumerate(append.readings, append.first):
            outcomes: list[Any] = [None]
            self._append_together([(0, Append(row_id, (one,)))], outcomes)
            if not isinstance(outcomes[0], Invalid):
                stored += outcomes[0]
        return stored

    def _append(self, appends: list[tuple[int, Append]], outcomes: list[Any]) -> None:
        connection = self._connection
        if connection is None:  # only empty batches so far
            outcomes_of_nothing: Sequence[Appended] = ()
            for index, _ in appends:
                outcomes[index] = outcomes_of_nothing
            return
        group = _Group()
        last = max(append.first + len(append.readings) - 1 for _, append in appends)
        try:
            for index, append in appends:
                outcomes[index] = self._placed(append, group)
            if last > self.promised - files.ROW_ID_BLOCK // 2:
                files.promise_row_id(self._folder, last + files.ROW_ID_BLOCK)
                self.promised = last + files.ROW_ID_BLOCK
            stored = _commit(connection, group)
            repeats = self._repeats(group, connection) if stored < len(group.rows) else {}
        except BaseException:
            self._undo(connection, group)
            raise
        if repeats:
            for index, _ in appends:
                outcomes[index] = [
                    Appended(repeats[one.row_id], True) if one.row_id in repeats else one for one in outcomes[index]
                ]
            for identity, row_id in group.identified:
                self._recent.add(identity, repeats.get(row_id, row_id))
        self.last = max(self.last, last)
        self.files[-1].last = self.last

    def _placed(self, append: Append, group: "_Group") -> Sequence[Appended]:
        keys, rows = self._keys, group.rows  # the one loop that every reading goes through
        row_id = append.first - 1
        placed: list[Appended] = []
        for one in append.readings:
            row_id += 1
            series = (one.thing_id, one.kind, one.name)
            key = keys.get(series) or self._interned(series, group)
            mid = row_id
            if one.message_id is not None:
                mid = _hashed(one.sender, one.message_id)
                identity = (mid, series)
                known = self._recent.find(identity)
                if known is None and len(self.files) > 1:
                    known = self._in_older_file(series, one.created, mid)
                if known is not None:
                    placed.append(Appended(known, True))
                    continue
                self._recent.add(identity, row_id)
                group.identified.append((identity, row_id))
            rows.append(
                (
                    row_id,
                    key,
                    one.created,
                    mid,
                    one.value,
                    one.received,
                    one.quality,
                    one.td_version,
                    one.source_time,
                )
            )
            placed.append(Appended(row_id, False))
        return placed

    def _interned(self, series: Series, group: "_Group") -> int:
        key = self._keys[series] = len(self._keys) + 1
        group.new_series.append((key, *series))
        return key

    def _repeats(self, group: "_Group", connection: sqlite3.Connection) -> dict[int, int]:
        """Rows the unique key refused: their given ids and the ids under which they had been stored before."""
        found: dict[int, int] = {}
        for row in group.rows:
            query = "SELECT row_id FROM rows WHERE key = ? AND created = ? AND mid = ?"
            stored = connection.execute(query, (row[1], row[2], row[3])).fetchone()[0]
            if stored != row[0]:
                found[row[0]] = stored
        return found

    def _in_older_file(self, series: Series, created: int, mid: int) -> int | None:
        for file in reversed(self.files[:-1]):
            if file.max_created is None or not (file.min_created or 0) <= created <= file.max_created:
                continue
            found = reading.find(file.path, series, created, mid)
            if found is not None:
                return found
        return None

    def _undo(self, connection: sqlite3.Connection, group: "_Group") -> None:
        for _, *series in group.new_series:
            del self._keys[series[0], series[1], series[2]]
        for identity, _ in group.identified:
            self._recent.forget(identity)
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _roll(self, received: int) -> None:
        """Make the file of that day the one that is written."""
        day = day_of(received)
        if self.files and (day == self.files[-1].day or _is_day_before(day, self.files[-1].day)):
            if self._connection is None:
                self._open_for_writing()
            return
        self.release()
        if self.files and self.files[-1].last < self.files[-1].first:
            files.remove(self.files[-1])  # a day without a row
            self.files = self.files[:-1]
        elif self.files:
            files.close_span(self.files[-1])
        self.files = [*self.files, files.create(self._folder, day, self.last + 1, stamp=self._stamp)]
        self._open_for_writing()

    def _open_for_writing(self) -> None:
        connection = files.writer(self.files[-1], durable=self._durable)
        self._keys = {
            (thing_id, kind, name): key
            for key, thing_id, kind, name in connection.execute("SELECT key, thing_id, kind, name FROM keys")
        }
        series = {key: one for one, key in self._keys.items()}
        lately = connection.execute(
            "SELECT key, mid, row_id FROM rows WHERE mid < 0 ORDER BY row_id DESC LIMIT ?", (MAX_RECENT,)
        )
        for key, mid, row_id in lately:
            self._recent.add((mid, series[key]), row_id)
        self._connection = connection


class _Group:
    """What one transaction adds."""

    __slots__ = ("identified", "new_series", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.identified: list[tuple[Identity, int]] = []
        self.new_series: list[tuple[int, str, str, str]] = []


def _commit(connection: sqlite3.Connection, group: _Group) -> int:
    """Commit what a group adds, synced; how many of its rows are new."""
    rows, before = group.rows, connection.total_changes
    if len(rows) <= _MOST and not group.new_series:
        # By itself a statement is a transaction: one wait for the loop's turn, where BEGIN and COMMIT add two.
        if rows:
            connection.execute(_INSERTS[len(rows)], list(chain.from_iterable(rows)))
        return connection.total_changes - before
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO keys (key, thing_id, kind, name) VALUES (?,?,?,?)", group.new_series)
    before = connection.total_changes
    first = 0
    while first < len(rows):
        some = rows[first : first + (_MANY if len(rows) - first >= _MANY else _MOST)]
        connection.execute(_INSERTS[len(some)], list(chain.from_iterable(some)))
        first += len(some)
    new = connection.total_changes - before
    connection.execute("COMMIT")
    return new


def _unstorable(error: Exception) -> Invalid:
    return Invalid(f"readings that cannot be stored: {error}")


def _attempted(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:  # keeping house failed; the rows are none the worse
        return storage_error(error, "history")


def _hashed(sender: str, message_id: str) -> int:
    """63 bits of sender and message id, below zero: row ids, which stand in where there is none, are above."""
    return -(int.from_bytes(blake2b(f"{sender}\n{message_id}".encode(), digest_size=8).digest()) >> 1) - 1


def _is_day_before(day: str, current: str) -> bool:
    """Whether a clock set back a little reached into yesterday: then the newer file goes on."""
    return (date.fromisoformat(current) - date.fromisoformat(day)).days == 1
