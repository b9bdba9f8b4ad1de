"""Texts that are never answered by similarity."""

import pytest

from knapcache.features.semantic.excluded import excluded

EXCLUDED = [
    ("deixis", "Summarise this"),
    ("deixis", "What is wrong with the code below?"),
    ("deixis", "Translate the following into Dutch: good evening"),
    ("deixis", "As above, but shorter"),
    ("deixis", "Make your previous answer shorter"),
    ("deixis", "Here's my essay, how do you like it?"),
    ("date", "What's the weather in Rome tomorrow?"),
    ("date", "Is the museum open on Friday?"),
    ("date", "What happens next week?"),
    ("date", "What is on this weekend's programme?"),
    ("date", "Who won three days ago?"),
    ("code", "Why does it fail?\n```\nprint(1)\n```"),
    ("code", "Explain:\nfor i in range(3):\n    total = total + i\n"),
    ("language", "Wie hoch ist der Eiffelturm?"),
    ("language", "¿Cuál es la capital de Francia?"),
    ("language", "Quelle est la capitale de la France ?"),
    ("language", "Qual è la capitale della Francia?"),
    ("language", "Qual é a capital da França?"),
    ("language", "Wat is de hoofdstad van Frankrijk?"),
    ("language", "Vad är huvudstaden i Frankrike?"),
    ("language", "Jaka jest stolica Francji?"),
    ("language", "Fransa'nın başkenti neresi?"),
    ("language", "Какая столица Франции?"),
    ("language", "法国的首都是什么？"),
    ("language", "ما هي عاصمة فرنسا؟"),
]
ALLOWED = [
    "",
    "What is the capital of France?",
    "WHAT IS THE CAPITAL OF FRANCE?",
    "weather rome",
    "pto balance",
    "How cold is it at 3,000 metres above sea level?",
    "Is the museum open on Mondays?",
    "How many days are in a month?",
    "What happened on Friday 13 October 1307?",
    "Translate 'bonjour tout le monde' to English please",
    "Why do we dream?",
    "When was the last ice age?",
]


@pytest.mark.parametrize(("reason", "text"), EXCLUDED)
def test_texts_whose_meaning_depends_on_more_than_their_words_are_excluded(reason: str, text: str) -> None:
    assert excluded(text) == reason


@pytest.mark.parametrize("text", ALLOWED)
def test_other_texts_are_not_excluded(text: str) -> None:
    assert excluded(text) == ""
