"""Several property values of one Thing in one object: `{"flow": 3.5, "level": 70}`.

They are stored together. What cannot be stored is named with its reason, the others are stored all the same; one value
alone is refused as if it had come by itself.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from bindings.wire.envelopes import decode_around
from runtime.ports import BatchResult
from things.errors import Malformed, SkepError
from things.messages import JSONValue, Message
from things.problems import ValuesRefused

Store = Callable[[Sequence[Message]], Awaitable[BatchResult]]
MessageOf = Callable[[str, JSONValue, int], Message]
"""The message of one value, given also how many share the payload."""


def read_values(payload: bytes, message_of: MessageOf) -> dict[str, Callable[[], Message]]:
    """What makes the message of each value, by its name; raises what refuses that value. Raises Malformed for what is
    no object of values."""
    values, check = decode_around(payload or b"null", 1)
    if not isinstance(values, dict) or not values:
        raise Malformed("an object of property names and values is needed")
    count = len(values)

    def made(name: str, value: JSONValue) -> Message:
        check(value)
        return message_of(name, value, count)

    return {name: partial(made, name, value) for name, value in values.items()}


async def store_values(values: Mapping[str, Callable[[], Message]], store: Store) -> None:
    """Store what `read_values` has read; raises ValuesRefused if any value was refused."""
    messages: list[Message] = []
    refused: dict[str, SkepError] = {}
    for name, message_of in values.items():
        try:
            messages.append(message_of())
        except SkepError as error:
            refused[name] = error
    stored = 0
    if messages:
        result = await store(messages)
        stored = result.stored + result.duplicates
        refused |= {messages[each.position].name: each.error for each in result.rejected}
    if len(values) == 1:
        for refusal in refused.values():
            raise refusal
    if refused:
        raise ValuesRefused(refused, stored)
