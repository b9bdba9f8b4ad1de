"""Sizes, capacities, ages and amounts as text.

The case of a unit does not matter when a text is parsed: `256mb`, `1.5GiB`, `1e9`, `10%`, `7d`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

UNITS = {"": 1, "b": 1}
UNITS |= {letter + b: 1000**k for k, letter in enumerate("kmgt", 1) for b in ("", "b")}
UNITS |= {f"{letter}i{b}": 1024**k for k, letter in enumerate("kmgt", 1) for b in ("", "b")}
TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""Seconds of the units of an age."""
SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
"""Units in which sizes are shown. Sizes of a trace are shown as bytes."""
# At most two digits of exponent: "1e999999999" would take all memory.
PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z]*|%)")
ALLOWED_AMOUNTS = "a number with an optional unit (kB, MB, GB, TB, KiB, MiB, GiB or TiB, in any case)"
ALLOWED_AGES = "a number with an optional unit (s, m, h, d or w), such as 90, 15m, 12h or 7d"


def parse_amount(text: str) -> tuple[Fraction, str] | None:
    """Return the amount in single units and "", or a percentage and "%"; None if the text is not valid."""
    match = PATTERN.fullmatch(text.strip())
    if not match:
        return None
    if match[2] == "%":
        return Fraction(match[1]), "%"
    factor = UNITS.get(match[2].lower())
    return None if factor is None else (Fraction(match[1]) * factor, "")


def parse_bytes(value: Any) -> int | None:
    """Return a whole number of bytes, at least 1, from 4096, 1e9 or "256MB"; None if the value is not one."""
    if isinstance(value, str):
        found = parse_amount(value)
        if found is None or found[1] or found[0].denominator != 1:
            return None
        value = int(found[0])
    elif isinstance(value, float) and value.is_integer():  # TOML and JSON have 1e9 as a float
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def parse_age(text: str) -> float | None:
    """Return the seconds of an age such as `90`, `15m` or `7d`; None if the text is not valid."""
    match = PATTERN.fullmatch(text.strip())
    factor = TIMES.get(match[2].lower()) if match else None
    return None if match is None or factor is None else float(Fraction(match[1]) * factor)


def format_age(seconds: float) -> str:
    """Format a duration with its largest unit: `45 s`, `3 h`, `12 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def format_size(size: float) -> str:
    """Format a size or capacity to three digits: `64 MB`."""
    factor, name = next((unit for unit in SIZES if size >= unit[0]), SIZES[-1])
    return f"{size / factor:.3g} {name}" if size / factor < 999.5 else f"{size / factor:,.0f} {name}"


def counted(amount: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: `1 hit`, `1,234 hits`, `2 misses` with the plural given."""
    return f"{amount:,} {singular if amount == 1 else plural or f'{singular}s'}"


def percent(share: float) -> str:
    """Format a share to three digits: `12.5 %`."""
    return f"{100.0 * share:.3g} %" if abs(share) < 9.995 else f"{100.0 * share:,.0f} %"


def number(value: float) -> str:
    """Format a number to four digits, or as a whole number from 1,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def dollars(value: float) -> str:
    """Format dollars: `$1,235`, `$12.35`, `$0.00123`."""
    size = abs(value)
    digits = 0 if size >= 1000 else 2 if size >= 1 or not size else min(12, 2 - math.floor(math.log10(size)))
    return f"{'-' if value < 0 else ''}${size:,.{digits}f}" if size else "$0"
