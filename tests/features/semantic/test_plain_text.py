"""Texts that look the same are read the same; disguised ones are never matched."""

from __future__ import annotations

import pytest

from knapcache.features.semantic.plain_text import is_disguised, plain_text
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.units import read_unit


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Can I take ｎｏｔ aspirin?", "Can I take not aspirin?"),
        ("no\u200bt, no\u00adt, 𝐧𝐨𝐭", "not, not, not"),
        ("n.o.t or n-o-t or n o t", "not or not or not"),
        ("the раin pill", "the pain pill"),
        ("x² + y³ at 10⁻³ of H₂O", "x^2 + y^3 at 10^-3 of H2O"),
        ("1/2, 3/4 and 24/7 on 2/20", "0.5, 0.75 and 24/7 on 2/20"),
        ("3 × 4 − 2", "3 * 4 - 2"),
        ("a nai\u0308ve café", "a naïve café"),
        ("what does мир mean", "what does мир mean"),
        ("an A B test, e.g. at 5 a.m.", "an A B test, e.g. at 5 a.m."),
    ],
)
def test_the_plain_form(text: str, plain: str) -> None:
    assert plain_text(text) == plain
    assert plain_text(plain) == plain


def test_vulgar_fractions_are_numbers() -> None:
    assert plain_text("1½ cups").split() == plain_text("1 1/2 cups").split() == ["1.5", "cups"]


@pytest.mark.parametrize("text", ["Should I take the раin pill?", "Is it nοt safe?", "Is the саfе open at noon?"])
def test_words_that_only_look_latin_are_excluded(text: str) -> None:
    assert is_disguised(text)
    assert excluded(text) == "language"


@pytest.mark.parametrize("text", ["What is π used for?", "Is a naïve café good?", "Is it 5 µg?", "what does мир mean"])
def test_other_letters_are_no_disguise(text: str) -> None:
    assert not is_disguised(text)


def test_units_have_a_dimension_and_a_factor() -> None:
    for word, dimension, factor in (
        ("mcg", "mass", 1e-6),
        ("kilogram", "mass", 1e3),
        ("milligrams", "mass", 1e-3),
        ("ghz", "frequency", 1e9),
        ("mbit", "data", 1e6),
        ("megabytes", "data", 8e6),
        ("fathoms", "length", 1.8288),
    ):
        unit = read_unit(word)
        assert unit is not None
        assert unit.dimension == dimension
        assert unit.factor == pytest.approx(factor)
    assert read_unit("us") is read_unit("tv") is read_unit("second") is read_unit("g") is None
    assert read_unit("g", after_number=True) == read_unit("grams")
