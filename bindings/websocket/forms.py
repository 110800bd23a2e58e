"""The forms of a twin TD for WebSockets: one address for all, with the operations of each affordance."""

from collections.abc import Mapping, Sequence

from bindings.websocket.messages import SUBPROTOCOL
from things.addresses import TwinID
from things.messages import JSONValue
from things.td import ThingDescription

Form = dict[str, JSONValue]


def forms_of(td: ThingDescription, twin: TwinID, url: str) -> Mapping[tuple[str, str], Sequence[Form]]:
    """Forms by kind and name, and ("thing", "") for the Thing as a whole; `url` is `wss://host:port/wot/ws`."""
    found: dict[tuple[str, str], Sequence[Form]] = {}
    for name, definition in td.properties.items():
        operations: list[str] = []
        if not definition.is_write_only:
            operations += ["readproperty", "observeproperty", "unobserveproperty"]
        if not definition.is_read_only:
            operations.append("writeproperty")
        found["property", name] = [_form(url, operations)]
    for name in td.actions:
        found["action", name] = [_form(url, ["invokeaction", "queryaction", "cancelaction"])]
    for name in td.events:
        found["event", name] = [_form(url, ["subscribeevent", "unsubscribeevent"])]
    whole: list[str] = []
    if td.properties:
        whole += ["readallproperties", "readmultipleproperties", "writeallproperties", "writemultipleproperties"]
        whole += ["observeallproperties", "unobserveallproperties"]
    if td.actions:
        whole.append("queryallactions")
    if td.events:
        whole += ["subscribeallevents", "unsubscribeallevents"]
    if whole:
        found["thing", ""] = [_form(url, whole)]
    return found


def _form(url: str, operations: Sequence[str]) -> Form:
    return {"href": url, "op": [*operations], "contentType": "application/json", "subprotocol": SUBPROTOCOL}
