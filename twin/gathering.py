"""How long the first job of a group commit waits for others.

A commit costs the same for one row as for fifty, so at low and middle rates it is worth waiting a moment for more. But
who publishes one message after the other, each after the acknowledgement of the last, would only become slower. So the
size at which a group is enough is learned: a group now and then waits the whole moment (a probe); where more come in
that time than had come before, the next groups wait for as many, and where nobody does, none waits. Ten clients that
each wait for their acknowledgement make groups of ten that are complete at once, and cost nobody a moment. At high
rates groups fill while the one before is being committed, and nothing waits.
"""

from typing import Final

MANY: Final = 64
"""Jobs that make a commit cheap enough: groups that grow so large by themselves wait for nothing."""
FEW: Final = 16
"""Once groups become smaller than this again, they wait again."""
RAREST_PROBE: Final = 256
"""Groups between two probes that were in vain."""
OVERLAP: Final = 8
"""So many groups of one job count as one with jobs that came during the commit before: somebody else is there."""


class Gathering:
    """What one thread's groups have taught; asked once for each group."""

    __slots__ = ("_between_probes", "_is_busy", "_is_probe", "_max_wait_s", "_until_probe", "_usual", "enough")

    def __init__(self, max_wait_s: float) -> None:
        """`max_wait_s` is the longest that a job waits for others; 0: none ever does."""
        self._max_wait_s = max_wait_s
        self.enough = 1
        """Jobs with which the group that is gathered now is complete."""
        self._usual = 1
        """As many as came together lately."""
        self._is_probe = False
        self._until_probe = self._between_probes = 1
        self._is_busy = False
        """Groups grow by themselves."""

    def begin(self) -> float:
        """A group has its first job: the seconds for which it may wait for `enough`."""
        if not self._max_wait_s or self._is_busy:
            self.enough = 1
            return 0.0
        self._until_probe -= 1
        self._is_probe = self._until_probe <= 0
        self.enough = MANY if self._is_probe else self._usual
        return self._max_wait_s if self.enough > 1 else 0.0

    def handed_over(self, count: int) -> None:
        """A group ends with so many jobs, because they were enough or its time was over."""
        usual = self._usual
        if self._is_busy or not self._max_wait_s:
            return
        if self._is_probe:
            if count > usual + usual // 4:
                self._between_probes = 1
            else:
                self._between_probes = min(2 * self._between_probes, RAREST_PROBE)
            self._usual = min(count, MANY)
            self._until_probe = self._between_probes
        elif count > usual:
            self._usual, self._until_probe = min(count, MANY), 1
        elif count < usual:
            # They did not all come: fewer clients, or a slower rate.
            self._usual = max(count, usual - max(usual // 8, 1))
        self._is_busy = self._usual >= MANY

    def committed(self, count: int) -> None:
        """So many jobs shared a commit, whether they were handed over together or came during the last one."""
        if self._is_busy:
            if count < FEW:
                self._is_busy, self._usual, self._until_probe = False, FEW, 1
        elif count > self._usual:
            self._until_probe -= OVERLAP
