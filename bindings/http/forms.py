"""The forms of a twin TD for HTTP: addresses of this runtime, with the operations each one serves.

Every property has a plain form, an event-stream form and a long-poll form. The stream forms ask for unnamed events and
carry a `ticket` variable, since the common client libraries listen to `message` only and cannot set headers there; the
long-poll form is the one on which they do send credentials.
"""

from collections.abc import Mapping, Sequence

from things.addresses import TwinID, encode_segment
from things.messages import JSONValue
from things.td import ThingDescription

Form = dict[str, JSONValue]

_JSON = "application/json"
_SSE = {"subprotocol": "sse"}


def forms(td: ThingDescription, twin: TwinID, base: str) -> Mapping[tuple[str, str], Sequence[Form]]:
    """Forms by ("property"|"action"|"event", name), and ("thing", "") for the Thing as a whole."""
    root = f"{base}/things/{encode_segment(str(twin))}"
    found: dict[tuple[str, str], Sequence[Form]] = {("thing", ""): [*_thing_forms(root, td), *_several(root, td)]}
    for name, definition in td.properties.items():
        found["property", name] = _property_forms(
            f"{root}/properties/{encode_segment(name)}",
            readable=not definition.is_write_only,
            writable=not definition.is_read_only,
        )
    for name in td.actions:
        found["action", name] = _action_forms(f"{root}/actions/{encode_segment(name)}")
    for name in td.events:
        found["event", name] = _event_forms(f"{root}/events/{encode_segment(name)}")
    return found


def profile_forms(td: ThingDescription, twin: TwinID, base: str) -> Mapping[tuple[str, str], Sequence[Form]]:
    """The same for clients of the W3C HTTP Basic and SSE Profiles: a property's address is its stream's too, events are
    named, and the address of an invocation comes with the answer to it."""
    root = f"{base}/things/{encode_segment(str(twin))}"
    found: dict[tuple[str, str], Sequence[Form]] = {("thing", ""): _thing_forms(root, td)}
    for name, definition in td.properties.items():
        href = f"{root}/properties/{encode_segment(name)}"
        operations = ["readproperty"] * (not definition.is_write_only) + ["writeproperty"] * (
            not definition.is_read_only
        )
        streams = [] if definition.is_write_only else [_form(href, "observeproperty", "unobserveproperty", **_SSE)]
        found["property", name] = [_form(href, *operations), *streams]
    for name in td.actions:
        found["action", name] = [_form(f"{root}/actions/{encode_segment(name)}", "invokeaction")]
    for name in td.events:
        href = f"{root}/events/{encode_segment(name)}"
        found["event", name] = [_form(href, "subscribeevent", "unsubscribeevent", **_SSE)]
    return found


def _property_forms(href: str, *, readable: bool, writable: bool) -> list[Form]:
    operations = ["readproperty"] * readable + ["writeproperty"] * writable
    found = [_form(href, *operations)]
    if readable:
        found += [
            _form(f"{href}?wait=3600", "observeproperty", "unobserveproperty", subprotocol="longpoll"),
            _form(f"{href}?sse=unnamed{{&ticket}}", "observeproperty", "unobserveproperty", subprotocol="sse"),
        ]
    return found


def _event_forms(href: str) -> list[Form]:
    return [
        _form(f"{href}?wait=3600", "subscribeevent", "unsubscribeevent", subprotocol="longpoll"),
        _form(f"{href}?sse=unnamed{{&ticket}}", "subscribeevent", "unsubscribeevent", subprotocol="sse"),
    ]


def _action_forms(href: str) -> list[Form]:
    return [
        _form(href, "invokeaction", response={"contentType": _JSON}),
        # The address of one invocation is in the answer to it.
        _form(f"{href}/{{requestID}}", "queryaction", **{"htv:methodName": "GET"}),
        _form(f"{href}/{{requestID}}", "cancelaction", **{"htv:methodName": "DELETE"}),
    ]


def _thing_forms(root: str, td: ThingDescription) -> list[Form]:
    found: list[Form] = []
    if td.properties:
        found += [
            _form(f"{root}/properties", "readallproperties", **{"htv:methodName": "GET"}),
            _form(f"{root}/properties", "writemultipleproperties", **{"htv:methodName": "PUT"}),
            _form(f"{root}/properties", "observeallproperties", "unobserveallproperties", subprotocol="sse"),
        ]
    if td.events:
        found.append(_form(f"{root}/events", "subscribeallevents", "unsubscribeallevents", subprotocol="sse"))
    if td.actions:
        found.append(_form(f"{root}/actions", "queryallactions"))
    return found


def _several(root: str, td: ThingDescription) -> list[Form]:
    """What the HTTP Basic Profile leaves out: the names to be read are sent as a list."""
    if not td.properties:
        return []
    return [
        _form(f"{root}/properties", "readmultipleproperties", **{"htv:methodName": "POST"}),
        _form(f"{root}/properties", "writeallproperties", **{"htv:methodName": "PUT"}),
    ]


def _form(href: str, *operations: str, **more: JSONValue) -> Form:
    return {"href": href, "op": [*operations], "contentType": _JSON, **more}
