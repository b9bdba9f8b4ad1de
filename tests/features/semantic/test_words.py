"""Reading of questions: numbers, words, names, code."""

from collections.abc import Callable

import pytest

from knapcache.features.semantic.word_facts import stem
from knapcache.features.semantic.words import read_words


def values(text: str) -> list[float]:
    return [value for value, _ in read_words(text).numbers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 apples", [7]),
        ("seven apples", [7]),
        ("2,500 apples", [2500]),
        ("twenty five hundred apples", [2500]),
        ("two hundred and five apples", [205]),
        ("3.5 apples", [3.5]),
        ("10k apples and 2 million pears", [10_000, 2_000_000]),
        ("three hundred twenty thousand", [320_000]),
        ("two three", [2, 3]),
        ("ten, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety", [*range(10, 100, 10)]),
        ("the 3rd and the third", [3, 3]),
        ("at 6:30 on 2/20", [6, 30, 2, 20]),
        ("a month, one month, 1 month", []),
        ("salt and pepper", []),
    ],
)
def test_numbers_in_digits_and_in_words_have_the_same_values(text: str, expected: list[float]) -> None:
    assert values(text) == expected


def test_contractions_are_expanded_with_and_without_an_apostrophe() -> None:
    assert read_words("I can't, won't and don't").words == read_words("i cant, wont and dont").words
    assert read_words("What's up").words == read_words("whats up").words
    assert read_words("It’s France’s").words == read_words("it's france's").words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cooking", "cook"),
        ("cities", "city"),
        ("boxes", "box"),
        ("planned", "plan"),
        ("baked", "baking"),
        ("dogs", "dog"),
    ],
)
def test_forms_of_a_word_have_one_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_names_are_capitalised_words_inside_a_sentence() -> None:
    assert read_words("Is Oslo larger than Rome? Paris is. I think May").names == {"oslo", stem("rome")}


@pytest.mark.parametrize("change", [str.upper, str.lower])
def test_a_text_that_does_not_use_case_has_no_names(change: Callable[[str], str]) -> None:
    assert read_words(change("Is Oslo larger than Rome?")).names == frozenset()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("use read_csv() or pd.merge", {"read_csv", "pd.merge"}),
        ("git commit --amend", {"--amend"}),
        ("the useState hook", {"usestate"}),
        ("flight DL123's gate", {"dl123"}),
        ("C++ or C#", {"c++", "c#"}),
        ("mail a.b@example.org", {"a.b@example.org"}),
        ("a well-known 2-sentence story, e.g. it's fine.", set()),
    ],
)
def test_code_is_what_is_written_as_no_other_word(text: str, code: set[str]) -> None:
    assert read_words(text).code == code


def test_quotations_are_found_in_any_marks_and_apostrophes_are_none() -> None:
    assert read_words("say 'I don't know' or \"good bye\" or “so long”").quotations == {
        "i do not know",
        "good bye",
        "so long",
    }
    assert read_words("the dogs' bowls and the cats' beds").quotations == frozenset()


def test_dates_are_months_weekdays_and_feasts() -> None:
    dates = read_words("Mondays, in May, at Christmas, in jan").dates
    assert dates == {"monday", "month may", "christmas", "month january"}
    assert read_words("you may march").dates == frozenset()


@pytest.mark.parametrize(
    ("one", "other"), [("plan", "plane"), ("hop", "hope"), ("heroin", "heroine"), ("moral", "morale")]
)
def test_words_that_a_last_letter_makes_another_have_two_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)
    assert stem(one) == stem(f"{one}s")


def test_content_keeps_apart_what_adjectives_of_one_stem_mean() -> None:
    assert read_words("a bored or deadly snake").content != read_words("a boring or dead snake").content
    assert read_words("use the US dollar").content != read_words("use us dollar").content
    assert read_words("type α").content != read_words("type a").content
