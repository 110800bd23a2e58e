"""Which Things have a title that contains a text, whatever the case: all titles as one text to look through at once."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence


class Titles:
    """The titles at one moment."""

    def __init__(self, titles: Iterable[tuple[str, str]]) -> None:
        """`titles` are pairs of thing id and title."""
        ids: list[str] = []
        texts: list[str] = []
        starts = array("Q")
        length = 0
        for thing_id, title in titles:
            text = title.casefold()
            ids.append(thing_id)
            texts.append(text)
            starts.append(length)
            length += len(text) + 1
        self._ids: Sequence[str] = ids
        self._starts = starts
        self._text = "\n".join(texts)

    def containing(self, wanted: str) -> Iterator[str]:
        """The Things whose title contains the text, and perhaps one before which it runs over the end of a title."""
        wanted = wanted.casefold()
        at = self._text.find(wanted) if self._ids else -1
        while at >= 0:
            index = bisect_right(self._starts, at) - 1
            yield self._ids[index]
            if index + 1 == len(self._ids):
                return
            at = self._text.find(wanted, self._starts[index + 1])
