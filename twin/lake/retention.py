"""Retention: raw readings go by age and by bytes, for all or for single Things and affordances; roll-ups stay.

Before a day's raw readings go they are rolled up, unless that happened already. Data that was never rolled up is
removed only when forced to. Whole days go by forgetting their files; single series by rewriting the day without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from things.durations import window_seconds
from things.errors import Conflict, Invalid
from things.lake import READINGS, ROLLUPS, ROLLUPS_COLUMNS, Commit, Part, Snapshot, day_of
from twin.lake.compaction import read_parts
from twin.lake.manifest import Manifest
from twin.lake.reader import LakeReader, Selection
from twin.lake.tables import DAY_US, arrow_schema, day_start, write_parquet

KEPT_WINDOWS = ("1h",)
"""Windows of the roll-ups that stay when raw readings go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """How long readings stay; None is any Thing or name, for ever, or without bound. The most specific rule that
    matches a series counts, a Thing's before a name's."""

    thing_id: str | None = None
    name: str | None = None
    days: int | None = None
    bytes: int | None = None

    @property
    def is_general(self) -> bool:
        return self.thing_id is None and self.name is None

    def matches(self, thing_id: str, name: str) -> bool:
        return self.thing_id in (None, thing_id) and self.name in (None, name)


class Retained(NamedTuple):
    """What went, or would go."""

    days: list[str]
    rows: int
    files: int
    rolled_up: list[str]


class Retention:
    """Applies rules to one gateway's readings. Only the one writer may."""

    def __init__(
        self, manifest: Manifest, rules: Sequence[RetentionRule], *, windows: Sequence[str] = KEPT_WINDOWS
    ) -> None:
        general = [rule for rule in rules if rule.is_general]
        if len(general) > 1:
            raise Invalid("two retention rules are for everything; one of them can have no effect")
        for rule in rules:
            if (rule.days is not None and rule.days < 1) or (rule.bytes is not None and rule.bytes < 0):
                raise Invalid("retention is at least one day, and bytes are not negative")
        self.manifest = manifest
        self.place = manifest.place
        self._general = general[0] if general else RetentionRule()
        self._special = sorted(
            (rule for rule in rules if not rule.is_general),
            key=lambda rule: (rule.thing_id is None, rule.name is None),
        )
        self._windows = tuple(windows)

    def apply(self, *, force: bool = False, dry_run: bool = False) -> Retained:
        """Remove what the rules no longer keep. Raises Conflict for data that was never rolled up when no window is
        kept, unless `force`."""
        base = self.manifest.snapshot()
        due = self._due(base)
        if not due:
            return Retained([], 0, 0, [])
        rolled = {part.day for part in base.parts if part.table == ROLLUPS}
        missing = sorted(day for day in due if day not in rolled)
        if missing and not self._windows and not force:
            raise Conflict(
                f"readings of {missing[0]}{f' and {len(missing) - 1} more days' if len(missing) > 1 else ''} were never"
                " rolled up; roll them up first, or remove them with --force"
            )
        if dry_run:
            return Retained(sorted(due), sum(self._rows_gone(base, due).values()), 0, missing if self._windows else [])
        new: list[Part] = []
        if self._windows and not force:
            reader = LakeReader(self.manifest)
            new.extend(part for day in sorted(due) for part in self._rolled_up(reader, base, day))
        kept, replaced, gone = self._without(base, due)
        commit = Commit(
            gateway=base.gateway,
            seq=base.seq + 1,
            first=base.sealed + 1,
            last=base.sealed,
            parts=(*new, *kept),
            replaces=tuple(part.path for part in replaced),
        )
        if new or kept or replaced:
            self.manifest.commit(base, commit)
        return Retained(sorted(due), gone, len(replaced), sorted({part.day for part in new}))

    def _due(self, snapshot: Snapshot) -> dict[str, Sequence[tuple[RetentionRule, bool]]]:
        """Days from which something goes: the rules to look at there, each with whether its readings go."""
        today = date.fromisoformat(day_of(self.manifest.now()))
        by_day: dict[str, list[Part]] = {}
        for part in snapshot.parts:
            if part.table == READINGS:
                by_day.setdefault(part.day, []).append(part)
        over = self._over_budget(by_day)
        due: dict[str, Sequence[tuple[RetentionRule, bool]]] = {}
        for day in by_day:
            age = (today - date.fromisoformat(day)).days

            def goes(rule: RetentionRule, age: int = age, day: str = day) -> bool:
                return (rule.days is not None and age > rule.days) or day in over.get(rule, ())

            verdicts = [(rule, goes(rule)) for rule in (*self._special, self._general)]
            if any(verdict for _, verdict in verdicts):
                due[day] = verdicts
        return due

    def _over_budget(self, by_day: Mapping[str, Sequence[Part]]) -> dict[RetentionRule, set[str]]:
        """For rules with a budget in bytes, the oldest days that do not fit. A series' bytes are its share of rows."""
        over: dict[RetentionRule, set[str]] = {}
        sizes = {file.path: file.size for file in self.place.walk(f"{READINGS}/gateway={self.manifest.gateway}")}
        for rule in (*self._special, self._general):
            if rule.bytes is None:
                continue
            left = float(rule.bytes)
            for day in sorted(by_day, reverse=True):
                for part in by_day[day]:
                    left -= sizes.get(part.path, 0) * (1.0 if rule.is_general else self._share(part, rule))
                if left < 0:
                    over.setdefault(rule, set()).add(day)
        return over

    def _share(self, part: Part, rule: RetentionRule) -> float:
        table = read_parts(self.manifest, [part]).select(["thing_id", "name"])
        return float(pc.sum(_matching(table, rule)).as_py() or 0) / max(part.rows, 1)

    def _rows_gone(self, snapshot: Snapshot, due: Mapping[str, Sequence[tuple[RetentionRule, bool]]]) -> dict[str, int]:
        gone: dict[str, int] = {}
        for part in snapshot.parts:
            if part.table == READINGS and part.day in due:
                gone[part.path] = part.rows - self._kept_rows(part, due[part.day]).num_rows
        return gone

    def _without(
        self, base: Snapshot, due: Mapping[str, Sequence[tuple[RetentionRule, bool]]]
    ) -> tuple[list[Part], list[Part], int]:
        """(files that stay in place of others, files that go, rows that go)."""
        kept: list[Part] = []
        replaced: list[Part] = []
        gone = 0
        for part in base.parts:
            if part.table != READINGS or part.day not in due:
                continue
            rest = self._kept_rows(part, due[part.day])
            if rest.num_rows == part.rows:
                continue
            replaced.append(part)
            gone += part.rows - rest.num_rows
            if rest.num_rows:
                folder, _, name = part.path.rpartition("/")
                path = f"{folder}/{name.rpartition('-')[0]}-{base.seq + 1:012d}.parquet"
                written = self.place.write(path, lambda file, rest=rest: write_parquet(rest, file))  # type: ignore[misc]
                kept.append(written.part(rows=rest.num_rows, first=part.first, last=part.last))
        return kept, replaced, gone

    def _kept_rows(self, part: Part, verdicts: Sequence[tuple[RetentionRule, bool]]) -> pa.Table:
        if all(verdict for _, verdict in verdicts):
            return pa.table({})
        table = read_parts(self.manifest, [part])
        stays: Any = None
        decided: Any = None
        for rule, goes in verdicts:
            matches = _matching(table, rule)
            mine = matches if decided is None else pc.and_not(matches, decided)
            decided = matches if decided is None else pc.or_(decided, matches)
            keep = pc.and_(mine, not goes)
            stays = keep if stays is None else pc.or_(stays, keep)
        return table.filter(stays)

    def _rolled_up(self, reader: LakeReader, base: Snapshot, day: str) -> list[Part]:
        """Roll-ups of a day that no roll-up covers yet: none, or one file a window."""
        raw = [part for part in base.parts if part.table == READINGS and part.day == day]
        first, last = min(part.first for part in raw), max(part.last for part in raw)
        start = day_start(day)
        made = []
        for window in self._windows:
            folder = f"{ROLLUPS}/{window}/gateway={self.manifest.gateway}/day={day}"
            if any(part.path.startswith(f"{folder}/") and part.last >= last for part in base.parts):
                continue
            rows = reader.rollup(Selection(start=start, end=start + DAY_US), round(window_seconds(window) * 1_000_000))
            table = pa.Table.from_pylist(rows, schema=arrow_schema(ROLLUPS_COLUMNS, self.manifest.gateway))
            path = f"{folder}/part-{first:015d}-{last:015d}-{base.seq + 1:012d}.parquet"
            written = self.place.write(path, lambda file, table=table: write_parquet(table, file))  # type: ignore[misc]
            made.append(written.part(rows=table.num_rows, first=first, last=last))
        return made


def _matching(table: pa.Table, rule: RetentionRule) -> Any:
    matches: Any = pa.repeat(True, table.num_rows)
    for column, wanted in (("thing_id", rule.thing_id), ("name", rule.name)):
        if wanted is not None:
            matches = pc.and_(matches, pc.equal(table[column], wanted))
    return matches
