"""SQLite's write-ahead log, read frame by frame (sqlite.org/walformat.html).

SQLite believes a log up to the first frame that is not what was written. But each frame is checked from the checksum
that stands in the one before it, so those behind a bad one can be told from rubbish too, and are still good.
"""

import struct
from pathlib import Path

_HEAD, _FRAME = struct.Struct(">IIIIIIII"), struct.Struct(">IIIIII")
_MAGIC = (0x377F0682, 0x377F0683)


class Log:
    """The pages that a log holds, as far as they were committed and are what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.page_bytes = 0
        """0 where there is nothing to read."""
        self.bad_frames = 0
        self.places: dict[int, int] = {}
        """Where in the file the newest version of a page begins."""
        if path.exists() and path.stat().st_size > _HEAD.size:
            self._read()

    def _read(self) -> None:
        with self.path.open("rb") as file:
            head = file.read(_HEAD.size)
            magic, _, page_bytes, _, *salts, first, second = _HEAD.unpack(head)
            if magic not in _MAGIC or page_bytes not in PAGE_BYTES:
                return
            order = ">" if magic & 1 else "<"
            self.page_bytes, before, begun = page_bytes, (first, second), dict[int, int]()
            bad = 0
            while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
                number, pages, *frame_salts, first, second = _FRAME.unpack_from(frame)
                checked = _checksum(frame[_FRAME.size :], order, _checksum(frame[:8], order, before))
                before = first, second
                if frame_salts != salts:
                    bad += 1  # of an earlier use of the file, or damaged; only what is followed by good ones counts
                    continue
                if checked != before:
                    bad += 1
                    continue
                self.bad_frames, bad = self.bad_frames + bad, 0
                begun[number] = file.tell() - page_bytes
                if pages:  # the last frame of a commit
                    self.places.update(begun)
                    begun.clear()


PAGE_BYTES = tuple(1 << power for power in range(9, 17))


def _checksum(content: bytes, order: str, before: tuple[int, int]) -> tuple[int, int]:
    first, second = before
    for left, right in struct.iter_unpack(f"{order}II", content):
        first = (first + left + second) & 0xFFFF_FFFF
        second = (second + right + first) & 0xFFFF_FFFF
    return first, second
