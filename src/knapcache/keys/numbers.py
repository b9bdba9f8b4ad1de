"""Numbers in normal form: numbers of equal value are written alike. 1, 1.0, 1e0 and 1.00 are one number, −0.0 is 0.

The value of a JSON number is the decimal it spells, exactly. The value of a float is the shortest decimal that parses
back to it, which is how every JSON writer sends it, so a request has one key as objects and as text. (Rejected: the
binary value, which would tell the float 1e23 from the text 1e23.) Nothing is rounded: two literals of 30 digits that a
provider parses to the same double are two numbers here, and the worst result is a miss.

    whole and within 64 bits                                  an int, written in full
    the shortest decimal of a double from 10^-4 to 10^16      that float, written in full: 0.7
    any other                                                 digits and a power of ten: 123…789e-40

Which line applies depends on the value alone, and what is written spells the value: equal ⇔ written alike. Floats
outside the second line are not left to orjson: whether it writes 1e-05, 1e-5 or 0.00001 depends on its version.
"""

from __future__ import annotations

from decimal import Decimal

import orjson

from knapcache.errors import Uncacheable

MAX_DIGITS = 64
"""Digits of a number; characters of a literal. A double needs 17, a 128-bit integer 39."""
MAX_EXPONENT = 400
"""Power of ten. Doubles lie within 10^±324."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1  # what orjson reads and writes as an int
EXACT_INT = 2.0**53  # below this, a whole float is exactly that int
INFINITY = float("inf")
PLAIN_MIN, PLAIN_MAX = 1e-4, 1e16  # between these, all writers of shortest decimals agree and use no exponent


def from_float(value: float) -> int | float | orjson.Fragment:
    """Return the normal form of a float."""
    if PLAIN_MIN <= value < EXACT_INT or -EXACT_INT < value <= -PLAIN_MIN or not value:
        return int(value) if value.is_integer() else value
    if -PLAIN_MIN < value < PLAIN_MIN or MAX_INT < abs(value) < INFINITY:  # written as 1.5e-07: digits and a power
        mantissa, _, power = repr(value).partition("e")
        whole, _, fraction = mantissa.partition(".")
        return orjson.Fragment(f"{whole}{fraction}e{int(power) - len(fraction)}")
    return from_decimal(Decimal(repr(value)))


def from_int(value: int) -> int | float | orjson.Fragment:
    """Return the normal form of an int."""
    if MIN_INT <= value <= MAX_INT:
        return value
    if value.bit_length() > 3.33 * MAX_DIGITS:  # log2(10) = 3.32…; before str(), which takes time n²
        raise Uncacheable(f"a number of more than {MAX_DIGITS} digits")
    return from_decimal(Decimal(value))


def from_decimal(value: Decimal) -> int | float | orjson.Fragment:
    """Return the normal form of a decimal."""
    if not value.is_finite():
        raise Uncacheable(f"{value} is not a JSON number")
    sign, all_digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # a letter only for NaN and infinities
    if len(all_digits) > MAX_DIGITS:
        raise Uncacheable(f"a number of more than {MAX_DIGITS} digits")
    if not value:
        return 0
    # By hand: Decimal.normalize() would round to the precision of the current context.
    digits = "".join(map(str, all_digits)).rstrip("0")
    exponent += len(all_digits) - len(digits)
    digits = digits.lstrip("0")
    if abs(exponent + len(digits)) > MAX_EXPONENT:
        raise Uncacheable(f"a number beyond 10^±{MAX_EXPONENT}")
    if exponent >= 0 and MIN_INT <= value <= MAX_INT:
        return int(value)
    nearest = float(value) if -4 <= exponent + len(digits) <= 16 else 0.0
    if PLAIN_MIN <= abs(nearest) < PLAIN_MAX and Decimal(repr(nearest)) == value:
        return nearest
    return orjson.Fragment(f"{'-' if sign else ''}{digits}e{exponent}")
