"""The pages of a damaged SQLite file, and the rows that can be read from them without trusting the rest
(sqlite.org/fileformat2.html).

Tables are walked from their roots; a page or a row that is not what it should be is left out and counted. Rows of a
table whose inner pages are damaged are found by looking at every page that nothing leads to. Pages on the list of free
ones hold rows that were deleted: they are never read, and where that list is not whole, nothing is taken that no table
leads to.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gateway.repair.logs import PAGE_BYTES, Log

Field = None | int | float | str | bytes
_INNER, _LEAF = 5, 13
_MAX_DEPTH = 20


class Found(NamedTuple):
    """A row of a table: its rowid, and its columns as they are stored (an integer primary key is None there)."""

    rowid: int
    fields: tuple[Field, ...]


class _Bad(Exception):
    """Bytes that are not what the format says."""


class Pages:
    """The pages of one file with its log, as a file handle that is open for as long as this is."""

    def __init__(self, path: Path, log: Log) -> None:
        self._file = path.open("rb")
        head = self._file.read(100)
        said = int.from_bytes(head[16:18])
        sizes = (log.page_bytes, 65536 if said == 1 else said, 4096)
        self.size = next(size for size in sizes if size in PAGE_BYTES)
        self._log, self._log_file = log, log.path.open("rb") if log.places else None
        self.count = max([path.stat().st_size // self.size, *log.places])
        self.bad_pages: set[int] = set()
        self.bad_rows = 0
        self._used: set[int] = set()
        self._free = self._free_pages()

    def close(self) -> None:
        self._file.close()
        if self._log_file is not None:
            self._log_file.close()

    def roots(self) -> dict[str, int]:
        """The root pages of the tables that the file still names."""
        found = {}
        for row in self.rows(1):
            match row.fields:
                case ("table", str(name), str(), int(root), *_) if 1 < root <= self.count:
                    found[name] = root
        return found

    def rows(self, root: int) -> Iterator[Found]:
        """The rows of the table that begins at a page, as far as its pages are good."""
        yield from self._walk(root, 0)

    def stray(self) -> Iterator[list[Found]]:
        """The rows, page by page, of pages with rows that no table that was read leads to."""
        if self._free is None:
            return
        for number in range(1, self.count + 1):
            if number in self._used or number in self._free:
                continue
            try:
                page = self._page(number)
            except _Bad:
                continue
            if page[0] == _LEAF:
                self._used.add(number)
                yield list(self._leaf(number, page))

    def _walk(self, number: int, depth: int) -> Iterator[Found]:
        if number in self._used or depth > _MAX_DEPTH or (self._free is not None and number in self._free):
            self.bad_pages.add(number)
            return
        try:
            page = self._page(number)
        except _Bad:
            self.bad_pages.add(number)
            return
        at = 100 if number == 1 else 0
        if page[at] == _LEAF:
            self._used.add(number)
            yield from self._leaf(number, page)
        elif page[at] == _INNER:
            self._used.add(number)
            for child in self._children(number, page, at):
                yield from self._walk(child, depth + 1)
        else:
            self.bad_pages.add(number)

    def _children(self, number: int, page: bytes, at: int) -> Iterator[int]:
        for place in self._cells(number, page, at + 12, at):
            yield int.from_bytes(page[place : place + 4])
        yield int.from_bytes(page[at + 8 : at + 12])

    def _leaf(self, number: int, page: bytes) -> Iterator[Found]:
        at = 100 if number == 1 else 0
        for place in self._cells(number, page, at + 8, at):
            try:
                yield self._row(page, place)
            except (_Bad, UnicodeDecodeError, IndexError, struct.error):
                self.bad_rows += 1

    def _cells(self, number: int, page: bytes, begin: int, at: int) -> Iterator[int]:
        count = int.from_bytes(page[at + 3 : at + 5])
        if begin + 2 * count > len(page):
            self.bad_pages.add(number)
            count = (len(page) - begin) // 2
        for index in range(count):
            place = int.from_bytes(page[begin + 2 * index : begin + 2 * index + 2])
            if not begin + 2 * count <= place < len(page) - 3:
                self.bad_pages.add(number)
                continue
            yield place

    def _row(self, page: bytes, place: int) -> Found:
        length, place = _varint(page, place)
        rowid, place = _varint(page, place)
        if rowid >= 1 << 63:
            rowid -= 1 << 64
        if length > self.count * self.size:
            raise _Bad
        whole = self.size - 35
        local = length
        if length > whole:
            least = (self.size - 12) * 32 // 255 - 23
            kept = least + (length - least) % (self.size - 4)
            local = kept if kept <= whole else least
        content = page[place : place + local]
        if local < length:
            content += self._overflow(int.from_bytes(page[place + local : place + local + 4]), length - local)
        if len(content) != length:
            raise _Bad
        return Found(rowid, _fields(content))

    def _overflow(self, number: int, left: int) -> bytes:
        pieces, seen = [], set[int]()
        while left > 0:
            if number in seen or number in self._used or (self._free is not None and number in self._free):
                raise _Bad
            seen.add(number)
            page = self._page(number)
            pieces.append(page[4 : 4 + left])
            left -= len(pieces[-1])
            number = int.from_bytes(page[:4])
        return b"".join(pieces)

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise _Bad
        if self._log_file is not None and number in self._log.places:
            self._log_file.seek(self._log.places[number])
            return self._log_file.read(self.size)
        self._file.seek((number - 1) * self.size)
        page = self._file.read(self.size)
        if len(page) < self.size:
            raise _Bad
        return page

    def _free_pages(self) -> set[int] | None:
        """The pages that hold nothing any more; None where their list is not whole."""
        free = set[int]()
        try:
            head = self._page(1)
            trunk, count = int.from_bytes(head[32:36]), int.from_bytes(head[36:40])
            while trunk:
                if trunk in free:
                    return None
                free.add(trunk)
                page = self._page(trunk)
                leaves = int.from_bytes(page[4:8])
                if 8 + 4 * leaves > self.size:
                    return None
                free.update(struct.unpack_from(f">{leaves}I", page, 8))
                trunk = int.from_bytes(page[:4])
        except _Bad:
            return None
        return free if len(free) == count else None


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for step in range(9):
        byte = content[place + step]
        if step == 8:
            return value << 8 | byte, place + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + step + 1
    raise _Bad


def _fields(content: bytes) -> tuple[Field, ...]:
    head, place = _varint(content, 0)
    if head > len(content):
        raise _Bad
    kinds = []
    while place < head:
        kind, place = _varint(content, place)
        kinds.append(kind)
    if place != head:
        raise _Bad
    fields: list[Field] = []
    for kind in kinds:
        length = _length(kind)
        piece = content[place : place + length]
        if len(piece) != length:
            raise _Bad
        fields.append(_field(kind, piece))
        place += length
    if place != len(content):
        raise _Bad
    return tuple(fields)


_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)


def _length(kind: int) -> int:
    if kind in (10, 11):
        raise _Bad
    return _LENGTHS[kind] if kind < len(_LENGTHS) else (kind - 12) // 2


def _field(kind: int, piece: bytes) -> Field:
    match kind:
        case 0:
            return None
        case 7:
            return float(struct.unpack(">d", piece)[0])
        case 8 | 9:
            return kind - 8
        case _ if kind < 7:
            return int.from_bytes(piece, signed=True)
        case _ if kind % 2:
            return piece.decode("utf-8")
        case _:
            return piece
