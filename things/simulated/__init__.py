"""Simulated devices: pure behaviour without clock or I/O, for the demo, tests and trying things out."""

from things.simulated.device import Change, Device, DeviceRefusal
from things.simulated.pump import PumpStation
from things.simulated.room import RoomClimate

__all__ = ["Change", "Device", "DeviceRefusal", "PumpStation", "RoomClimate"]
