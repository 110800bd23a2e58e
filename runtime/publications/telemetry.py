"""Events and property values: stored first, then the latest value, then everyone who asked for it.

The history row is the commit: who publishes is answered and who subscribed is told after it. A publication without
guarantee (all are, where the configuration says that history is not durable) waits for no commit: it gets its row id at
once and is told at once, unless one that came before still waits, which it must not overtake.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runtime.metrics import Metrics
from runtime.ports import (
    Appended,
    BatchResult,
    Directory,
    Entry,
    History,
    Publication,
    Reading,
    Rejection,
    Value,
    ValueStore,
)
from things.addresses import Kind, parsed_twin
from things.delivery import DeliveryStatus, State
from things.errors import SkepError, UnknownThing
from things.jsontext import encode
from things.lateness import TRUST_WINDOW_US
from things.messages import Message, Operation

log = logging.getLogger(__name__)

_EVENT, _PROPERTY, _PUBLISH_EVENT = Kind.EVENT, Kind.PROPERTY, Operation.PUBLISH_EVENT
"""Read for every value, and enum attribute access is slow."""

Assess = Callable[[Reading, Message, Entry], int]
"""Quality flags of a reading on arrival, of the Thing of that entry."""


@dataclass(slots=True)
class Telemetry:
    """Handler of publish_event and publish_property."""

    directory: Directory
    values: ValueStore
    history: History
    publish: Callable[[Publication], None]
    assess: Assess
    metrics: Metrics
    resend_unchanged: bool = True
    is_durable: bool = True
    """False: no caller waits for a commit."""
    _committing: int = 0
    """Publications that are delivered when they are committed, and are not yet."""

    async def __call__(self, message: Message) -> DeliveryStatus:
        entry = self.directory.get(message.thing_id)
        if entry is None:
            raise UnknownThing(message.thing_id)
        committed = self.store(message, entry)
        if committed is not None:
            # What follows the commit depends on it and not on the caller, who may be gone by then.
            await asyncio.shield(committed)
        return DeliveryStatus(
            request_id=message.message_id or "", state=State.COMPLETED, caller_ref=message.correlation
        )

    def store(self, message: Message, entry: Entry) -> "Future[Any] | None":
        """Store a message that was checked, about the Thing of `entry`. The future ends when it is committed, after
        subscribers were given it; None: there is no commit to wait for."""
        reading = self._reading(message, entry)
        waits = message.durable and self.is_durable
        if not waits and not self._committing:
            row_id = self.history.place(reading)
            if row_id is not None:
                self._pass_on(message, reading, row_id)
                return None
        self._committing += 1
        committed = self.history.append((reading,))
        committed.add_done_callback(partial(self._committed, message, reading, waits))
        return committed if waits else None

    async def batch(self, messages: Sequence[Message], check: Callable[[Message], Entry]) -> BatchResult:
        """Check every message by `check`, store the valid ones in one transaction."""
        accepted: list[tuple[Message, Reading]] = []
        rejected: list[Rejection] = []
        for index, message in enumerate(messages):
            try:
                accepted.append((message, self._reading(message, check(message))))
            except SkepError as error:
                rejected.append(Rejection(index, message.message_id, error))
        duplicates = 0
        if accepted:
            self._committing += 1
            committed = self.history.append([reading for _, reading in accepted])
            committed.add_done_callback(partial(self._batch_committed, accepted))
            # What follows the commit depends on it and not on the caller, who may be gone by then.
            duplicates = sum(row.duplicate for row in await asyncio.shield(committed))
        return BatchResult(stored=len(accepted) - duplicates, duplicates=duplicates, rejected=rejected)

    def _reading(self, message: Message, entry: Entry) -> Reading:
        created, source_time = message.created, None
        if created is None:
            created = message.received
        elif created > message.received + TRUST_WINDOW_US:
            # Kept as what the source said, and not believed.
            created, source_time = message.received, created
        reading = Reading(
            thing_id=message.thing_id,
            kind=_EVENT if message.operation is _PUBLISH_EVENT else _PROPERTY,
            name=message.name,
            value=encode(message.data),
            created=created,
            received=message.received,
            sender=message.principal.account,
            message_id=message.message_id,
            td_version=entry.version,
            source_time=source_time,
        )
        quality = self.assess(reading, message, entry)
        return replace(reading, quality=quality) if quality else reading

    def _committed(
        self, message: Message, reading: Reading, is_awaited: bool, committed: "Future[Sequence[Appended]]"
    ) -> None:
        self._committing -= 1
        error = committed.exception()
        if error is not None:
            if not is_awaited:
                self.lost(1, error)
            return
        (row,) = committed.result()
        if row.duplicate:
            self.metrics.duplicates += 1
        else:
            self._pass_on(message, reading, row.row_id)

    def _batch_committed(
        self, accepted: Sequence[tuple[Message, Reading]], committed: "Future[Sequence[Appended]]"
    ) -> None:
        self._committing -= 1
        if committed.cancelled() or committed.exception() is not None:
            return
        for (message, reading), row in zip(accepted, committed.result(), strict=True):
            if row.duplicate:
                self.metrics.duplicates += 1
            else:
                self._pass_on(message, reading, row.row_id)

    def lost(self, count: int, error: BaseException) -> None:
        """Take note of publications without guarantee that could not be stored."""
        self.metrics.lost_undurable += count
        log.warning("publications without guarantee lost", extra={"count": count, "error": repr(error)})

    def _pass_on(self, message: Message, reading: Reading, row_id: int) -> None:
        """Make a stored value the latest and tell those who asked."""
        try:
            thing_id, kind, name = reading.thing_id, reading.kind, reading.name
            standing = None if self.resend_unchanged else self.values.get(thing_id, kind, name)
            newest = self.values.put(
                thing_id,
                kind,
                name,
                Value(
                    value=message.data,
                    payload=reading.value,
                    created=reading.created,
                    received=reading.received,
                    row_id=row_id,
                    quality=reading.quality,
                ),
            )
            if kind is _PROPERTY:
                # A late value is history; observers of the property already have a newer one.
                if not newest:
                    return
                if standing is not None and standing.payload == reading.value:
                    return
            self.publish(
                Publication(
                    twin=parsed_twin(thing_id),
                    thing_id=thing_id,
                    kind=kind,
                    name=name,
                    value=message.data,
                    payload=reading.value,
                    created=reading.created,
                    row_id=row_id,
                    durable=message.durable,
                    sender_session=message.origin.session_id,
                )
            )
        except Exception:
            # It is stored all the same, and the caller who waits for that is to hear of it.
            log.exception("a stored publication was not passed on", extra={"thing": message.thing_id})
