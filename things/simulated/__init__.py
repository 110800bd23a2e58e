"""Simulated devices: pure behaviour without clock or I/O, for the demo, tests and trying things out."""

from things.simulated.device import Device, DeviceChange, DeviceRefusal
from things.simulated.pump import PumpStation
from things.simulated.room import RoomClimate

__all__ = ["Device", "DeviceChange", "DeviceRefusal", "PumpStation", "RoomClimate"]
