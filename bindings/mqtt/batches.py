"""Store-and-forward batches: an array of publications that an agent could not send when they happened."""

from collections.abc import Mapping
from typing import NamedTuple

from runtime.ports import BatchResult
from things.addresses import MAX_NAME_CHARS, TwinID, checked_thing, is_twin
from things.errors import Forbidden, Invalid, Malformed, SkepError
from things.identity import Principal
from things.jsontext import decode, encode
from things.messages import JSONValue, Message, Operation, Origin
from things.times import parse_time

MAX_ITEMS = 5_000
MAX_ID_CHARS = 128

_OPERATIONS = {
    "publish_event": Operation.PUBLISH_EVENT,
    "publish_property": Operation.PUBLISH_PROPERTY,
}


class Batch(NamedTuple):
    """The items that are messages, with the index of each, and those that are none: (index, message id, code)."""

    messages: list[Message]
    indices: list[int]
    rejected: list[tuple[int, str | None, str]]

    def document(self, result: BatchResult) -> bytes:
        """What the agent is told at `inbox/{agent}/batch`."""
        rejected = [*self.rejected, *((self.indices[index], name, code) for index, name, code in result.rejected)]
        return encode(
            {
                "stored": result.stored,
                "duplicates": result.duplicates,
                "rejected": [
                    {"index": index, "messageID": message_id, "code": code}
                    for index, message_id, code in sorted(rejected, key=lambda each: each[0])
                ],
            }
        )


def read_batch(payload: bytes, principal: Principal, *, received: int, origin: Origin, durable: bool) -> Batch:
    """Read a batch. Raises Invalid (with Malformed for broken JSON) if it is no array of at most 5,000 objects;
    anything wrong inside an item rejects that item alone."""
    items = decode(payload)
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise Malformed(f"a batch is an array of at most {MAX_ITEMS} publications")
    batch = Batch([], [], [])
    size = len(payload) // max(len(items), 1)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise Malformed(f"item {index} of the batch is not an object")
        message_id = item.get("messageID")
        try:
            message = _message(item, principal, received=received, origin=origin, durable=durable, size=size)
        except SkepError as error:
            batch.rejected.append((index, message_id if isinstance(message_id, str) else None, error.code))
        else:
            batch.messages.append(message)
            batch.indices.append(index)
    return batch


def checked_message_id(value: JSONValue) -> str | None:
    """A sender's own id of a publication; raises Invalid."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        raise Invalid(f"messageID is text of at most {MAX_ID_CHARS} characters")
    return value


def _message(
    item: Mapping[str, JSONValue], principal: Principal, *, received: int, origin: Origin, durable: bool, size: int
) -> Message:
    if item.get("v", 1) != 1:
        raise Invalid("only version 1 of the envelope is known")
    operation = _OPERATIONS.get(str(item.get("operation")))
    thing, name, created = item.get("thingID"), item.get("name"), item.get("created")
    if operation is None or not isinstance(thing, str) or not isinstance(name, str) or "data" not in item:
        raise Invalid("an item has operation (publish_event or publish_property), thingID, name and data")
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise Invalid(f"a name has 1 to {MAX_NAME_CHARS} characters")
    if created is not None and not isinstance(created, str):
        raise Invalid("created is a time such as 2026-01-31T12:00:00Z")
    return Message(
        operation=operation,
        principal=principal,
        thing_id=str(_own(thing, principal.account)),
        name=name,
        data=item["data"],
        message_id=checked_message_id(item.get("messageID")),
        created=parse_time(created) if created is not None else None,
        received=received,
        size=size,
        durable=durable,
        origin=origin,
    )


def _own(thing: str, account: str) -> TwinID:
    if not is_twin(thing):
        return TwinID(account, checked_thing(thing))
    twin = TwinID.parse(thing)
    if twin.account != account:
        raise Forbidden("only your own Things are yours to publish for")
    return TwinID(account, checked_thing(twin.thing))
