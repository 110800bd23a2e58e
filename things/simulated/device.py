"""What every simulated device offers: time that passes in steps, actions, settings that can be written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from things.addresses import Kind
from things.messages import JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """Something a device says: a property's new value, or an event."""

    kind: Kind
    name: str
    value: JSONValue


class DeviceRefusal(Exception):
    """The device says no; the text is its own words."""


class Device(Protocol):
    """A device moves only when it is stepped, and the same seed and steps give the same changes."""

    sample: str
    """Name of its Thing Description in `things/samples`."""

    def step(self, dt_s: float) -> Sequence[DeviceChange]:
        """Let `dt_s` seconds pass; what changed, in order."""
        ...

    def act(self, name: str, data: JSONValue) -> None:
        """Begin an action; `progress` tells how far it is. Raises DeviceRefusal."""
        ...

    def progress(self, name: str) -> float:
        """How much of the action is done, 0 to 100."""
        ...

    def write(self, name: str, value: JSONValue) -> None:
        """Change a setting; the next step reports it. Raises DeviceRefusal."""
        ...


def number(data: JSONValue, least: float, most: float, what: str) -> float:
    """`data` as a number between both; raises DeviceRefusal."""
    if isinstance(data, bool) or not isinstance(data, int | float) or not least <= data <= most:
        raise DeviceRefusal(f"{what} must be a number from {least:g} to {most:g}")
    return float(data)
