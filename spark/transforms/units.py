"""Unit conversion: the same quantity in another unit; what cannot be converted stays as it is and is flagged."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from things.errors import Invalid
from things.lake import Quality


class Unit(NamedTuple):
    """base = value · factor + offset, in the base unit of its quantity."""

    quantity: str
    factor: float
    offset: float = 0.0


# fmt: off
UNITS: Mapping[str, Unit] = {
    "K": Unit("temperature", 1.0), "Cel": Unit("temperature", 1.0, 273.15),
    "[degF]": Unit("temperature", 5 / 9, 459.67 * 5 / 9),
    "Pa": Unit("pressure", 1.0), "hPa": Unit("pressure", 100.0), "kPa": Unit("pressure", 1e3),
    "bar": Unit("pressure", 1e5), "mbar": Unit("pressure", 100.0), "[psi]": Unit("pressure", 6894.757293168),
    "W": Unit("power", 1.0), "kW": Unit("power", 1e3), "MW": Unit("power", 1e6),
    "J": Unit("energy", 1.0), "kJ": Unit("energy", 1e3), "W.h": Unit("energy", 3.6e3), "kW.h": Unit("energy", 3.6e6),
    "V": Unit("voltage", 1.0), "mV": Unit("voltage", 1e-3), "kV": Unit("voltage", 1e3),
    "A": Unit("current", 1.0), "mA": Unit("current", 1e-3),
    "m": Unit("length", 1.0), "cm": Unit("length", 0.01), "mm": Unit("length", 1e-3), "km": Unit("length", 1e3),
    "[ft_i]": Unit("length", 0.3048), "[in_i]": Unit("length", 0.0254),
    "m/s": Unit("speed", 1.0), "km/h": Unit("speed", 1 / 3.6), "[mi_i]/h": Unit("speed", 0.44704),
    "kg": Unit("mass", 1.0), "g": Unit("mass", 1e-3), "t": Unit("mass", 1e3), "[lb_av]": Unit("mass", 0.45359237),
    "m3": Unit("volume", 1.0), "L": Unit("volume", 1e-3),
    "%": Unit("ratio", 0.01), "1": Unit("ratio", 1.0),
    "s": Unit("time", 1.0), "ms": Unit("time", 1e-3), "min": Unit("time", 60.0), "h": Unit("time", 3600.0),
    "d": Unit("time", 86_400.0),
}
# fmt: on
SYNONYMS: Mapping[str, str] = {
    "Celsius": "Cel",
    "celsius": "Cel",
    "degree celsius": "Cel",
    "°C": "Cel",
    "om2:degree_Celsius": "Cel",
    "qudt:DEG_C": "Cel",
    "Fahrenheit": "[degF]",
    "fahrenheit": "[degF]",
    "°F": "[degF]",
    "degF": "[degF]",
    "Kelvin": "K",
    "kelvin": "K",
    "percent": "%",
    "kWh": "kW.h",
    "Wh": "W.h",
    "watt": "W",
    "volt": "V",
    "ampere": "A",
    "second": "s",
    "seconds": "s",
    "meter": "m",
    "metre": "m",
    "litre": "L",
    "l": "L",
    "psi": "[psi]",
}  # fmt: skip
"""Spellings met in Thing Descriptions, for UCUM's."""


def unit_of(text: str) -> Unit:
    """The unit of that name (UCUM or a usual spelling); raises Invalid."""
    unit = UNITS.get(SYNONYMS.get(text, text))
    if unit is None:
        raise Invalid(f"{text[:40]!r} is not a unit this version converts")
    return unit


def converted(readings: DataFrame, to: Mapping[str, str]) -> DataFrame:
    """Readings with `value_double` and `unit` in the wanted unit, by name of the series: `{"temperature": "Cel"}`.

    `value_long` of what was converted becomes null. Readings without a unit, or with one of another quantity, keep
    value and unit and are flagged.
    """
    value, unit, converts, fails = F.col("value_double"), F.col("unit"), F.lit(False), F.lit(False)
    for name, target_name in to.items():
        target = unit_of(target_name)
        is_named = (F.col("name") == name) & F.col("value_double").isNotNull()
        known = F.lit(False)
        for spelling, source in _spellings(target.quantity):
            is_source = is_named & (F.col("unit") == spelling)
            base = F.col("value_double") * source.factor + source.offset
            value = F.when(is_source, (base - target.offset) / target.factor).otherwise(value)
            unit = F.when(is_source, F.lit(target_name)).otherwise(unit)
            known = known | F.coalesce(is_source, F.lit(False))
        converts = converts | known
        fails = fails | (is_named & ~known)
    changes: dict[str, Column] = {
        "value_double": value,
        "unit": unit,
        "value_long": F.when(~converts, F.col("value_long")),
        "quality": F.when(fails, F.col("quality").bitwiseOR(F.lit(int(Quality.UNIT)))).otherwise(F.col("quality")),
    }
    return readings.select(
        *(changes[name].alias(name) if name in changes else F.col(name) for name in readings.columns)
    )


def _spellings(quantity: str) -> list[tuple[str, Unit]]:
    named = [(name, unit) for name, unit in UNITS.items() if unit.quantity == quantity]
    other = [(name, UNITS[proper]) for name, proper in SYNONYMS.items() if UNITS[proper].quantity == quantity]
    return named + other
