"""Maps that keep at most a number of entries.

`Bounded` is for what can be worked out again, `Recent` for what is lost when it goes.
"""

import random
from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict of at most `most` entries: a new key over that takes the place of one chosen at random.

    Random replacement needs no bookkeeping when an entry is read, and degrades gently: keys that come in turn, one more
    than fit, miss now and then, where dropping the oldest would miss every time.
    """

    __slots__ = ("_keys", "most")

    def __init__(self, most: int) -> None:
        super().__init__()
        if most < 1:
            raise ValueError("a map needs room for one entry")
        self.most = most
        self._keys: list[K] = []
        """Every key that is here, and those removed since whose place is still free."""

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            if len(self._keys) < self.most:
                self._keys.append(key)
            else:
                # The choice is about cost only: no secret hangs on it.
                place = random.randrange(len(self._keys))
                super().pop(self._keys[place], None)
                self._keys[place] = key
        super().__setitem__(key, value)

    def discard_one(self) -> tuple[K, V]:
        """Remove an entry chosen at random, and return it; KeyError if there is none."""
        while self._keys:
            place = random.randrange(len(self._keys))
            key, self._keys[place] = self._keys[place], self._keys[-1]
            self._keys.pop()
            if key in self:
                return key, super().pop(key)
        raise KeyError("the map is empty")

    def clear(self) -> None:
        super().clear()
        self._keys.clear()


class Recent(OrderedDict[K, V]):
    """A dict of at most `most` entries, in the order in which they were set: the one set longest ago goes first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        if most < 1:
            raise ValueError("a map needs room for one entry")
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)
