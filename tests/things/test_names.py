"""What accounts, Things, affordances and requests may be called, and that no message is made with another name."""

from collections.abc import Callable

import pytest

from things.addresses import TwinID, encode_segment
from things.errors import BadAddress
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation
from things.names import checked_account, checked_name, checked_request, checked_thing, is_name, shown

AGENT = Principal(account="pumps", type=AccountType.AGENT, role=Role.AGENT)
PUMP = "dtw:pumps:pump-1"

GOOD = [
    "flow",
    "Flow rate",
    "a",
    "...",
    ".hidden",
    "a..b",
    "größe",
    "温度",
    "👩‍🔧",
    "a/b",
    "a+b#c",
    "$share",
    "100%",
    " ",
    "e\u0301",
    "n" * 128,
    "温" * 128,
    "𝄞" * 128,
]
BAD = [
    "",
    ".",
    "..",
    "n" * 129,
    "n" * 70_000,
    "a\nb",
    "a\r",
    "a\n",
    "..\n",
    "\t",
    "\0",
    "a\x1fb",
    "a\x7fb",
    "a\x85b",
    "a\x9fb",
    "a\u2028b",
    "a\u2029b",
    "a\ud800b",
    "\udfff",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_of_characters_that_a_topic_level_can_spell_is_taken(name: str) -> None:
    assert checked_name(name) == name
    assert shown(name) == name
    assert 0 < len(encode_segment(name)) <= 12 * 128


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_what_cannot_be_a_name_is_refused_every_time(name: str) -> None:
    assert not is_name(name)
    for _ in range(2):
        with pytest.raises(BadAddress) as refused:
            checked_name(name)
    assert len(refused.value.detail) < 1_000
    assert shown(name).isprintable()
    assert len(shown(name)) < 500


GOOD_ACCOUNTS = ["a", "7", "pump-house_2.eu", "a" * 64]
BAD_ACCOUNTS = ["", ".", "..", ".a", "-a", "A", "pump house", "pümpe", "a/b", "a~b", "a\nb", "a\n", "a:b", "a" * 65]
GOOD_THINGS = ["a", "Pump-1", "urn:dev:1@hall", "..a", "n" * 128]
BAD_THINGS = ["", "pump 1", "pumpe-ö", "a/b", "a~b", "a\nb", "a\n", "a%20", "n" * 129]
GOOD_REQUESTS = ["0190a3f2-7c1d-7abc-8def-0123456789ab", "r1", "n" * 128]
BAD_REQUESTS = ["", "r 1", "r/1", "r\n1", "r1\n", "é", "n" * 129, "n" * 70_000]


@pytest.mark.parametrize(
    ("checked", "good", "bad"),
    [
        (checked_account, GOOD_ACCOUNTS, BAD_ACCOUNTS),
        (checked_thing, GOOD_THINGS, BAD_THINGS),
        (checked_request, GOOD_REQUESTS, BAD_REQUESTS),
    ],
)
def test_accounts_things_and_requests_are_named_by_what_needs_no_encoding(
    checked: Callable[[str], str], good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert checked(text) == text == encode_segment(text)
    for text in bad:
        with pytest.raises(BadAddress) as refused:
            checked(text)
        assert len(refused.value.detail) < 1_000


def test_a_twin_is_of_an_account_and_a_thing_that_can_be() -> None:
    assert str(TwinID.of("pumps", "urn:dev:1")) == "dtw:pumps:urn:dev:1"
    assert TwinID.parse("dtw:pumps:urn:dev:1") == TwinID.of("pumps", "urn:dev:1")
    for account in BAD_ACCOUNTS:
        with pytest.raises(BadAddress):
            TwinID.of(account, "pump-1")
    for thing in BAD_THINGS:
        with pytest.raises(BadAddress):
            TwinID.of("pumps", thing)
        with pytest.raises(BadAddress):
            TwinID.parse(f"dtw:pumps:{thing}")


@pytest.mark.parametrize("account", BAD_ACCOUNTS, ids=ascii)
def test_nobody_speaks_for_what_cannot_be_an_account(account: str) -> None:
    with pytest.raises(BadAddress):
        Principal(account=account, type=AccountType.AGENT, role=Role.AGENT)


def message(operation: Operation, thing_id: str = PUMP, name: str = "flow") -> Message:
    return Message(operation=operation, principal=AGENT, thing_id=thing_id, name=name, received=0)


PUBLICATIONS = [Operation.PUBLISH_EVENT, Operation.PUBLISH_PROPERTY]
REQUESTS = [Operation.INVOKE_ACTION, Operation.WRITE_PROPERTY, Operation.CALL_RPC]
DESCRIPTIONS = [Operation.PUBLISH_TD, Operation.REMOVE_TD]


@pytest.mark.parametrize("name", BAD, ids=ascii)
@pytest.mark.parametrize("operation", PUBLICATIONS + REQUESTS)
def test_no_message_holds_what_cannot_be_a_name(operation: Operation, name: str) -> None:
    with pytest.raises(BadAddress):
        message(operation, name=name)


@pytest.mark.parametrize("operation", PUBLICATIONS + REQUESTS + DESCRIPTIONS)
def test_no_message_is_about_what_cannot_be_a_twin(operation: Operation) -> None:
    for thing_id in ("dtw:", "dtw:pumps", "dtw:pumps:", "dtw:PUMPS:a", "dtw:pumps:a b", f"dtw:pumps:{'n' * 129}"):
        with pytest.raises(BadAddress):
            message(operation, thing_id)


@pytest.mark.parametrize("operation", PUBLICATIONS + DESCRIPTIONS)
def test_what_agents_say_is_about_twins(operation: Operation) -> None:
    for thing_id in ("", "pump-1", "urn:dev:1"):
        with pytest.raises(BadAddress):
            message(operation, thing_id)


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_may_be_about_another_directory_entry(operation: Operation) -> None:
    assert message(operation, "urn:dev:1").thing_id == "urn:dev:1"


@pytest.mark.parametrize("operation", [Operation.REPORT_STATUS, Operation.CANCEL])
def test_no_message_names_what_cannot_be_a_request(operation: Operation) -> None:
    assert message(operation, "", "r1").name == "r1"
    for name in BAD_REQUESTS:
        if name or operation is Operation.REPORT_STATUS:
            with pytest.raises(BadAddress):
                message(operation, "", name)


def test_messages_about_no_affordance_need_no_name() -> None:
    for operation in DESCRIPTIONS:
        assert not message(operation, name="").name
    assert not message(Operation.CANCEL, "", "").name
    assert message(Operation.SEND, "hyperty://skep.example/1", "subscribe").name == "subscribe"
