"""Synchronized objects: how one change by attribute path alters them, for reporters, observers and the node alike."""

import copy
from collections.abc import Mapping

from things.errors import Invalid
from things.messages import JSONValue

MAX_PATH = 16


def change(data: dict[str, JSONValue], body: Mapping[str, JSONValue]) -> str | None:
    """Carry out the change that an update's body describes, in place.

    `{"attribute": "a.b", "value": v}` sets (makes objects on the way), without `value` removes; with
    `attributeType: "array"` and `operation: "add" | "remove"` it changes an array. Returns the name of the outermost
    attribute that changed, None if the body replaced all of them. Raises Invalid; then nothing changed.
    """
    attribute = body.get("attribute")
    if attribute is None:
        value = body.get("value")
        if not isinstance(value, dict):
            raise Invalid("an update names an attribute, or gives the whole object as its value")
        data.clear()
        data.update(copy.deepcopy(value))
        return None
    if not isinstance(attribute, str) or not attribute:
        raise Invalid("`attribute` is a path such as a.b")
    steps = attribute.split(".")
    if len(steps) > MAX_PATH:
        raise Invalid(f"an attribute path has at most {MAX_PATH} steps")
    trial: JSONValue = copy.deepcopy(data.get(steps[0])) if len(steps) > 1 or _is_array(body) else None
    root: dict[str, JSONValue] = {} if trial is None else {steps[0]: trial}
    _changed(root, steps, body)
    if steps[0] in root:
        data[steps[0]] = root[steps[0]]
    else:
        data.pop(steps[0], None)
    return steps[0]


def _is_array(body: Mapping[str, JSONValue]) -> bool:
    return body.get("attributeType") == "array" and body.get("operation") in ("add", "remove")


def _changed(root: dict[str, JSONValue], steps: list[str], body: Mapping[str, JSONValue]) -> None:
    holder: JSONValue = root
    for step in steps[:-1]:
        holder = _child(holder, step)
    last = steps[-1]
    if _is_array(body):
        items = _child(holder, last, make=[])
        if not isinstance(items, list):
            raise Invalid(f"{last!r} is not an array")
        values = body.get("value")
        for value in values if isinstance(values, list) else [values]:
            if body["operation"] == "add":
                items.append(value)
            elif value in items:
                items.remove(value)
        return
    if isinstance(holder, list):
        index = _index(holder, last)
        if "value" in body:
            holder[index] = body["value"]
        else:
            del holder[index]
    elif isinstance(holder, dict):
        if "value" in body:
            holder[last] = body["value"]
        else:
            holder.pop(last, None)
    else:
        raise Invalid(f"there is no attribute below {steps[-2]!r}")


def _child(holder: JSONValue, step: str, make: JSONValue = None) -> JSONValue:
    if isinstance(holder, list):
        return holder[_index(holder, step)]
    if not isinstance(holder, dict):
        raise Invalid(f"there is no attribute {step!r} here")
    if holder.get(step) is None:
        holder[step] = {} if make is None else make
    return holder[step]


def _index(items: list[JSONValue], step: str) -> int:
    if not step.isdecimal() or len(step) > 6 or int(step) >= len(items):
        raise Invalid(f"the array has no item {step[:32]!r}")
    return int(step)
