"""What an agent says: readings in batches, reports one by one, each kept until the runtime has acknowledged it.

Order is that of the saying. A batch whose answer asks for some readings again later is followed by those after a pause;
what the runtime refuses for good is reported as a `Problem`.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import TaskGroup

from skep.handlers import Report
from skep.memory import MAX_REMEMBERED
from skep.mqtt_client import MQTTConnection
from skep.outbox import ReadingOutbox, Signal
from things.bounded import Recent
from things.errors import SkepError, TooLarge
from things.jsontext import encode
from things.messages import JSONValue, Operation
from things.names import checked_name, checked_thing
from things.times import rfc3339

log = logging.getLogger(__name__)

MAX_OUTBOX_ITEMS = 10_000
MAX_OUTBOX_BYTES = 16 * 1_048_576
MAX_BATCH_ITEMS = 500
MAX_BATCH_BYTES = 200_000
"""Below the runtime's 256 KiB a packet, with room for the envelope."""
BATCHES_UNDER_WAY = 8
MAX_RECENT = 2 * BATCHES_UNDER_WAY * MAX_BATCH_ITEMS
"""Readings sent lately, kept in case the report of their batch asks for them again."""
PAUSE_S = 1.0
"""After the runtime said that it cannot take more now."""

_TRY_AGAIN = frozenset({"rate-limited", "storage-full", "storage-failed", "unavailable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something the runtime did not accept: of which Thing and which of its names (empty where the whole Thing, or
    none, is concerned), the stable code of the reason, and the message's topic or id."""

    thing: str = ""
    name: str = ""
    code: str
    detail: str = ""
    subject: str = ""

    def __str__(self) -> str:
        what = f"Thing {self.thing!r}" if self.thing else self.subject
        named = f", {self.name!r}" if self.name else ""
        return f"{what}{named}: {self.code}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, slots=True)
class _Reading:
    message_id: str
    text: bytes
    """Its envelope in a batch, as JSON."""
    thing: str
    name: str


@dataclass(frozen=True, slots=True)
class _Said:
    request_id: str
    text: bytes
    thing: str = field(compare=False)
    name: str = field(compare=False)


class Outgoing:
    """The outboxes of one agent. `signal` reports each change, `problem` what is refused for good."""

    def __init__(self, account: str, signal: Signal, *, max_items: int, problem: Callable[[Problem], None]) -> None:
        self._account = account
        self._signal = signal
        self._problem = problem
        self.readings: ReadingOutbox[_Reading] = ReadingOutbox(
            signal, max_items=max_items, max_bytes=MAX_OUTBOX_BYTES, size=lambda item: len(item.text)
        )
        self._reports: ReadingOutbox[_Said] = ReadingOutbox(
            signal, max_items=MAX_REMEMBERED, max_bytes=MAX_OUTBOX_BYTES, size=lambda item: len(item.text)
        )
        self._recent = Recent[str, _Reading](MAX_RECENT)
        self._batches = self._deferred = 0
        self._paused_until = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether the runtime has acknowledged everything."""
        return not (self._deferred or len(self.readings) or len(self._reports))

    def put(self, operation: Operation, thing: str, name: str, data: JSONValue, created: int | None) -> None:
        """Say a reading. Raises TooLarge."""
        reading = _reading(operation, thing, name, data, created)
        if len(reading.text) > MAX_BATCH_BYTES:
            raise TooLarge(MAX_BATCH_BYTES, f"value of {name!r}")
        self.readings.put(reading)

    def say(self, report: Report) -> None:
        """Say how a request stands, unless just that is on its way: a request that comes again while its outcome is
        being said is answered once."""
        said = _Said(report.request_id, encode(report.document()), report.thing, report.name)
        if not report.state.is_final or said not in self._reports:
            self._reports.put(said)

    def send(self, connection: MQTTConnection) -> float | None:
        """Send what may be sent now; for how many seconds nothing more may, None if that is up to the signal."""
        pause_s = max(0.0, self._paused_until - time.monotonic())
        room = 0 if pause_s else BATCHES_UNDER_WAY
        while self._batches < room and (batch := self.readings.take(MAX_BATCH_ITEMS, MAX_BATCH_BYTES)):
            payload = b"[" + b",".join(item.text for _, item in batch) + b"]"
            self._batches += 1
            self._remember(batch)
            connection.send(f"agents/{self._account}/batch", payload).add_done_callback(
                partial(self._batch_answered, connection, batch)
            )
        for number, said in self._reports.take(MAX_REMEMBERED, MAX_OUTBOX_BYTES):
            topic = f"agents/{self._account}/status/{said.request_id}"
            connection.send(topic, said.text).add_done_callback(
                partial(self._report_answered, connection, number, said)
            )
        return pause_s or None

    def recall(self) -> None:
        """The connection is gone: what it did not acknowledge is to be sent again."""
        self.readings.recall()
        self._reports.recall()

    def batch_reported(self, answer: JSONValue, tasks: TaskGroup) -> None:
        """Take the runtime's report on a batch."""
        rejected = answer.get("rejected") if isinstance(answer, dict) else None
        for item in rejected if isinstance(rejected, list) else ():
            if not isinstance(item, dict):
                continue
            code, message_id = str(item.get("code")), str(item.get("messageID"))
            reading = self._recent.pop(message_id, None)
            if code in _TRY_AGAIN and reading is not None:
                self._deferred += 1
                self._paused_until = time.monotonic() + PAUSE_S
                tasks.start_soon(self._put_later, reading)
            else:
                detail = str(item.get("detail") or "")
                thing, name = ("", "") if reading is None else (reading.thing, reading.name)
                self._problem(Problem(thing=thing, name=name, code=code, detail=detail, subject=message_id))

    # ------------------------------------------------------------ private

    def _remember(self, batch: Sequence[tuple[int, _Reading]]) -> None:
        """Keep what the batch's report may ask for again; the report can come before the acknowledgement."""
        for _, item in batch:
            self._recent[item.message_id] = item

    def _batch_answered(
        self, connection: MQTTConnection, batch: Sequence[tuple[int, _Reading]], answer: "asyncio.Future[None]"
    ) -> None:
        self._batches -= 1
        error = answer.exception()
        if error is None or not is_temporary(error):
            self.readings.confirm([number for number, _ in batch])
        else:
            # Kept: whatever is under way is recalled when the connection ends, and comes again in order.
            connection.give_up()
        if error is not None and not is_temporary(error):
            code, detail = getattr(error, "code", "internal"), str(error)
            for thing, name in dict.fromkeys((item.thing, item.name) for _, item in batch):
                self._problem(Problem(thing=thing, name=name, code=code, detail=detail, subject="batch"))

    def _report_answered(
        self, connection: MQTTConnection, number: int, said: _Said, answer: "asyncio.Future[None]"
    ) -> None:
        error = answer.exception()
        if error is not None and is_temporary(error):
            connection.give_up()
            return
        self._reports.confirm([number])
        if error is not None:
            code = getattr(error, "code", "internal")
            subject = f"status/{said.request_id}"
            self._problem(Problem(thing=said.thing, name=said.name, code=code, detail=str(error), subject=subject))

    async def _put_later(self, reading: _Reading) -> None:
        await anyio.sleep(PAUSE_S)
        self._deferred -= 1
        self.readings.put(reading)


def _reading(operation: Operation, thing: str, name: str, data: JSONValue, created: int | None) -> _Reading:
    message_id = uuid.uuid4().hex
    envelope: dict[str, JSONValue] = {
        "v": 1,
        "operation": operation.value,
        "thingID": checked_thing(thing),
        "name": checked_name(name),
        "data": data,
        "created": rfc3339(time.time_ns() // 1_000 if created is None else created),
        "messageID": message_id,
    }
    return _Reading(message_id, encode(envelope), thing, name)


def is_temporary(error: BaseException) -> bool:
    """Whether the same may succeed later."""
    return isinstance(error, SkepError) and error.code in _TRY_AGAIN
