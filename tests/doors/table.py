"""The table of the contract: what is sent, and what comes of it at every door that can say it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.doors.contract import Operation, Sent

TWIN, ABSENT, HIDDEN = "dtw:pumps:pump-1", "dtw:valves:valve-1", "dtw:tanks:tank-1"
"""A Thing that speaks, one whose agent is never there, and one that nobody but its agent may see."""
ANY = object()
"""Said by a door in its own words, or not at all."""

TD: Mapping[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {
        "flow": {"type": "number", "minimum": 0, "maximum": 100, "unit": "l/min", "readOnly": True},
        "target": {"type": "number", "minimum": 0, "maximum": 100},
        "label": {"type": "string"},
        "mode": {},
        "fresh": {"type": "number"},
    },
    "events": {"alarm": {"data": {"type": "string"}}, "tick": {}},
    "actions": {
        "setSpeed": {"input": {"type": "integer", "minimum": 0, "maximum": 10}},
        "reset": {},
        "ping": {"skep:expires": "PT0S"},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A row of history: quality 1 is undeclared, 4 out of range, 128 too far ahead, 256 late."""

    name: str
    value: str
    quality: int = 0
    created: str = "now"
    """As it was sent, or "now"."""
    source_time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A row of the ledger: one that is new, or one that went on."""

    name: str
    input: Any = None
    state: str = "pending"
    output: Any = None
    error: str | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the directory holds of the Thing that was sent now: its title, or None once it is gone."""

    title: str | None


Left = Reading | Request | Description


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: refused by `code` and nothing left, or taken with what is `left`.

    `first` is sent over HTTP before each door is tried. `{request}` in a name stands for the last request that was made
    so, and `{n}` for a number that no other door has. `words` says whether the sentence is the same at every door.
    """

    title: str
    sent: Sent
    code: str | None = None
    left: Sequence[Left] = ()
    first: Sequence[Sent] = ()
    output: Any = None
    words: bool = True
    is_repeat: bool = False
    """Sent through each door twice; what the second leaves counts."""
    pointers: Sequence[str] | None = None


def prop(data: str | bytes | None = "5", name: str = "flow", **more: Any) -> Sent:
    return Sent(operation=Operation.PROPERTY, name=name, data=_bytes(data), **more)


def event(data: str | bytes | None = '"hot"', name: str = "alarm", **more: Any) -> Sent:
    return Sent(operation=Operation.EVENT, name=name, data=_bytes(data), **more)


def values(data: str | bytes, **more: Any) -> Sent:
    return Sent(operation=Operation.VALUES, data=_bytes(data), **more)


def td(document: Any, thing: str = "pump-{n}", **more: Any) -> Sent:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Sent(operation=Operation.TD, thing=thing, data=data, **more)


def remove(thing: str, **more: Any) -> Sent:
    return Sent(operation=Operation.REMOVE, thing=thing, **more)


def invoke(data: str | None = "3", name: str = "setSpeed", thing: str = ABSENT, by: str = "ann", **more: Any) -> Sent:
    return Sent(operation=Operation.INVOKE, thing=thing, name=name, data=_bytes(data), by=by, **more)


def write(data: str | None = "3", name: str = "target", thing: str = ABSENT, by: str = "ann", **more: Any) -> Sent:
    return Sent(operation=Operation.WRITE, thing=thing, name=name, data=_bytes(data), by=by, **more)


def call(data: str | None = "3", name: str = "setSpeed", thing: str = ABSENT, by: str = "ann", **more: Any) -> Sent:
    return Sent(operation=Operation.CALL, thing=thing, name=name, data=_bytes(data), by=by, **more)


def cancel(name: str, thing: str = ABSENT, by: str = "ann", **more: Any) -> Sent:
    return Sent(operation=Operation.CANCEL, thing=thing, name=name, by=by, **more)


def report(status: Any, name: str = "{request}", by: str = "valves") -> Sent:
    data = status if isinstance(status, bytes) else json.dumps(status).encode()
    return Sent(operation=Operation.REPORT, name=name, data=data, by=by)


def read(name: str, thing: str = TWIN, by: str = "ann") -> Sent:
    return Sent(operation=Operation.READ, thing=thing, name=name, by=by)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


BAD_NAMES = {
    "empty": "",
    "one dot": ".",
    "two dots": "..",
    "a line feed": "a\nb",
    "a carriage return": "\r",
    "a null": "a\0",
    "a delete": "a\x7f",
    "a next line": "a\x85b",
    "a line separator": "a\u2028b",
    "129 characters": "n" * 129,
    "more than a topic": "n" * 70_000,
}

BAD_TD = {"@context": TD["@context"], "properties": {"flow": {"type": "numeric"}, "level": {"minimum": "low"}}}

VALUES = (
    Case("a value", prop(), left=[Reading(name="flow", value="5")]),
    Case("the same value again", prop(), is_repeat=True, left=[Reading(name="flow", value="5")]),
    Case("a value out of range", prop("120"), left=[Reading(name="flow", value="120", quality=4)]),
    Case("a name that is not declared", prop(name="extra"), left=[Reading(name="extra", value="5", quality=1)]),
    Case("a name of other characters", prop(name="a/b é%+#"), left=[Reading(name="a/b é%+#", value="5", quality=1)]),
    Case("null where the type is open", prop("null", "mode"), left=[Reading(name="mode", value="null")]),
    Case(
        "an integer of 64 bits", prop("9007199254740993", "mode"), left=[Reading(name="mode", value="9007199254740993")]
    ),
    Case("32 levels", prop(_nested(32), "mode"), left=[Reading(name="mode", value=_nested(32))]),
    Case("33 levels", prop(_nested(33), "mode"), "too-deep"),
    Case(
        "190,000 bytes", prop(f'"{"x" * 190_000}"', "label"), left=[Reading(name="label", value=f'"{"x" * 190_000}"')]
    ),
    Case("more than 262,144 bytes", prop(f'"{"x" * 262_144}"', "label"), "too-large", words=False),
    Case(
        "a repeated key: the last counts", prop('{"a":1,"a":2}', "mode"), left=[Reading(name="mode", value='{"a":2}')]
    ),
    Case("a value of another type", prop('"fast"'), "invalid"),
    Case("true as a number", prop("true"), "invalid"),
    Case("a property without data", prop(None), "invalid"),
    Case("a property of open type without data", prop(None, "mode"), "invalid"),
    Case("an undeclared property without data", prop(None, "extra"), "invalid"),
    Case("not JSON", prop("fast"), "malformed", words=False),
    Case("NaN", prop("NaN"), "malformed", words=False),
    Case("a number beyond doubles", prop("1e999"), "malformed", words=False),
    Case("not UTF-8", prop(b'"\xff"', "label"), "malformed", words=False),
    Case("an unknown Thing", prop(thing="nowhere"), "unknown-thing"),
    Case("somebody else's Thing", prop(thing="dtw:valves:valve-1"), "forbidden", words=False),
    Case("a Thing id with a space", prop(thing="pump 1"), "bad-address"),
    Case("by a consumer", prop(by="ann"), "forbidden"),
)

EVENTS = (
    Case("an event", event(), left=[Reading(name="alarm", value='"hot"')]),
    Case("an event without data", event(None, "tick"), left=[Reading(name="tick", value="null")]),
    Case("an event that needs data without it", event(None), "invalid"),
    Case("an event of another type", event("7"), "invalid"),
    Case("an event that is not declared", event("7", "noise"), left=[Reading(name="noise", value="7", quality=1)]),
    Case("an event of 33 levels", event(_nested(33), "tick"), "too-deep"),
    Case("an event that is not JSON", event("hot"), "malformed", words=False),
    Case("an event of an unknown Thing", event(thing="nowhere"), "unknown-thing"),
)

TIMES = (
    Case(
        "a time of the past",
        event(created="2026-01-31T12:00:00Z"),
        left=[Reading(name="alarm", value='"hot"', quality=256, created="2026-01-31T12:00:00Z")],
    ),
    Case(
        "a time far ahead",
        event(created="2999-01-01T00:00:00Z"),
        left=[Reading(name="alarm", value='"hot"', quality=128, source_time="2999-01-01T00:00:00Z")],
    ),
    Case("a time that is none", event(created="yesterday"), "invalid"),
    Case("a time without zone", event(created="2026-01-31T12:00:00"), "invalid"),
    Case("a day that is none", event(created="2026-02-30T12:00:00Z"), "invalid"),
)

MESSAGE_IDS = (
    Case("a message id", event(message_id="m-{n}"), left=[Reading(name="alarm", value='"hot"')]),
    Case("a message id again", event(message_id="r-{n}"), is_repeat=True),
    Case("a message id of 129 characters", event(message_id="m" * 129), "invalid", words=False),
    Case("a message id with a line feed", event(message_id="m\nm"), "invalid", words=False),
)

_NAMED: Mapping[str, Callable[[str], Sent]] = {
    "property": lambda name: prop(name=name),
    "event": lambda name: event(name=name),
    "action": lambda name: invoke(name=name),
    "write": lambda name: write(name=name),
    "call": lambda name: call(name=name),
}

NAMES = tuple(
    Case(f"{what}: {kind}", sent(name), "bad-address")
    for what, name in BAD_NAMES.items()
    for kind, sent in _NAMED.items()
)

SEVERAL = (
    Case(
        "several values",
        values('{"flow":5,"label":"a"}'),
        left=[Reading(name="flow", value="5"), Reading(name="label", value='"a"')],
    ),
    Case("one of them wrong", values('{"flow":5,"label":7}'), "invalid", left=[Reading(name="flow", value="5")]),
    Case(
        "two of them wrong",
        values('{"flow":"a","..":1,"label":"a"}'),
        "invalid",
        left=[Reading(name="label", value='"a"')],
        pointers=["#/..", "#/flow"],
    ),
    Case("no values", values("{}"), "malformed"),
    Case("no object", values("[5]"), "malformed"),
    Case(
        "one of 33 levels",
        values(f'{{"flow":5,"mode":{_nested(33)}}}'),
        "too-deep",
        left=[Reading(name="flow", value="5")],
    ),
)

DESCRIPTIONS = (
    Case("a description", td(TD), left=[Description(title="Pump")]),
    Case("a description again", td(TD), is_repeat=True),
    Case(
        "a description with two faults",
        td(BAD_TD),
        "td-invalid",
        pointers=["#/title", "#/properties/flow/type", "#/properties/level/minimum"],
    ),
    Case("a description that is no object", td([1]), "td-invalid"),
    Case("an empty description", td({}), "td-invalid"),
    Case("a description with a repeated key", td(b'{"title":"a","title":"b"}'), "malformed", words=False),
    Case("a description that is not JSON", td(b"{title}"), "malformed", words=False),
    Case("a description that is not UTF-8", td(b'{"title":"\xff"}'), "malformed", words=False),
    Case("a description of 33 levels", td(b'{"x":' + _nested(32).encode() + b"}"), "too-deep"),
    Case("a description too large", td({**TD, "description": "x" * 262_144}), "too-large", words=False),
    Case("a property of a bad name", td({**TD, "properties": {"..": {}}}), "td-invalid", pointers=["#/properties/.."]),
    Case("an action of a bad name", td({**TD, "actions": {"\n": {}}}), "td-invalid", pointers=["#/actions/\n"]),
    Case("an event of a bad name", td({**TD, "events": {"": {}}}), "td-invalid", pointers=["#/events/"]),
    Case("a description of a bad Thing", td(TD, thing="pump 1"), "bad-address"),
    Case("a description by a consumer", td(TD, by="ann"), "forbidden"),
    Case("a removal", remove("gone-{n}"), first=[td(TD, thing="gone-{n}")], left=[Description(title=None)]),
    Case("a removal of nothing", remove("nowhere"), "unknown-thing"),
    Case("a removal of a bad Thing", remove("pump 1"), "bad-address"),
)

REQUESTS = (
    Case("an action", invoke(), left=[Request(name="setSpeed", input=3)]),
    Case("an action without input", invoke(None, "reset"), left=[Request(name="reset")]),
    Case("an action that is not declared", invoke(name="explode"), "unknown-name"),
    Case("an input of another type", invoke('"fast"'), "invalid"),
    Case("an input out of range", invoke("11"), "invalid"),
    Case("an input that is missing", invoke(None), "invalid"),
    Case("an input that is not JSON", invoke("fast"), "malformed", words=False),
    Case("an input of 33 levels", invoke(_nested(33), "reset"), "too-deep"),
    Case("an action that is never queued", invoke(None, "ping"), "not-connected"),
    Case("an action that may not wait", invoke(expires_s=0), "not-connected"),
    Case("an action by a viewer", invoke(by="vic"), "forbidden"),
    Case("an action of an unknown Thing", invoke(thing="dtw:valves:nowhere"), "unknown-thing"),
    Case("an action of a hidden Thing", invoke(thing=HIDDEN, by="vic"), "unknown-thing"),
    Case("an action of an impossible Thing", invoke(thing="dtw:valves:a b"), "bad-address"),
    Case("a write", write(), left=[Request(name="target", input=3)]),
    Case("a write of another type", write('"fast"'), "invalid"),
    Case("a write without a value", write(None), "invalid"),
    Case("a write of what is read only", write(name="flow"), "invalid"),
    Case("a write that is not declared", write(name="extra"), "unknown-name"),
    Case("a write by a viewer", write(by="vic"), "forbidden"),
    Case("a write to a hidden Thing", write(thing=HIDDEN, by="vic"), "unknown-thing"),
    Case("a call of an absent agent", call(), "not-connected"),
    Case("a call that is not declared", call(name="explode"), "unknown-name"),
    Case("a call by a viewer", call(by="vic"), "forbidden"),
    Case("a call of a hidden Thing", call(thing=HIDDEN, by="vic"), "unknown-thing"),
    Case("a reference again", invoke(reference="again-{n}"), first=[invoke(reference="again-{n}")]),
    Case(
        "a reference for something else",
        invoke("4", reference="else-{n}"),
        "conflict",
        first=[invoke(reference="else-{n}")],
    ),
    Case(
        "a cancel",
        cancel("{request}", reference="back-{n}"),
        first=[invoke(reference="back-{n}")],
        left=[Request(name="setSpeed", input=3, state="cancelled")],
    ),
    Case("a cancel of nothing", cancel("nothing", reference="nothing"), "unknown-request"),
    Case(
        "a cancel of what has ended",
        cancel("{request}", reference="over-{n}"),
        "conflict",
        first=[invoke(reference="over-{n}"), report({"state": "completed"})],
    ),
)

REPORTS = (
    Case(
        "progress",
        report({"state": "running", "progress": 40}),
        first=[invoke()],
        left=[Request(name="setSpeed", input=3, state="running", progress=40.0)],
    ),
    Case(
        "an output",
        report({"state": "completed", "output": {"speed": 3}}),
        first=[invoke()],
        left=[Request(name="setSpeed", input=3, state="completed", output={"speed": 3})],
    ),
    Case("a report on nothing", report({"state": "running"}, "nothing"), "unknown-request"),
    Case("a report on somebody else's", report({"state": "running"}, by="pumps"), "unknown-request", first=[invoke()]),
    Case(
        "a report after the end",
        report({"state": "running"}),
        "illegal-status",
        first=[invoke(), report({"state": "completed"})],
    ),
    Case("a state of the runtime's", report({"state": "delivered"}), "invalid", first=[invoke()]),
    Case("a state that is none", report({"state": "lost"}), "invalid", first=[invoke()]),
    Case("progress of 101", report({"state": "running", "progress": 101}), "invalid", first=[invoke()]),
    Case("a report on an impossible request", report({"state": "running"}, "a b"), "bad-address"),
    Case("a report that is not JSON", report(b"{done}"), "malformed", first=[invoke()], words=False),
)

READS = (
    Case("a read", read("flow"), first=[prop("7")], output=7),
    Case("a read of what has no value", read("fresh"), "not-found"),
    Case("a read of what is not declared", read("nothing"), "unknown-name"),
    Case("a read of an unknown Thing", read("flow", "dtw:pumps:nowhere"), "unknown-thing"),
    Case("a read of a hidden Thing", read("flow", HIDDEN, by="vic"), "unknown-thing"),
)

TABLE: Mapping[str, Sequence[Case]] = {
    "Values": VALUES,
    "Events": EVENTS,
    "Times": TIMES,
    "Message ids": MESSAGE_IDS,
    "Names that cannot be": NAMES,
    "Several values": SEVERAL,
    "Descriptions": DESCRIPTIONS,
    "Requests": REQUESTS,
    "Reports": REPORTS,
    "Reads": READS,
}
