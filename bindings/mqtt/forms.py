"""Forms of a twin TD over MQTT: the topic in the path of `href` and again in the `mqv:` terms.

Published clients read one or the other, never both: the vocabulary says `mqv:filter` and `mqv:topic`, node-wot takes
the path. No form holds a wildcard. Topics of requests name the caller, which a TD read by many cannot know: they are
URI templates over `{client}` (the caller's account) and `{callerRef}` (its own reference).
"""

from collections.abc import Mapping, Sequence

from bindings.mqtt.topics import publication_topic
from things.addresses import Kind, TwinID, encode_segment
from things.messages import JSONValue
from things.td import ThingDescription

Form = dict[str, JSONValue]


def forms_of(td: ThingDescription, twin: TwinID, urls: Sequence[str]) -> Mapping[tuple[str, str], Sequence[Form]]:
    """Forms by kind and name, for each base URL in turn."""
    found: dict[tuple[str, str], Sequence[Form]] = {}
    for name, affordance in td.properties.items():
        found["property", name] = [
            form
            for url in urls
            for form in _property_forms(
                url, twin, name, writes=not affordance.is_read_only, reads=not affordance.is_write_only
            )
        ]
    for name in td.actions:
        found["action", name] = [form for url in urls for form in _action_forms(url, twin, name)]
    for name in td.events:
        topic = publication_topic(twin, Kind.EVENT, name)
        found["event", name] = [
            _subscribed(url, topic, ["subscribeevent", "unsubscribeevent"], retain=False) for url in urls
        ]
    return found


def _property_forms(url: str, twin: TwinID, name: str, *, writes: bool, reads: bool) -> Sequence[Form]:
    forms: list[Form] = []
    if reads:
        operations: list[JSONValue] = ["readproperty", "observeproperty", "unobserveproperty"]
        forms.append(_subscribed(url, publication_topic(twin, Kind.PROPERTY, name), operations, retain=True))
    if writes:
        forms.append(_published(url, _request(twin, "property", name), ["writeproperty"]))
    return forms


def _action_forms(url: str, twin: TwinID, name: str) -> Sequence[Form]:
    return [
        _published(url, _request(twin, "action", name), ["invokeaction"]),
        _subscribed(url, "inbox/{client}/status/{callerRef}", ["queryaction"], retain=False),
        _published(url, "req/{client}/cancel/{callerRef}", ["cancelaction"]),
    ]


def _request(twin: TwinID, word: str, name: str) -> str:
    return f"req/{{client}}/{word}/{twin.account}/{twin.thing}/{encode_segment(name)}/{{callerRef}}"


def _subscribed(url: str, topic: str, operations: list[JSONValue], *, retain: bool) -> Form:
    return {
        "href": f"{url}/{topic}",
        "op": operations,
        "contentType": "application/json",
        "mqv:controlPacket": "subscribe",
        "mqv:filter": topic,
        "mqv:qos": "1",
        "mqv:retain": retain,
    }


def _published(url: str, topic: str, operations: list[JSONValue]) -> Form:
    return {
        "href": f"{url}/{topic}",
        "op": operations,
        "contentType": "application/json",
        "mqv:controlPacket": "publish",
        "mqv:topic": topic,
        "mqv:qos": "1",
        "mqv:retain": False,
    }
