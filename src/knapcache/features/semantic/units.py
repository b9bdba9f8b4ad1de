"""Units of measurement: what a unit measures, and how large it is."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit."""

    name: str
    dimension: str
    """The quantity that it measures. A unit without a conversion is the only one of its dimension."""
    factor: float
    """Its size, in the first unit of the dimension."""


_TABLE = """
    length:      1 metre meter metres meters · 1e3 km kms kilometre kilometer kilometres kilometers · 1e-2 cm · 1e-3 mm
                 · 1e-6 um · 1e-9 nm · .0254 inch inches · .3048 foot feet ft · .9144 yard yards yd
                 · 1609.344 mile miles mi · 1.8288 fathom fathoms · 201.168 furlong furlongs · .1016 hand hands
    mass:        1 gram grams gramme grammes · 1e3 kg kgs kilo kilos kilogram kilograms · 1e-3 mg milligram milligrams
                 · 1e-6 mcg ug microgram micrograms · 1e-9 ng · 28.349523125 ounce ounces oz · 6350.29318 stone stones
                 · 1e6 ton tons tonne tonnes · .2 carat carats · .06479891 grain grains
    volume:      1 litre liter litres liters · 1e-3 ml millilitre milliliter millilitres milliliters · 1e-2 cl · .1 dl
                 · 3.785411784 gallon gallons · .473176473 pint pints · .946352946 quart quarts · .2365882365 cup cups
                 · .01478676478 tablespoon tablespoons tbsp · .00492892159 teaspoon teaspoons tsp
                 · 158.987294928 barrel barrels
    time:        1 seconds sec secs · 1e-3 ms · 60 minute minutes mins · 3600 hour hours hr hrs hourly
                 · 86400 day days daily · 604800 week weeks weekly · 1209600 fortnight fortnights fortnightly
    calendar:    1 month months monthly · 12 year years yearly annual annually · 120 decade decades
                 · 1200 century centuries · 12000 millennium millennia
    area:        1 acre acres · 2.4710538 hectare hectares ha
    pressure:    1 pascal pascals · 1e2 hpa · 1e3 kpa · 1e6 mpa · 1e5 bar bars · 6894.757293 psi
                 · 101325 atm atmosphere atmospheres
    power:       1 watt watts · 1e3 kw · 1e6 mw · 1e9 gw · 745.6998716 horsepower hp
    energy:      1 joule joules · 1e3 kj · 4.184 calorie calories · 4184 kcal · 3600 wh · 1.602e-19 ev
    data:        1 bit bits · 8 byte bytes · 8e3 kb · 8e6 mb · 8e9 gb · 8e12 tb
    speed:       1 kmh kph · 1.609344 mph · 1.852 knot knots
    voltage:     1 volt volts · 1e3 kv · 1e-3 mv
    force:       1 newton newtons · 1e3 kn
    current:     1 ampere amperes amp amps
    frequency:   1 hertz hz
    resistance:  1 ohm ohms
    amount:      1 mole moles mol
    temperature: 1 kelvin
    dollars:     1 dollar dollars $ usd buck bucks · .01 cent cents
"""
_ALONE = """
    celsius centigrade °c | fahrenheit °f | percent % percentage | degree degrees | radian radians
    | pound pounds lb lbs | £ gbp quid | euro euros € eur | yen ¥ jpy | rupee rupees inr ₹ | peso pesos ₱
    | franc francs chf | ruble rubles rouble roubles ₽ | yuan renminbi | won krw ₩ | krona kronor krone kroner
    | zloty zlotys | lira liras ₺ | rand | dirham dirhams | shekel shekels ₪ | baht ฿"""
"""Units that are not converted: currencies, temperatures, and pounds, which are a currency or a mass."""
CASED_UNITS = {"mW": "milliwatt", "Mb": "megabit", "Gb": "gigabit", "Tb": "terabit", "MV": "megavolt", "G": "G"}
"""Units after a number whose case matters, and another name of each. "G" is none: 5G is no mass."""

UNITS: dict[str, Unit] = {}
"""Units by each of their names."""


def _read_tables() -> None:
    dimension = ""
    for line in _TABLE.strip().splitlines():
        before, colon, rest = line.partition(":")
        dimension = before.strip() if colon else dimension
        for group in (rest if colon else line).split("·"):
            if group.strip():
                factor, *names = group.split()
                UNITS.update(dict.fromkeys(names, Unit(names[0], dimension, float(factor))))
    for group in _ALONE.split("|"):
        names = group.split()
        UNITS.update(dict.fromkeys(names, Unit(names[0], names[0], 1.0)))


_read_tables()

_PREFIXED_NAMES = """
    metre meter metres meters gram grams litre liter litres liters second seconds watt watts volt volts ampere amperes
    amp amps hertz hz pascal pascals joule joules newton newtons byte bytes bit bits calorie calories bar bars ohm ohms
    mole moles mol wh ev"""
_PREFIXED = frozenset(_PREFIXED_NAMES.split())
"""Names that may have a metric prefix."""
_PREFIXES = {
    "nano": 1e-9, "n": 1e-9, "micro": 1e-6, "u": 1e-6, "milli": 1e-3, "centi": 1e-2, "deci": 0.1, "hecto": 1e2,
    "kilo": 1e3, "k": 1e3, "mega": 1e6, "m": 1e6, "giga": 1e9, "g": 1e9, "tera": 1e12, "t": 1e12, "peta": 1e15,
}  # fmt: skip
"""Metric prefixes, and their symbols before a unit of two letters or more: "mhz", "mbit"."""
AFTER_NUMBER = {"g": "gram", "l": "litre", "v": "volt", "w": "watt", "h": "hour"}
"""Letters that are units after a number."""


@lru_cache(maxsize=20_000)
def read_unit(word: str, *, after_number: bool = False) -> Unit | None:
    """Return the unit that a word names; None if it names none. "second" alone is a number, not a unit."""
    found = UNITS.get(AFTER_NUMBER.get(word, word) if after_number else word)
    if found is not None:
        return found
    for prefix, factor in _PREFIXES.items():
        rest = word.removeprefix(prefix)
        if rest != word and rest in _PREFIXED:
            base = UNITS[rest if rest != "second" else "seconds"]
            return Unit(f"{factor:g} {base.name}", base.dimension, factor * base.factor)
    return None
