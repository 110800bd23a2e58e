"""Checksums of a file's blocks, and a file that gives out nothing that does not agree with them.

A part of the lake carries the CRC-32 of each of its blocks in the manifest. Whoever reads it, page by page or whole,
compares what came with them first, so that the cost of a check follows what is read and not how large the file is.
"""

import hashlib
import io
from collections.abc import Callable
from typing import Any, Protocol
from zlib import crc32

from things.errors import StorageDamaged
from things.lake import Part

BLOCK = 256 * 1024
"""Bytes under one checksum: about what one column of a row group takes."""
_DIGITS = 8


class Content(Protocol):
    """The bytes of one file, wherever it lies."""

    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


class Opened(Protocol):
    """A file that is open to be read at any place, as pyarrow's are."""

    def size(self) -> int: ...

    def read_at(self, nbytes: int, offset: int) -> bytes: ...


class OpenedContent:
    """The bytes of a file that stays open."""

    def __init__(self, file: Opened) -> None:
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(length, offset)


class BlockSums:
    """The checksums of bytes that come in pieces."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._open = 0
        self._filled = 0

    def update(self, data: Any) -> None:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            piece = view[: BLOCK - self._filled]
            self._open = crc32(piece, self._open)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK:
                self._whole.append(f"{self._open:08x}")
                self._open = self._filled = 0

    def hexdigest(self) -> str:
        """Eight digits a block, the last of which may be shorter."""
        return "".join(self._whole) + (f"{self._open:08x}" if self._filled else "")


class PartFile(io.RawIOBase):
    """A part as a binary file to read from. Raises StorageDamaged, naming the part, for bytes that are not those that
    were written; `fault` keeps it, since not every reader hands an exception on."""

    def __init__(self, part: Part, content: Callable[[], Content]) -> None:
        """`content` opens the file, when the first bytes are asked for."""
        self.part = part
        self.fault: Exception | None = None
        self._open = content
        self._opened: Content | None = None
        self._sums = part.sums
        self._size = 0
        self._at = 0
        self._held = (0, b"")
        """Where the last blocks that were read begin, and what is in them: footers are read in small steps."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._content()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """It stays usable: a data set is read more than once."""

    def read(self, size: int | None = -1) -> bytes:
        content = self._content()
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        data = self._checked(content, self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def _checked(self, content: Content, start: int, end: int) -> bytes:
        first, held = self._held
        if not first <= start <= end <= first + len(held):
            first = start - start % BLOCK
            held = self._fetched(content, first, min(self._size, end + -end % BLOCK) - first)
            view = memoryview(held)
            for number in range(0, len(held), BLOCK):
                self._compare((first + number) // BLOCK, view[number : number + BLOCK])
            self._held = first, held if len(held) <= 2 * BLOCK else b""
        return held[start - first : end - first]

    def _compare(self, number: int, data: memoryview) -> None:
        if self._sums[number * _DIGITS : (number + 1) * _DIGITS] != f"{crc32(data):08x}":
            raise self._damaged(f"the block at byte {number * BLOCK} is not what was written")

    def _content(self) -> Content:
        if self._opened is None:
            try:
                content = self._open()
                self._size = content.size()
            except OSError as error:
                raise self._damaged(str(error)) from error
            if not self._sums:
                self._sums = self._compared_whole(content)
            if len(self._sums) != -(-self._size // BLOCK) * _DIGITS:
                raise self._damaged(f"it is {self._size} bytes long")
            self._opened = content
        return self._opened

    def _compared_whole(self, content: Content) -> str:
        """Of a part that was written before blocks had checksums: its hash says whether it is whole."""
        data = self._fetched(content, 0, self._size)
        if hashlib.sha256(data).hexdigest() != self.part.sha256:
            raise self._damaged("the content is not what was written")
        sums = BlockSums()
        sums.update(data)
        return sums.hexdigest()

    def _fetched(self, content: Content, start: int, length: int) -> bytes:
        try:
            data = content.read_at(start, length)
        except OSError as error:
            raise self._damaged(str(error)) from error
        if len(data) != length:
            raise self._damaged("it is shorter than it was")
        return data

    def _damaged(self, why: str) -> StorageDamaged:
        part = self.part
        fault = StorageDamaged(f"{part.path}, rows {part.first} to {part.last}, cannot be read: {why}")
        self.fault = fault
        return fault
