"""Numbers that are equal in value are written alike: 1, 1.0, 1e0 and 1.00 are one number, −0.0 is 0.

The value of a number in JSON is the decimal it spells, exactly. The value of a float is the shortest decimal that reads
back as it, which is how every JSON writer sends it; so a request has one key whether it comes as objects or as text.
(The other choice, the binary value, would tell the float 1e23 from the text 1e23.) Nothing is rounded: two spellings of
30 digits that a provider reads as the same double are two numbers here, and the worst of it is a miss.

    whole and within 64 bits                                  an int, written in full
    the shortest decimal of a double from 10^-4 to 10^16      that float, written in full: 0.7
    any other                                                 digits and a power of ten: 123…789e-40

Which line holds depends on the value alone, and what is written spells the value: equal ⇔ written alike. Floats beyond
the second line are not left to orjson, for 1e-05, 1e-5 and 0.00001 are matters of its version.
"""

from __future__ import annotations

from decimal import Decimal

import orjson

from knapcache.errors import Uncacheable

MOST_DIGITS = 64
"""As written; in text, characters. A double needs 17, a 128-bit integer 39."""
LARGEST_EXPONENT = 400
"""Of ten. Doubles lie within 10^±324."""
LEAST, MOST = -(2**63), 2**64 - 1  # what orjson reads and writes as an int
EXACT = 2.0**53  # below this a float that is whole is the int it looks like
SMALL, LARGE = 1e-4, 1e16  # between these every writer of shortest decimals writes the same, without an exponent


def from_float(value: float) -> int | float | orjson.Fragment:
    """The normal form of a float."""
    if value.is_integer():  # false for NaN and infinities
        return int(value) if -EXACT < value < EXACT else from_decimal(Decimal(repr(value)))
    if SMALL <= value < LARGE or -LARGE < value <= -SMALL:
        return value
    return from_decimal(Decimal(repr(value)))


def from_int(value: int) -> int | float | orjson.Fragment:
    """The normal form of an int."""
    if LEAST <= value <= MOST:
        return value
    if value.bit_length() > 3.33 * MOST_DIGITS:  # log2(10) = 3.32…; ahead of str(), which takes time n²
        raise Uncacheable(f"a number of more than {MOST_DIGITS} digits")
    return from_decimal(Decimal(value))


def from_decimal(value: Decimal) -> int | float | orjson.Fragment:
    """The normal form of a decimal."""
    if not value.is_finite():
        raise Uncacheable(f"{value} is no number in JSON")
    sign, found, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # it is a letter for NaN and infinities only
    if len(found) > MOST_DIGITS:
        raise Uncacheable(f"a number of more than {MOST_DIGITS} digits")
    if not value:
        return 0
    # By hand: Decimal.normalize() would round to the precision of the current context.
    digits = "".join(map(str, found)).rstrip("0")
    exponent += len(found) - len(digits)
    digits = digits.lstrip("0")
    if abs(exponent + len(digits)) > LARGEST_EXPONENT:
        raise Uncacheable(f"a number beyond 10^±{LARGEST_EXPONENT}")
    if 0 <= exponent <= 20:
        whole = int(digits + "0" * exponent) * (-1 if sign else 1)
        if LEAST <= whole <= MOST:
            return whole
    nearest = float(value) if -4 <= exponent + len(digits) <= 16 else 0.0
    if SMALL <= abs(nearest) < LARGE and Decimal(repr(nearest)) == value:
        return nearest
    return orjson.Fragment(f"{'-' if sign else ''}{digits}e{exponent}")
