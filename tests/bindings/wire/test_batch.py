"""Batches of publications: what is refused whole, what is refused item by item, and what the report says."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bindings.wire.batch import MAX_ITEMS, SLICE_ITEMS, Item, read_batch
from runtime.ports import BatchResult, Rejection
from things.errors import Malformed, RateLimited, TooDeep, TooLarge
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation

pytestmark = pytest.mark.anyio

PUMPS = Principal(account="pumps", type=AccountType.AGENT, role=Role.AGENT)


def item(**members: Any) -> dict[str, Any]:
    return {"v": 1, "operation": "publish_property", "thingID": "pump-1", "name": "flow", "data": 1} | members


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def without(member: str) -> dict[str, Any]:
    return {name: value for name, value in item().items() if name != member}


def message_of(read: Item, size: int) -> Message:
    return Message(
        operation=read.operation,
        principal=PUMPS,
        thing_id=read.thing_id,
        name=read.name,
        data=read.data,
        has_data=read.has_data,
        message_id=read.message_id,
        created=read.created,
        received=0,
        size=size,
    )


async def read(*items: Any) -> Any:
    return await read_batch(json.dumps(items).encode(), "pumps", message_of)


GOOD: dict[str, dict[str, Any]] = {
    "as documented": item(),
    "without a version, which is 1": without("v"),
    "its Thing by the twin's id": item(thingID="dtw:pumps:pump-1"),
    "null as data": item(data=None),
    "a value nested as deep as one alone may be": item(data=nested(32)),
    "an event without data": {**without("data"), "operation": "publish_event"},
    "members that nobody knows": item(colour="red"),
    "with time and id": item(created="2026-01-31T12:00:00Z", messageID="m-1"),
}


@pytest.mark.parametrize("given", GOOD.values(), ids=GOOD)
async def test_an_item_is_a_message_about_the_twin(given: dict[str, Any]) -> None:
    batch = await read(given)

    assert not batch.rejected
    (message,) = batch.messages
    assert (message.thing_id, message.name) == ("dtw:pumps:pump-1", "flow")
    assert message.has_data is ("data" in given)


BAD: dict[str, tuple[Any, str]] = {
    "a number": (7, "invalid"),
    "an array": ([], "invalid"),
    "a later version": (item(v=2), "invalid"),
    "true as version": (item(v=True), "invalid"),
    "another operation": (item(operation="invoke_action"), "invalid"),
    "no Thing": (without("thingID"), "invalid"),
    "no name": (without("name"), "invalid"),
    "the Thing of somebody else": (item(thingID="dtw:others:pump-1"), "forbidden"),
    "a Thing id that cannot be one": (item(thingID="a b"), "bad-address"),
    "a name that cannot be one": (item(name=".."), "bad-address"),
    "a time that is none": (item(created="yesterday"), "invalid"),
    "a number as time": (item(created=1), "invalid"),
    "an empty message id": (item(messageID=""), "invalid"),
    "a long message id": (item(messageID="m" * 129), "invalid"),
    "a message id that no header field holds": (item(messageID="ä"), "invalid"),
    "a value nested too deep": (item(data=nested(33)), "too-deep"),
}


@pytest.mark.parametrize(("given", "code"), BAD.values(), ids=BAD)
async def test_what_is_wrong_with_an_item_rejects_that_item_alone(given: Any, code: str) -> None:
    batch = await read(item(name="level"), given, item(operation="publish_event"))

    assert [message.operation for message in batch.messages] == [Operation.PUBLISH_PROPERTY, Operation.PUBLISH_EVENT]
    assert [(each.position, each.error.code) for each in batch.rejected] == [(1, code)]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", Malformed),
        (b"{}", Malformed),
        (b"[", Malformed),
        (b"\xff", Malformed),
        (b"[" + b",".join([b"{}"] * (MAX_ITEMS + 1)) + b"]", Malformed),
        (b"[" * 150 + b"]" * 150, TooDeep),
        (b"[" + b" " * 300_000 + b"]", TooLarge),
    ],
)
async def test_what_is_no_array_of_items_is_refused_whole(payload: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await read_batch(payload, "pumps", message_of)


async def test_an_item_larger_than_a_message_is_rejected_alone_however_large_batches_may_be() -> None:
    payload = json.dumps([item(), item(data="x" * 300_000)]).encode()

    batch = await read_batch(payload, "pumps", message_of, max_bytes=4_194_304)

    assert len(batch.messages) == 1
    assert [(each.position, each.error.code) for each in batch.rejected] == [(1, "too-large")]


async def test_the_report_names_every_rejection_by_its_place_in_the_batch() -> None:
    batch = await read(7, item(messageID="a"), item(messageID="b"))
    refused = Rejection(1, "b", RateLimited(1.0))

    report = batch.report(BatchResult(stored=1, duplicates=0, rejected=[refused]))

    assert (report["stored"], report["duplicates"]) == (1, 0)
    assert [(each["index"], each["messageID"], each["code"]) for each in report["rejected"]] == [
        (0, None, "invalid"),
        (2, "b", "rate-limited"),
    ]
    assert all(each["detail"] for each in report["rejected"])


async def test_others_have_the_loop_while_a_long_batch_is_read() -> None:
    payload = json.dumps([item()] * MAX_ITEMS).encode()
    reading = asyncio.create_task(read_batch(payload, "pumps", message_of, max_bytes=len(payload)))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)

    assert len((await reading).messages) == MAX_ITEMS
    assert turns >= MAX_ITEMS // SLICE_ITEMS


async def test_what_was_read_is_sent_by_the_account_as_it_is_when_it_is_stored() -> None:
    batch, demoted = await read(item(), item()), replace(PUMPS, role=Role.NONE)

    assert batch.sent_by(PUMPS) is batch.messages
    assert [each.principal for each in batch.sent_by(demoted)] == [demoted, demoted]
    assert [each.data for each in batch.sent_by(demoted)] == [1, 1]
