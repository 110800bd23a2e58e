"""The topic grammar: good and malformed topics and filters, one line each."""

import pytest

from bindings.mqtt import topics
from bindings.mqtt.topics import (
    CancelRequest,
    InboxFilter,
    MakeRequest,
    PublishBatch,
    PublishEvent,
    PublishProperties,
    PublishProperty,
    PublishTD,
    Replay,
    ReportStatus,
    SharedFilter,
    SystemFilter,
    ThingsFilter,
    parse_filter,
    parse_topic,
)
from runtime.ports import Pattern, Request
from things.addresses import Kind, TwinID
from things.errors import BadAddress, Forbidden, SkepError
from things.messages import Operation
from things.names import Account, AffordanceName, RequestID, ThingID

ME, HUB, LAMP, ON = Account("me"), Account("hub"), ThingID("lamp"), AffordanceName("on")

GOOD = [
    ("agents/me/event/lamp/on", PublishEvent(ME, LAMP, ON)),
    ("agents/me/event/urn:dev:1@a/caf%C3%A9%2Ft", PublishEvent(ME, ThingID("urn:dev:1@a"), AffordanceName("café/t"))),
    ("agents/me/property/lamp/level", PublishProperty(ME, LAMP, AffordanceName("level"))),
    ("agents/me/properties/lamp", PublishProperties(ME, LAMP)),
    ("agents/me/td/lamp", PublishTD(ME, LAMP)),
    ("agents/me/batch", PublishBatch(ME)),
    ("agents/me/status/0199-ab", ReportStatus(ME, RequestID("0199-ab"))),
    ("req/me/action/hub/lamp/on/r1", MakeRequest("me", Operation.INVOKE_ACTION, HUB, LAMP, ON, "r1")),
    ("req/me/rpc/hub/lamp/on/r%201", MakeRequest("me", Operation.CALL_RPC, HUB, LAMP, ON, "r 1")),
    ("req/me/property/hub/lamp/on/r1", MakeRequest("me", Operation.WRITE_PROPERTY, HUB, LAMP, ON, "r1")),
    (
        "req/me/action/hub/lamp/on/r1/t-0_k",
        MakeRequest("me", Operation.INVOKE_ACTION, HUB, LAMP, ON, "r1", "t-0_k"),
    ),
    ("req/me/cancel/r1", CancelRequest("me", "r1")),
    ("req/me/replay", Replay("me")),
]

BAD: list[tuple[str, type[SkepError]]] = [
    ("", BadAddress),
    ("agents", BadAddress),
    ("agents/me", BadAddress),
    ("agents/me/", BadAddress),
    ("agents/me/event", BadAddress),
    ("agents/me/event/lamp", BadAddress),
    ("agents/me/event/lamp/", BadAddress),
    ("agents/me/event//on", BadAddress),
    ("agents/me/event/lamp/on/more", BadAddress),
    ("agents/me/event/la mp/on", BadAddress),
    ("agents/me/event/lamp/o n", BadAddress),
    ("agents/me/event/lamp/%C3", BadAddress),
    ("agents/me/event/lamp/%zz", BadAddress),
    ("agents/me/event/" + "a" * 129 + "/on", BadAddress),
    ("agents/me/event/lamp/" + "a" * 129, BadAddress),
    ("agents/me/action/lamp/on", BadAddress),
    ("agents/me/batch/", BadAddress),
    ("/agents/me/event/lamp/on", BadAddress),
    ("req/me/action/hub/lamp/on", BadAddress),
    ("req/me/action/HUB/lamp/on/r1", BadAddress),
    ("req/me/event/hub/lamp/on/r1", BadAddress),
    ("req/me/replay/1", BadAddress),
    ("other/me/x", BadAddress),
    ("agents/you/event/lamp/on", Forbidden),
    ("agents/ME/event/lamp/on", Forbidden),
    ("agents//event/lamp/on", Forbidden),
    ("req/you/action/hub/lamp/on/r1", Forbidden),
    ("things/me/lamp/event/on", Forbidden),
    ("inbox/me/status/r1", Forbidden),
    ("inbox/you/action/lamp/on/r1", Forbidden),
    ("$SYS/uptime", Forbidden),
]


@pytest.mark.parametrize(("topic", "expected"), GOOD)
def test_a_topic_means_what_the_contract_says_and_prints_as_it_came(topic: str, expected: topics.ClientTopic) -> None:
    assert parse_topic(topic, "me") == expected
    assert str(expected) == topic


@pytest.mark.parametrize(("topic", "error"), BAD)
def test_a_topic_outside_the_grammar_or_the_account_is_refused(topic: str, error: type[SkepError]) -> None:
    with pytest.raises(error):
        parse_topic(topic, "me")


ANY_NAMED = tuple(Pattern(None, None, kind, None) for kind in (Kind.EVENT, Kind.PROPERTY, Kind.ACTION))

PATTERNS = [
    ("things/#", (Pattern(),)),
    ("things/hub/#", (Pattern("hub"),)),
    ("things/+/#", (Pattern(),)),
    ("things/hub/lamp/#", (Pattern("hub", "lamp"),)),
    ("things/+/+/+/#", (Pattern(),)),
    ("things/+/+/property/+", (Pattern(None, None, Kind.PROPERTY),)),
    ("things/+/+/property/#", (Pattern(None, None, Kind.PROPERTY),)),
    ("things/hub/+/event/on", (Pattern("hub", None, Kind.EVENT, "on"),)),
    ("things/hub/lamp/action/a%20b", (Pattern("hub", "lamp", Kind.ACTION, "a b"),)),
    ("things/hub/lamp/event/on/#", (Pattern("hub", "lamp", Kind.EVENT, "on"),)),
    ("things/+/+/td", (Pattern(None, None, Kind.TD, ""),)),
    ("things/+/+/td/#", (Pattern(None, None, Kind.TD, ""),)),
    ("things/+/+/+", (Pattern(None, None, Kind.TD, ""),)),
    ("things/+/+/+/+", ANY_NAMED),
]


@pytest.mark.parametrize(("text", "patterns"), PATTERNS)
def test_a_filter_below_things_becomes_the_patterns_it_stands_for(text: str, patterns: tuple[Pattern, ...]) -> None:
    assert parse_filter(text, "me") == ThingsFilter(patterns)
    assert parse_filter(f"$share/g/{text}", "me") == SharedFilter("g", ThingsFilter(patterns))


INBOX = [
    ("inbox/me/#", True, True),
    ("inbox/me/+/lamp/on/+", True, True),
    ("inbox/me/action/#", True, False),
    ("inbox/me/rpc/lamp/+/+", True, False),
    ("inbox/me/property/#", True, False),
    ("inbox/me/cancel/+", True, False),
    ("inbox/me/status/+", False, True),
    ("inbox/me/status/r1", False, True),
    ("inbox/me/batch", False, False),
    ("inbox/me/refused", False, False),
    ("inbox/me/answers/+", False, True),
]


@pytest.mark.parametrize(("text", "requests", "reports"), INBOX)
def test_a_filter_of_the_own_inbox_says_what_it_takes(text: str, requests: bool, reports: bool) -> None:
    parsed = parse_filter(text, "me")

    assert isinstance(parsed, InboxFilter)
    assert (parsed.requests, parsed.reports) == (requests, reports)


def test_system_figures_are_a_filter_of_their_own() -> None:
    assert parse_filter("$SYS/#", "me") == SystemFilter(("$SYS", "#"))


BAD_FILTERS: list[tuple[str, type[SkepError]]] = [
    ("", BadAddress),
    ("#", BadAddress),
    ("+", BadAddress),
    ("+/me/#", BadAddress),
    ("+/+/+/+/+", BadAddress),
    ("things", BadAddress),
    ("things/hub", BadAddress),
    ("things/hub/lamp", BadAddress),
    ("things/hub/lamp/event", BadAddress),
    ("things/hub/lamp/status/x", BadAddress),
    ("things/hub/lamp/td/x", BadAddress),
    ("things/hub/lamp/event/on/more", BadAddress),
    ("things/HUB/#", BadAddress),
    ("things/#/lamp", BadAddress),
    ("things/hub#", BadAddress),
    ("things/h+b/#", BadAddress),
    ("inbox/+/#", BadAddress),
    ("inbox/#", BadAddress),
    ("inbox/me", BadAddress),
    ("inbox/me/", BadAddress),
    ("$share/g", BadAddress),
    ("$share//things/#", BadAddress),
    ("$share/+/things/#", BadAddress),
    ("$share/g/inbox/me/#", BadAddress),
    ("$share/g/#", BadAddress),
    ("elsewhere/#", BadAddress),
    ("inbox/you/#", Forbidden),
    ("inbox/you/status/r1", Forbidden),
    ("agents/me/#", Forbidden),
    ("agents/+/event/#", Forbidden),
    ("req/#", Forbidden),
]


@pytest.mark.parametrize(("text", "error"), BAD_FILTERS)
def test_a_filter_that_can_match_nothing_permitted_is_refused(text: str, error: type[SkepError]) -> None:
    with pytest.raises(error):
        parse_filter(text, "me")


MATCHES = [
    ("a/#", "a", True),
    ("a/#", "a/b/c", True),
    ("a/+", "a", False),
    ("a/+", "a/b", True),
    ("a/+", "a/b/c", False),
    ("a/b", "a/b", True),
    ("a/b", "a", False),
    ("a", "a/b", False),
    ("#", "$SYS/x", False),
    ("$SYS/#", "$SYS/x", True),
]


@pytest.mark.parametrize(("text", "topic", "expected"), MATCHES)
def test_wildcards_match_as_mqtt_says(text: str, topic: str, expected: bool) -> None:
    assert topics.matches(text.split("/"), topic) is expected


def test_topics_of_the_runtime_spell_names_encoded() -> None:
    twin = TwinID.of("hub", "lamp")
    request = Request(
        request_id="r1",
        operation=Operation.INVOKE_ACTION,
        thing_id=str(twin),
        thing="lamp",
        name="a b",
        caller="me",
    )

    assert topics.publication_topic(twin, Kind.EVENT, "a/b") == "things/hub/lamp/event/a%2Fb"
    assert topics.publication_topic(twin, Kind.TD, "") == "things/hub/lamp/td"
    assert topics.request_topic("hub", request) == "inbox/hub/action/lamp/a%20b/r1"
    assert topics.status_topic("me", "r 1") == "inbox/me/status/r%201"
    assert topics.batch_topic("me") == "inbox/me/batch"
    assert topics.refused_topic("me") == "inbox/me/refused"


RESPONSES = [
    ("inbox/me/answers/1", True),
    ("inbox/you/answers/1", False),
    ("inbox/me/", False),
    ("inbox/me", False),
    ("inbox/me/action/lamp/on/1", False),
    ("inbox/me/+", False),
    ("inbox/me/#", False),
    ("inbox/me/a//b", False),
    ("things/a/b/td", False),
]


@pytest.mark.parametrize(("topic", "expected"), RESPONSES)
def test_a_response_topic_lies_inside_the_own_inbox(topic: str, expected: bool) -> None:
    assert topics.is_response_topic(topic, "me") is expected
