"""Store-and-forward batches: an array of publications that an agent could not send when they happened.

What is no array of at most 5,000 items is refused whole; anything wrong with an item rejects that item alone. The same
bytes give the same rows and the same report on every binding.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bindings.wire.envelopes import decode_around
from runtime.ports import BatchResult, Rejection
from things.addresses import own_twin
from things.errors import Invalid, Malformed, SkepError
from things.identity import Principal
from things.jsontext import MAX_MESSAGE_BYTES
from things.messages import JSONValue, Message, Operation
from things.times import parse_time

MAX_ITEMS = 5_000
MAX_ID_CHARS = 128
SLICE_ITEMS = 256
"""Items that are read in one turn of the loop, about a millisecond."""
_LEVELS = 2
"""Around a value: the array and its item."""

_OPERATIONS = {each.value: each for each in (Operation.PUBLISH_EVENT, Operation.PUBLISH_PROPERTY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One publication of a batch: `{"v":1,"operation","thingID","name","data","created","messageID"}`."""

    operation: Operation
    thing_id: str
    """Of the twin."""
    name: str
    data: JSONValue
    has_data: bool
    message_id: str | None
    created: int | None
    """µs UTC."""


@dataclass(slots=True)
class Batch:
    """The items that are messages, with the position of each, and those that are none."""

    messages: list[Message] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)

    def sent_by(self, principal: Principal) -> Sequence[Message]:
        """The messages, from their account as it is now: it may have changed while they were read."""
        if all(each.principal is principal for each in self.messages):
            return self.messages
        return [replace(each, principal=principal) for each in self.messages]

    def report(self, result: BatchResult) -> dict[str, JSONValue]:
        """`{"stored","duplicates","rejected":[{"index","messageID","code","detail"}]}`, by rising index."""
        rejected = [
            *self.rejected,
            *(each._replace(position=self.positions[each.position]) for each in result.rejected),
        ]
        return {
            "stored": result.stored,
            "duplicates": result.duplicates,
            "rejected": [
                {"index": position, "messageID": message_id, "code": error.code, "detail": error.detail}
                for position, message_id, error in sorted(rejected, key=lambda each: each.position)
            ],
        }


async def read_batch(
    payload: bytes, account: str, message_of: Callable[[Item, int], Message], *, max_bytes: int = MAX_MESSAGE_BYTES
) -> Batch:
    """Read what an account sent; `message_of` makes the message of an item, given also the bytes that it pays for.
    Others have the loop in between. Raises Malformed, TooLarge, TooDeep for what is refused whole."""
    items, check = decode_around(payload or b"null", _LEVELS, max_bytes=max_bytes)
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise Malformed(f"a batch is an array of at most {MAX_ITEMS} publications")
    batch = Batch()
    size = len(payload) // max(len(items), 1)
    for index, each in enumerate(items):
        if index % SLICE_ITEMS == SLICE_ITEMS - 1:
            await asyncio.sleep(0)
        try:
            item = _item(each, account)
            check(item.data)
            message = message_of(item, size)
        except SkepError as error:
            message_id = each.get("messageID") if isinstance(each, Mapping) else None
            batch.rejected.append(Rejection(index, message_id if isinstance(message_id, str) else None, error))
        else:
            batch.messages.append(message)
            batch.positions.append(index)
    return batch


def checked_message_id(value: JSONValue, member: str = "messageID") -> str | None:
    """A sender's own id of a publication, which fits a header field of HTTP as well; raises Invalid."""
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= MAX_ID_CHARS
        or not value.isascii()
        or not value.isprintable()
    ):
        raise Invalid(f"{member} is text of 1 to {MAX_ID_CHARS} printable ASCII characters")
    return value


def _item(item: JSONValue, account: str) -> Item:
    if not isinstance(item, dict):
        raise Invalid("an item of a batch is an object")
    # A number, not `true`, which Python takes for one.
    version = item.get("v", 1)
    if version != 1 or isinstance(version, bool):
        raise Invalid("only version 1 of the envelope is known")
    operation = _OPERATIONS.get(str(item.get("operation")))
    thing, name, created = item.get("thingID"), item.get("name"), item.get("created")
    if operation is None or not isinstance(thing, str) or not isinstance(name, str):
        raise Invalid("an item has operation (publish_event or publish_property), thingID, name and data")
    if created is not None and not isinstance(created, str):
        raise Invalid("created is a time such as 2026-01-31T12:00:00Z")
    return Item(
        operation=operation,
        thing_id=own_twin(account, thing),
        name=name,
        data=item.get("data"),
        has_data="data" in item,
        message_id=checked_message_id(item.get("messageID")),
        created=parse_time(created) if created is not None else None,
    )
