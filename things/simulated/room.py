"""A room with a thermostat: temperature between the weather outside and the radiator, humidity, CO₂ and people.

The day has a rhythm: it is coldest outside at five, people are in from eight to eighteen. A set point can be written.
"""

import math
import random
from collections.abc import Sequence

from things.addresses import Kind
from things.messages import JSONValue
from things.simulated.device import DeviceChange, DeviceRefusal, number

DAY_S = 86_400.0
LEAK_PER_HOUR = 0.25
HEATING_PER_HOUR = 4.0
HYSTERESIS = 0.3


class RoomClimate:
    """One room, beginning at an hour of the day."""

    sample = "room-climate"

    def __init__(self, *, seed: int = 2, hour: float = 7.0) -> None:
        self._random = random.Random(seed)
        self._time_s = hour * 3_600
        self._temperature = 19.0
        self._humidity = 45.0
        self._co2 = 450.0
        self._set_point = 21.0
        self._heating = False
        self._said: dict[str, JSONValue] = {}

    def step(self, dt_s: float) -> Sequence[DeviceChange]:
        self._time_s += dt_s
        hours = dt_s / 3_600
        hour = self._time_s % DAY_S / 3_600
        outside = 6.0 - 5.0 * math.cos((hour - 5) / 24 * 2 * math.pi)
        people = 4 if 8 <= hour < 18 else 0
        if self._temperature < self._set_point - HYSTERESIS:
            self._heating = True
        elif self._temperature > self._set_point + HYSTERESIS:
            self._heating = False
        gain = HEATING_PER_HOUR * self._heating + 0.15 * people
        self._temperature = _approach(self._temperature, outside, LEAK_PER_HOUR, hours) + gain * hours
        self._humidity = _approach(self._humidity, 42.0 + 3 * people, 0.8, hours)
        self._co2 = _approach(self._co2, 420.0 + 220.0 * people, 1.2, hours)
        return self._changed(
            temperature=round(self._temperature + self._random.uniform(-0.05, 0.05), 2),
            humidity=round(self._humidity + self._random.uniform(-0.4, 0.4), 1),
            co2=round(self._co2 + self._random.uniform(-4, 4)),
            heating=self._heating,
            occupied=people > 0,
            setPoint=self._set_point,
        )

    def act(self, name: str, data: JSONValue) -> None:
        raise DeviceRefusal(f"a room has no action {name!r}")

    def progress(self, name: str) -> float:
        return 100.0

    def write(self, name: str, value: JSONValue) -> None:
        if name != "setPoint":
            raise DeviceRefusal(f"{name} is not a setting of a room")
        self._set_point = number(value, 5, 30, "the set point")

    def _changed(self, **values: JSONValue) -> list[DeviceChange]:
        changes: list[DeviceChange] = []
        for name, value in values.items():
            before = self._said.get(name)
            if before == value:
                continue
            self._said[name] = value
            changes.append(DeviceChange(kind=Kind.PROPERTY, name=name, value=value))
            if name == "occupied" and before is not None:
                changes.append(DeviceChange(kind=Kind.EVENT, name="occupancy", value={"occupied": value}))
        return changes


def _approach(value: float, aim: float, share_per_hour: float, hours: float) -> float:
    return aim + (value - aim) * math.exp(-share_per_hour * hours)
