"""The reference for keys: what a request means, slowly, with exact fractions, and no code shared with `keys`."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st


def meaning(value: Any) -> Any:
    """Return a value that is equal for two JSON values if and only if they mean the same."""
    if value is None or isinstance(value, bool):
        return ("word", repr(value))
    if isinstance(value, str):
        return ("text", value)
    if isinstance(value, float):
        return ("number", Fraction(repr(value)))
    if isinstance(value, (int, Decimal)):
        return ("number", Fraction(value))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(meaning(inner) for inner in value))
    assert isinstance(value, dict)
    return ("object", frozenset((name, meaning(inner)) for name, inner in value.items()))


def read(text: bytes) -> Any:
    """Parse JSON strictly, or raise ValueError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("duplicate name")
        return dict(pairs)

    def reject(literal: str) -> None:
        raise ValueError(literal)

    def exactly(literal: str) -> Decimal:
        try:
            return Decimal(literal)
        except ArithmeticError:
            raise ValueError("an exponent that no Decimal has") from None

    value = json.loads(text.decode(), object_pairs_hook=unique, parse_float=exactly, parse_constant=reject)
    json.dumps(value, ensure_ascii=False, default=str).encode()  # lone surrogates
    return value


# Values that are easily mistaken for one another.
SIMILAR: list[Any] = [
    *(0, 0.0, -0.0, Decimal("0.000"), "0", False, None, "", [], {}, "null", "None", "false", [None], [0], [[]]),
    *(1, 1.0, Decimal("1.00"), "1", "1.0", True, "true", [1], ["1"], {"1": 1}, 10, 1e1, 100, 1e2, -1, -1.0, 0.1),
    *(Decimal("0.1"), Decimal("0.10000000000000001"), Decimal("1e-1"), 0.30000000000000004, 0.3, 5e-324, 1e308),
    *(2**53, 2.0**53, 2**53 + 1, 2.0**53 + 2, 10**16, 1e16, 2**63, 2.0**63, -(2**63), -(2.0**63), 2**64, 2**64 - 1),
    *(2.0**64, 10**23, 1e23, Decimal("1e23"), Decimal(2**64) + Decimal("0.5"), 10**22, 1e22, 1.5, Decimal("1.50")),
    *(
        "é",
        "e\u0301",
        "É",
        "é ",
        " é",
        "a",
        "A",
        "ａ",
        "\u00df",
        "ss",
        "\x00",
        "\\u0000",
        '"',
        "\\",
        "\u2028",
        "\U0001f600",
    ),
    *({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, {"a": 1}, {"a": None}, {"a": {"b": 1}}, {"a.b": 1}, ["a", "b"], ["ab"]),
]

# Within the limits in every spelling; numbers beyond them have their own tests.
numbers = st.one_of(
    st.integers(-(10**50), 10**50),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda digits, power: Decimal(digits).scaleb(power), st.integers(-(10**6), 10**6), st.integers(-30, 30)),
    st.builds(lambda digits, power: Decimal(f"{digits}e{power}"), st.integers(-(10**40), 10**40), st.integers(-60, 60)),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(st.sampled_from(SIMILAR), numbers, texts, st.none(), st.booleans())
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
bodies = st.dictionaries(
    st.sampled_from(["model", "messages", "n", "stop", "stopuser", "é"]) | texts, values, max_size=5
)


def write_json(draw: Callable[[st.SearchStrategy[Any]], Any], value: Any) -> str:
    """Return JSON text of a value; order, white space, escapes and spelling of numbers are drawn."""

    def white_space() -> str:
        return str(draw(st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])))

    if isinstance(value, dict):
        items = draw(st.permutations(list(value.items())))
        inner = ",".join(
            f"{white_space()}{write_text(draw, name)}{white_space()}:"
            f"{white_space()}{write_json(draw, item)}{white_space()}"
            for name, item in items
        )
        return f"{{{inner or white_space()}}}"
    if isinstance(value, (list, tuple)):
        return (
            f"[{','.join(white_space() + write_json(draw, item) + white_space() for item in value) or white_space()}]"
        )
    if isinstance(value, str):
        return write_text(draw, value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return write_number(draw, Decimal(repr(value)) if isinstance(value, float) else Decimal(value))


def write_text(draw: Callable[[st.SearchStrategy[Any]], Any], text: str) -> str:
    form = draw(st.sampled_from(["ascii", "utf-8", "all escaped", "slashes"]))
    if form == "all escaped":
        units = text.encode("utf-16-be")
        return '"' + "".join(f"\\u{units[k]:02x}{units[k + 1]:02X}" for k in range(0, len(units), 2)) + '"'
    written = json.dumps(text, ensure_ascii=form == "ascii")
    return written.replace("/", "\\/") if form == "slashes" else written


def write_number(draw: Callable[[st.SearchStrategy[Any]], Any], value: Decimal) -> str:
    sign, all_digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if not value:
        return str(draw(st.sampled_from(["0", "-0", "0.0", "-0.00", "0e5", "0E-7", "0.0e+0"])))
    zeros = draw(st.integers(0, 3))
    digits = "".join(map(str, all_digits)).lstrip("0") + "0" * zeros
    exponent -= zeros
    minus = "-" if sign else ""
    if -20 < exponent < 0 and draw(st.booleans()):
        padded = digits.rjust(1 - exponent, "0")
        return f"{minus}{padded[:exponent]}.{padded[exponent:]}"
    if 0 <= exponent < 10 and draw(st.booleans()):
        return f"{minus}{digits}{'0' * exponent}"
    mark = draw(st.sampled_from(["e", "E"])) + (draw(st.sampled_from(["", "+"])) if exponent >= 0 else "")
    return f"{minus}{digits}{mark}{exponent}"


def rebuilt(draw: Callable[[st.SearchStrategy[Any]], Any], value: Any) -> Any:
    """Return an equal value; order of dicts, tuples or lists, and types of numbers are drawn."""
    if isinstance(value, dict):
        return {name: rebuilt(draw, item) for name, item in draw(st.permutations(list(value.items())))}
    if isinstance(value, (list, tuple)):
        return draw(st.sampled_from([list, tuple]))(rebuilt(draw, item) for item in value)
    if value is None or isinstance(value, (bool, str)):
        return value
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    forms: list[Any] = [value, exact]
    if exact == exact.to_integral_value() and abs(exact) < 10**60:
        forms.append(int(exact))
    nearest = float(exact)
    if abs(exact) < Decimal("1e308") and Decimal(repr(nearest)) == exact:
        forms.append(nearest)
    return draw(st.sampled_from(forms))
