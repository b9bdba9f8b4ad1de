"""Vetoes: pairs of questions that must never be taken for the same, and pairs that must not be kept apart."""

import random
import sys
from collections.abc import Callable, Iterable

import pytest

from knapcache.features.semantic.differences import contradiction, substituted, veto
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.reasons import VETOES
from knapcache.features.semantic.words import read_words
from tests.support import ROOT
from tests.support.perturbed_questions import RULES, open_questions

sys.path.insert(0, str(ROOT / "bench"))

from _semantic_dangers import HARMLESS, dangerous_pairs

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
    ("code", "How do I use datasets.Table?", "How do I use datasets.Metric?"),
    ("code", "Reverse a string in C", "Reverse a string in C++"),
    ("name", "What is the capital of France?", "What is the capital of Japan?"),
    ("number", "How often is methotrexate taken, once weekly?", "How often is methotrexate taken, twice weekly?"),
    ("number", "Is -5 degrees cold?", "Is 5 degrees cold?"),
    ("number", "How much is ½ cup of rice?", "How much is ¼ cup of rice?"),
    ("unit", "Is 5 mcg of it lethal?", "Is 5 mg of it lethal?"),
    ("unit", "How large is 5 Mbit?", "How large is 5 Mbyte?"),
    ("date", "What was worn in the eighties?", "What was worn in the 1990s?"),
    ("negation", "How do I make a mutable list?", "How do I make an immutable list?"),
    ("negation", "How is hypertension treated?", "How is hypotension treated?"),
    ("negation", "What are duties of an employer?", "What are duties of an employee?"),
    ("negation", "Can I mix bleach and vinegar?", "Can I avoid mixing bleach and vinegar?"),
    ("negation", "What if the fuse fails to blow?", "What if the fuse does blow?"),
    ("negation", "Are all snakes venomous?", "Are some snakes venomous?"),
    ("modality", "Should I file taxes as a student?", "May I file taxes as a student?"),
    ("negation", "What does chmod a+x do?", "What does chmod a-x do?"),
    ("code", "What does && do in bash?", "What does || do in bash?"),
    ("code", "What is the derivative of x²?", "What is the derivative of x³?"),
    ("order", "Which flights go to Rome daily?", "Which flights go daily from Rome?"),
    ("word", "How do I thicken a soup?", "How do I serve a soup?"),
    ("word", "Who wrote the book about Kafka?", "Who wrote the book by Kafka?"),
    ("order", "How do I get from Rome to Oslo?", "How do I get from Oslo to Rome?"),
    ("order", "Why is tea healthier than coffee?", "Explain why coffee is healthier than tea"),
]
SAME = [
    ("How can I lose 5 kg in a month?", "Tips for losing five kilos within one month"),
    ("What's France's capital?", "WHAT IS THE CAPITAL OF FRANCE"),
    ("What does 2,500 dollars buy?", "what do twenty five hundred dollars buy"),
    ("Why can't penguins fly?", "What is the reason that penguins cannot fly?"),
    ("Why was my card declined?", "I don't know why my card was declined"),
    ("Was my leave approved?", "was my leave approved or not"),
    ("What does `filter()` do?", "what is filter for"),
    ("What is the status of flight dl123?", "Show me flight DL123's status"),
    ("What is 2 percent of 7?", "2 percent of 7 is what?"),
    ("What is the time in Rome?", "the time in rome is what"),
    ("How heavy is 5 kg?", "How heavy is 5000 g?"),
    ("Who won the 3rd race?", "Who won the third race?"),
    ("Summarize World War II", "Summarize World War 2"),
    ("What is 3 + 4?", "What is 3 plus 4?"),
    ("Is it cold at -5 degrees?", "Is it cold at minus 5 degrees?"),
    ("5 is positive or negative", "Is 5 positive or negative"),
]


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
@pytest.mark.parametrize(("name", "asked", "stored"), DIFFERENT)
def test_questions_that_differ_in_what_must_agree_are_vetoed(
    name: str, asked: str, stored: str, change: Callable[[str], str]
) -> None:
    caseless = change is not str
    found = veto(read_words(change(asked)), read_words(change(stored)))
    assert found == ("word" if caseless and name == "name" else name)
    assert veto(read_words(change(stored)), read_words(change(asked))) == found


def test_every_veto_has_words_of_its_own() -> None:
    assert VETOES.keys() == {name for name, _, _ in DIFFERENT}


@pytest.mark.parametrize(("asked", "stored"), SAME)
def test_other_wordings_of_a_question_do_not_contradict_it(asked: str, stored: str) -> None:
    assert contradiction(read_words(asked), read_words(stored)) == ""
    assert contradiction(read_words(stored), read_words(asked)) == ""


QUESTIONS = (
    "How can I lose 5 kg in a month?",
    "What is 15 percent of 80?",
    "Who won the Nobel Prize in Physics in 2019?",
    "Convert 12 miles to metres.",
    "Name three rivers that are longer than 2,000 km",
    "How do I get from Berlin to Madrid by train?",
    "Why is Canada larger than Brazil?",
    "Translate 'good morning' from English to German.",
    "Did Rome defeat Carthage before Athens fell?",
    "Can dogs see colours?",
    "Why can't penguins fly?",
    "Should I invest in gold?",
    "What should I drink before a workout?",
    "How do I enable dark mode on my phone?",
    "What is the largest airport in the world?",
    "How do I increase the contrast of an image?",
    "Is it safe to use public wifi without a password?",
    "Are tomatoes always a fruit?",
    "Which bank gives the highest interest on savings?",
    "Does my insurance cover a rental car in Canada?",
    "i need to transfer 200 dollars from savings to checking",
    "what is the exchange rate between dollars and euros",
    "will my card work in brazil",
    "how do i install two printers",
    "was my leave request approved",
    "is there a cheap hotel near the station with parking",
    "do snakes have ears",
    "could you add ten eggs to my shopping list",
    "what does read_csv do in pandas",
    "have plants a way to hear",
)
CASES = (str, str.lower, str.upper)


def vetoed(questions: Iterable[str], rule: str, case: Callable[[str], str]) -> tuple[float, int]:
    """Return the share of the changed questions that are vetoed, and their number."""
    rng = random.Random(5)
    pairs = [(text, changed) for text in questions if (changed := RULES[rule](text, rng)) and changed != text]
    names = [veto(read_words(case(text)), read_words(case(changed))) for text, changed in pairs]
    assert {*names} <= {"", *VETOES}
    return sum(map(bool, names)) / len(names), len(names)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("rule", "least"), [("number", 8), ("negation", 20), ("swap", 25), ("antonym", 8)])
def test_a_question_changed_in_one_place_is_vetoed(rule: str, least: int, case: Callable[[str], str]) -> None:
    share, count = vetoed(QUESTIONS, rule, case)
    assert count >= least
    assert share >= 0.95


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "field"),
    [("intents_clinc.jsonl.gz", "text"), ("similar_pairs.jsonl.gz", "origin"), ("oasst_prompts.jsonl.gz", "prompt")],
)
def test_changed_questions_of_the_open_data_are_vetoed(
    name: str, field: str, rule: str, case: Callable[[str], str]
) -> None:
    questions = open_questions(name, field)
    share, count = vetoed(questions[:: len(questions) // 3000 or 1], rule, case)
    assert count >= 50
    assert share >= 0.95


@pytest.mark.long
def test_few_paraphrases_of_the_open_data_are_vetoed() -> None:
    ones, others = (open_questions("similar_pairs.jsonl.gz", field, unique=False) for field in ("origin", "similar"))
    pairs = [(read_words(one), read_words(other)) for one, other in zip(ones, others, strict=True)]
    assert sum(bool(contradiction(*pair)) for pair in pairs) / len(pairs) < 0.11
    assert sum(bool(veto(*pair)) for pair in pairs) / len(pairs) < 0.14


def test_a_substitution_is_what_stands_in_one_place() -> None:
    def found(one: str, other: str) -> object:
        return substituted(read_words(one), read_words(other))

    assert found("how do i attract mice", "how would i repel mice") == (("attract",), ("repel",))
    assert found("how do i attract mice", "how do i attract many mice") is None, "an addition"
    assert found("how do i attract mice", "which cheese is liked by mice in most homes") is None, "another wording"


def test_function_words_and_their_order_are_a_substitution_if_the_content_is_the_same() -> None:
    def found(one: str, other: str) -> object:
        return substituted(read_words(one), read_words(other))

    assert found("do we owe money to the bank", "do you owe money to the bank") == (("we",), ("you",))
    assert found("was he fed by us all", "was he being fed by us all") == ((), ("being",))
    assert found("hi, what is the price exactly?", "what is a price please") is None, "no word that could matter"
    assert found("is he being fed by us", "is he being fed by us?") is None


def test_another_order_is_a_substitution_also_beside_one_other_word() -> None:
    one, other = read_words("why does iran bomb iraq"), read_words("why did iraq bomb iran")
    assert substituted(one, other) == (("iran", "bomb", "iraq"), ("did", "iraq", "bomb", "iran"))


def test_most_dangerous_pairs_of_every_kind_are_stopped() -> None:
    kinds: dict[str, list[bool]] = {}
    for kind, one, other in dangerous_pairs():
        stopped = excluded(one) or excluded(other) or veto(read_words(one), read_words(other))
        kinds.setdefault(kind, []).append(bool(stopped))
    assert min(map(len, kinds.values())) >= 95
    assert min(sum(found) / len(found) for found in kinds.values()) >= 0.85
    for one, other in HARMLESS:
        found = [excluded(one), excluded(other), contradiction(read_words(one), read_words(other))]
        assert found == ["", "", ""], (one, other)
