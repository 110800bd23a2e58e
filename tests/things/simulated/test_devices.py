"""Simulated devices: pure, repeatable, and honest with their Thing Descriptions."""

from collections.abc import Callable

import pytest

from things.addresses import Kind
from things.samples import sample_td
from things.simulated import Device, DeviceRefusal, PumpStation, RoomClimate
from things.td import ThingDescription

DEVICES: list[Callable[[], Device]] = [PumpStation, RoomClimate]


@pytest.mark.parametrize("make", DEVICES)
def test_same_seed_and_steps_give_the_same_changes(make: Callable[[], Device]) -> None:
    one, other = make(), make()

    first = [one.step(1.0) for _ in range(50)]
    second = [other.step(1.0) for _ in range(50)]

    assert first == second


@pytest.mark.parametrize("make", DEVICES)
def test_everything_a_device_says_fits_its_thing_description(make: Callable[[], Device]) -> None:
    device = make()
    td = ThingDescription.parse(sample_td(device.sample), agent=True)

    changes = [change for _ in range(2_000) for change in device.step(60.0)]

    assert {change.name for change in changes if change.kind is Kind.PROPERTY} == set(td.document["properties"])
    for change in changes:
        affordance = td.affordance(change.kind, change.name)
        assert affordance is not None
        assert affordance.schema_validator is not None
        affordance.schema_validator.check(change.value, change.name)


def test_pump_reaches_the_speed_it_was_set_to_in_steps() -> None:
    pump = PumpStation(speed=0)

    pump.act("setSpeed", 60)
    pump.step(0.1)
    halfway = pump.progress("setSpeed")
    pump.step(1.0)

    assert 0 < halfway < 100
    assert pump.progress("setSpeed") == 100


def test_pump_refuses_a_speed_it_does_not_have_and_keeps_its_own() -> None:
    pump = PumpStation(speed=40)

    with pytest.raises(DeviceRefusal, match="speed must be"):
        pump.act("setSpeed", 101)
    pump.step(1.0)

    assert pump.progress("setSpeed") == 100


def test_filter_is_cleaned_only_while_the_pump_stands_still() -> None:
    pump = PumpStation(speed=40)

    with pytest.raises(DeviceRefusal):
        pump.act("cleanFilter", None)
    pump.act("stop", None)
    pump.step(1.0)

    pump.act("cleanFilter", None)


def test_pressure_alarm_is_said_once_until_the_pressure_has_come_down() -> None:
    pump = PumpStation(speed=100)

    alarms = [change for _ in range(4_000) for change in pump.step(60.0) if change.name == "alarm"]

    assert len(alarms) == 1


def test_room_follows_a_written_set_point() -> None:
    room = RoomClimate()

    room.write("setPoint", 25)
    temperatures = [change.value for _ in range(600) for change in room.step(60.0) if change.name == "temperature"]

    assert isinstance(temperatures[-1], float)
    assert 24 < temperatures[-1] < 26
    with pytest.raises(DeviceRefusal):
        room.write("setPoint", 80)
