"""Vetoes: pairs of questions that must never be taken for the same, and pairs that must not be kept apart."""

from collections.abc import Callable

import pytest

from knapcache.semantic.vetoes import veto
from knapcache.semantic.words import read_words

DIFFERENT = [
    ("number", "How can I lose 5 kg in a month?", "How can I lose 7 kg in a month?"),
    ("number", "Name two reasons for rain", "Name 3 reasons for rain"),
    ("number", "What is 5 percent of 20?", "What is 20 percent of 5?"),
    ("unit", "Convert 5 miles to metres", "Convert 5 yards to metres"),
    ("date", "Is the museum open on Monday?", "Is the museum open on Tuesday?"),
    ("date", "Is the museum open in May?", "Is the museum open?"),
    ("negation", "Why should I invest in gold?", "Why shouldn't I invest in gold?"),
    ("negation", "How do I turn on dark mode?", "How do I turn off dark mode?"),
    ("negation", "What should I drink before a workout?", "What is best to drink after a workout?"),
    ("negation", "Which is the oldest airport?", "Which is the largest airport?"),
    ("quotation", "Translate 'good morning' into Dutch", "Translate 'thank you' into Dutch"),
    ("code", "What does read_csv do?", "What does to_csv do?"),
    ("code", "Reverse a string in C", "Reverse a string in C++"),
    ("name", "What is the capital of France?", "What is the capital of Japan?"),
    ("order", "How do I get from Rome to Oslo?", "How do I get from Oslo to Rome?"),
    ("order", "Why is tea healthier than coffee?", "Explain why coffee is healthier than tea"),
]
SAME = [
    ("How can I lose 5 kg in a month?", "Tips for losing five kilos within one month"),
    ("What's France's capital?", "WHAT IS THE CAPITAL OF FRANCE"),
    ("What does 2,500 dollars buy?", "what do twenty five hundred dollars buy"),
    ("Why can't penguins fly?", "What is the reason that penguins cannot fly?"),
    ("What is 2 percent of 7?", "2 percent of 7 is what?"),
    ("What is the time in Rome?", "the time in rome is what"),
]


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
@pytest.mark.parametrize(("name", "asked", "stored"), DIFFERENT)
def test_questions_that_differ_in_what_must_agree_are_vetoed(
    name: str, asked: str, stored: str, change: Callable[[str], str]
) -> None:
    caseless = change is not str
    found = veto(read_words(change(asked)), read_words(change(stored)))
    assert found == ("" if caseless and name == "name" else name)
    assert veto(read_words(change(stored)), read_words(change(asked))) == found


@pytest.mark.parametrize(("asked", "stored"), SAME)
def test_other_wordings_of_a_question_are_not_vetoed(asked: str, stored: str) -> None:
    assert veto(read_words(asked), read_words(stored)) == ""
    assert veto(read_words(stored), read_words(asked)) == ""
