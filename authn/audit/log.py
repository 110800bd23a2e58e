"""The writing end of the audit log.

`record` never blocks: acts are queued in order, and one thread numbers, signs, writes and syncs them in groups, at most
five times a second unless somebody waits. What `flush` has waited for is on disk. From time to time, and at the end,
witnesses are told how far the log has come.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from authn.audit.acts import Class, class_of, document
from authn.audit.anchors import Anchor, Anchoring, HeadFile, Witness, anchor_line
from authn.audit.budget import TOLD_EVERY_S, Budgets
from authn.audit.chain import Chain, Head, folder_of
from authn.audit.reading import read
from authn.audit.signing import Signer
from authn.audit.verification import Verdict, verify
from things.times import rfc3339

MAX_QUEUED = 10_000
GATHER_S = 0.2
"""How long acts lie until they are written together: each sync holds up the commits of all other stores."""
ANCHOR_S = 60.0
BREATH_S = 0.01
"""A pause for every thousand lines that are checked at leisure."""

log = logging.getLogger(__name__)


class _ClosedMeanwhile(Exception):
    pass


class Audit:
    """Opened once per process. On overflow acts are dropped, counted, and the gap is recorded."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], int],
        *,
        keys: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` in µs UTC; the signing key and the head are in `keys`. Raises ConfigInvalid."""
        self._folder = folder
        self._clock = clock
        self._monotonic = monotonic
        self._signer = Signer.of(keys)
        self._head_file = HeadFile(keys / "audit-head.json")
        self._witnesses: Sequence[Witness] = (self._head_file,)
        self._gateway = ""
        self._budgets = Budgets(monotonic)
        self._queue: deque[tuple[int, dict[str, object]]] = deque()
        self._wake = threading.Condition()
        self._taken = 0
        self._dropped = 0
        self._stopped = False
        self._awaited = 0
        self._anchor_s = ANCHOR_S
        self._anchored = monotonic()
        self._anchoring: Anchoring | None = None
        self._unwitnessed: str | None = None
        self.failed = False
        """The last attempt to write failed (full disk); acts wait in the queue and are tried again."""
        self.found: str | None = None
        """What was missing or changed when the log was opened."""
        self._chains = {class_: Chain(folder_of(folder, class_), class_, self._signer) for class_ in Class}
        stated = [chain.statement for chain in self._chains.values() if chain.statement is not None]
        self._log_id = stated[-1].log if stated else secrets.token_hex(8)
        self._seq = max((chain.head.seq for chain in self._chains.values() if chain.head), default=0)
        self._witnessed: Mapping[Class, Head] = self._heads()
        self._restored = False
        self._began = False
        """Every class is to have its first line, also those of which no act came yet."""
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """What somebody should look after."""
        if self.failed:
            return "the audit log cannot be written"
        if self.found is not None:
            return f"the audit log is not as it was left: {self.found}; see: skep audit verify"
        return f"a witness of the audit log {self._unwitnessed}" if self._unwitnessed else None

    @property
    def key(self) -> str:
        """The public key of what is written now."""
        return self._signer.public

    def anchor_to(
        self, witnesses: Sequence[Witness], *, gateway: str, every_s: float = ANCHOR_S, restored: bool = False
    ) -> None:
        """From now on tell these witnesses too; `gateway` names us there. Look whether the log is as they know it,
        unless it was `restored` from a backup: then it goes on under a new id. Blocks briefly; called once, before
        anything is recorded."""
        self._gateway, self._anchor_s, self._restored = gateway, every_s, restored
        if restored:
            self._log_id = secrets.token_hex(8)
        else:
            self._look(witnesses)
        self._witnesses = (self._head_file, *witnesses)
        with self._wake:
            self._began = True
            self._wake.notify_all()

    def record(
        self,
        act: str,
        *,
        by: str,
        target: str = "",
        outcome: str = "ok",
        source: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Note an act: what, by whom, upon what, how it ended. Over the budget of whoever acts it is counted only."""
        with self._wake:
            # First: a flood costs no more than to be counted.
            omitted = self._budgets.admits(class_of(act, outcome), act, by, outcome, source)
            if omitted is None:
                return
            line = document(
                act, at=self._clock(), by=by, target=target, outcome=outcome, source=source, details=details
            )
            if omitted:
                line["omitted"] = omitted
            self._put(line)

    @contextmanager
    def recording(
        self, act: str, *, by: str, target: str = "", details: Mapping[str, object] | None = None
    ) -> Iterator[None]:
        """Note an act that takes effect even if storing it fails, as the block does then."""
        outcome = "not stored"
        try:
            yield
            outcome = "ok"
        finally:
            self.record(act, by=by, target=target, outcome=outcome, details=details)

    async def flush(self, timeout_s: float = 10) -> None:
        """Return when everything recorded so far is on disk; raises TimeoutError."""
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(None, self._wait, timeout_s), timeout_s + 1)

    def close(self) -> None:
        """Write what is queued, tell the witnesses, and stop."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        self._thread.join(timeout=10)
        if self._anchoring is not None:
            self._anchoring.close()

    def verify(self) -> Verdict:
        """Check all chains as they are on disk, against all witnesses."""
        return self._verified(None)

    def check(self) -> None:
        """The same at leisure, until `close`; what is found stands in `problem` and in the log."""
        try:
            verdict = self._verified(self._breathe)
        except _ClosedMeanwhile:
            return
        if not verdict.intact and self.found is None:
            self._note_found(f"{verdict.file} line {verdict.line} " if verdict.file else "", verdict.reason or "")

    def read(self, *, after: int | None, limit: int, class_: Class | None = None) -> list[dict[str, object]]:
        """Acts that are on disk."""
        return read(self._folder, after=after, limit=limit, class_=class_)

    # ------------------------------------------------------------ private

    def _verified(self, pause: Callable[[], None] | None) -> Verdict:
        anchors: list[Anchor] = []
        notes: list[str] = []
        for witness in self._witnesses:
            try:
                anchors += witness.anchors()
            except OSError as error:
                notes.append(f"{witness.name} cannot be read: {error}")
        return verify(self._folder, key=self.key, gateway=self._gateway, anchors=anchors, notes=notes, pause=pause)

    def _breathe(self) -> None:
        with self._wake:
            if self._wake.wait_for(lambda: self._stopped, BREATH_S):
                raise _ClosedMeanwhile

    def _note_found(self, where: str, what: str) -> None:
        self.found = f"{where}{what}"
        log.error("the audit log is not as it was left", extra={"detail": self.found})
        self.record("audit-broken", by="skep", outcome="found", details={"detail": self.found})

    def _put(self, line: dict[str, object]) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._dropped += 1
            return
        self._taken += 1
        self._queue.append((self._taken, line))
        if len(self._queue) == 1:
            self._wake.notify_all()

    def _wait(self, timeout_s: float) -> None:
        with self._wake:
            wanted = self._taken
            self._awaited += 1
            self._wake.notify_all()
            try:
                if not self._wake.wait_for(lambda: not self._queue or self._queue[0][0] > wanted, timeout_s):
                    raise TimeoutError("the audit log could not be written in time")
            finally:
                self._awaited -= 1

    def _look(self, witnesses: Sequence[Witness]) -> None:
        """Whether the last line that each witness was told of is still here."""
        for witness in (self._head_file, *witnesses):
            try:
                known = [one for one in witness.anchors() if one.gateway in ("", self._gateway)]
            except OSError as error:
                self._unwitnessed = f"cannot be read: {witness.name}"
                log.warning("a witness cannot be read", extra={"witness": witness.name, "detail": str(error)})
                continue
            if not known:
                continue
            latest = known[-1]
            gone = [class_ for class_, head in latest.heads.items() if not self._chains[class_].holds(head)]
            if gone:
                self._note_found("", f"{', '.join(gone)} lacks what {witness.name} was told of at {latest.at}")
                return

    def _heads(self) -> Mapping[Class, Head]:
        return {class_: chain.head for class_, chain in self._chains.items() if chain.head is not None}

    def _write_all(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stopped or self._is_unbegun(), self._pause_s())
                self._wake.wait_for(lambda: self._awaited or self._stopped, GATHER_S if self._queue else 0)
                for class_, (act, who, outcome), acts in self._budgets.due(everything=self._stopped):
                    self._put(self._left_out(class_, act, who, outcome, acts))
                if self._dropped:
                    self._taken += 1
                    lost = document("audit-gap", at=self._clock(), by="skep", outcome="lost",
                                    details={"acts": self._dropped})  # fmt: skip
                    self._queue.append((self._taken, lost))
                    self._dropped = 0
                group, stopped = list(self._queue), self._stopped
            failed = not self._written(group)
            self._anchor(now=stopped)
            if stopped and (failed or not self._queue):
                return
            if failed:
                with self._wake:
                    self._wake.wait_for(lambda: self._stopped, 1.0)

    def _is_unbegun(self) -> bool:
        return self._began and any(
            chain.statement is None or (chain.statement.log, chain.statement.key) != (self._log_id, self.key)
            for chain in self._chains.values()
        )

    def _pause_s(self) -> float | None:
        """How long there is nothing to do unless an act comes."""
        pauses = [TOLD_EVERY_S] if self._budgets.is_owing else []
        if self._witnessed != self._heads():
            pauses.append(max(0.0, self._anchored + self._anchor_s - self._monotonic()))
        return min(pauses, default=None)

    def _written(self, group: Sequence[tuple[int, dict[str, object]]]) -> bool:
        """Write acts, class by class; False if not all could be: they stay."""
        acts: dict[Class, list[dict[str, object]]] = {class_: [] for class_ in Class}
        for _, line in group:
            acts[Class(str(line["class"]))].append(line)
        begun = self._is_unbegun()
        done: set[str] = set()
        failure: OSError | None = None
        for class_, lines in acts.items():
            if not lines and not begun:
                continue
            try:
                self._seq = self._chains[class_].append(
                    lines, self._seq + 1, at=rfc3339(self._clock()), log_id=self._log_id, restored=self._restored
                ) - 1  # fmt: skip
            except OSError as error:
                failure = error
            else:
                done.add(class_)
        if failure is not None and not self.failed:
            log.error("the audit log cannot be written; acts wait in memory", extra={"detail": str(failure)})
        self.failed = failure is not None
        with self._wake:
            if group:
                last = group[-1][0]
                kept = [item for item in self._queue if item[0] > last or item[1]["class"] not in done]
                self._queue.clear()
                self._queue.extend(kept)
            self._wake.notify_all()
        return failure is None

    def _anchor(self, *, now: bool) -> None:
        heads = self._heads()
        if not self._gateway or heads == self._witnessed:
            return
        if not now and self._monotonic() < self._anchored + self._anchor_s:
            return
        if self._anchoring is None:
            self._anchoring = Anchoring(self._witnesses, self._said)
        self._anchored, self._witnessed = self._monotonic(), heads
        self._anchoring.tell(
            anchor_line(self._signer, gateway=self._gateway, at=self._clock(), log_id=self._log_id, heads=heads)
        )

    def _said(self, unwitnessed: str | None) -> None:
        self._unwitnessed = unwitnessed

    def _left_out(self, class_: Class, act: str, who: str, outcome: str, acts: int) -> dict[str, object]:
        line = document(act, at=self._clock(), by="?" if class_ is Class.REFUSALS else who, outcome=outcome,
                        source=who if class_ is Class.REFUSALS else None)  # fmt: skip
        return {**line, "omitted": acts}
