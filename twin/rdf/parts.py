"""Which statements of a Thing are hidden and shown together, and how a caller's sight of all Things is told.

Properties are kept apart by whether they can be read and written, since the right to do either shows them to a caller.
A sight is a set of these shares; what a single right to a single name shows is listed by name.
"""

from collections.abc import Mapping
from enum import IntFlag
from typing import Any

from things.addresses import Kind
from things.rdf import Part


class Share(IntFlag):
    """A share of what is said of a Thing."""

    NOTHING = 0
    THING = 1
    PROPERTIES = 2
    READ_ONLY = 4
    WRITE_ONLY = 8
    ACTIONS = 16
    EVENTS = 32
    WHOLE = 63


def share_of(part: Part, document: Mapping[str, Any]) -> Share:
    """The share to which a part of a TD belongs."""
    if part is None:
        return Share.THING
    kind, name = part
    match kind:
        case Kind.ACTION:
            return Share.ACTIONS
        case Kind.EVENT:
            return Share.EVENTS
        case _:
            definition = document["properties"][name]
            if definition.get("readOnly") is True:
                return Share.READ_ONLY
            return Share.WRITE_ONLY if definition.get("writeOnly") is True else Share.PROPERTIES


def spelled(part: Part) -> str:
    """A part as a text, for the index process."""
    return "" if part is None else f"{part[0].value}/{part[1]}"
