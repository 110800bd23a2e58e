"""A water pump station: a speed that is approached, flow and power that follow it, a pressure that wears a filter.

Flow rises with speed and falls as the filter clogs; power follows the cube of speed, as pump affinity laws have it.
Over the pressure limit it says so once by an alarm, and again only after the pressure has come down.
"""

import random
from collections.abc import Sequence

from things.addresses import Kind
from things.messages import JSONValue
from things.simulated.device import DeviceChange, DeviceRefusal, number

RAMP_PER_S = 200.0
"""Percent of full speed gained or lost in a second."""
FULL_FLOW = 24.0
FULL_POWER = 5.5
STATIC_PRESSURE = 1.2
PRESSURE_ALARM = 6.0
CLOG_PER_HOUR = 0.02


class PumpStation:
    """One pump behind one filter."""

    sample = "pump-station"

    def __init__(self, *, seed: int = 1, speed: float = 40.0) -> None:
        self._random = random.Random(seed)
        self._speed = self._target = speed
        self._from = speed
        self._clog = 0.0
        self._alarmed = False
        self._said: dict[str, JSONValue] = {}

    def step(self, dt_s: float) -> Sequence[DeviceChange]:
        reach = RAMP_PER_S * dt_s
        self._speed += max(-reach, min(reach, self._target - self._speed))
        share = self._speed / 100
        if self._speed > 0:
            self._clog = min(0.6, self._clog + CLOG_PER_HOUR * share * dt_s / 3_600)
        flow = FULL_FLOW * share * (1 - self._clog) * self._noise(0.01)
        pressure = (STATIC_PRESSURE + 4.0 * share**2 * (1 + 2 * self._clog)) * self._noise(0.005)
        power = (0.1 + FULL_POWER * share**3) * self._noise(0.01) if self._speed > 0 else 0.0
        changes = self._changed(
            speed=round(self._speed, 1),
            running=self._speed > 0,
            flow=round(flow, 2),
            pressure=round(pressure, 2),
            power=round(power, 2),
        )
        if pressure > PRESSURE_ALARM and not self._alarmed:
            self._alarmed = True
            changes.append(
                DeviceChange(
                    kind=Kind.EVENT, name="alarm", value={"reason": "pressure", "pressure": round(pressure, 2)}
                )
            )
        elif pressure < PRESSURE_ALARM * 0.95:
            self._alarmed = False
        return changes

    def act(self, name: str, data: JSONValue) -> None:
        match name:
            case "setSpeed":
                self._target, self._from = number(data, 0, 100, "speed"), self._speed
            case "stop":
                self._target, self._from = 0.0, self._speed
            case "cleanFilter":
                if self._speed > 0:
                    raise DeviceRefusal("the filter is cleaned only while the pump stands still")
                self._clog = 0.0
            case _:
                raise DeviceRefusal(f"a pump station has no action {name!r}")

    def progress(self, name: str) -> float:
        way = abs(self._target - self._from)
        if name == "cleanFilter" or way == 0:
            return 100.0
        return 100.0 * (1 - abs(self._target - self._speed) / way)

    def write(self, name: str, value: JSONValue) -> None:
        raise DeviceRefusal(f"{name} is not a setting of a pump station")

    def _changed(self, **values: JSONValue) -> list[DeviceChange]:
        changed = [
            DeviceChange(kind=Kind.PROPERTY, name=name, value=value)
            for name, value in values.items()
            if self._said.get(name) != value
        ]
        self._said.update(values)
        return changed

    def _noise(self, share: float) -> float:
        return 1 + self._random.uniform(-share, share)
