"""The ladder: which answers count as the same. Cosines are given, so that every rung is tested by itself."""

from __future__ import annotations

import pytest

from knapcache.features.semantic.judge import MAX_SENTENCES, MAX_TEXT, MAX_WORDS, compare_answers, read_answer
from tests.support.timing import check_seconds, cpu_seconds


def never(_a: str, _b: str) -> float:
    raise AssertionError("no embedding is needed")


def high(_a: str, _b: str) -> float:
    return 0.99


def judged(stored: str, new: str, cosine: float = 0.99) -> tuple[str, str]:
    """Return the verdict, which must not depend on the order of the answers."""
    found = compare_answers(stored, new, lambda _a, _b: cosine)
    assert compare_answers(new, stored, lambda _a, _b: cosine) == found
    return found


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("Paris", "Paris"),
        ("Paris", "**paris**."),
        ("Sure! The capital is Paris.", "The capital is  *Paris*"),
        ("It's Paris.", "The answer is: Paris!"),
        ("It is 1,000 metres.", "It is 1000 metres"),
        ("# Result\n\n- one\n- two", "Result\n1. one\n2. two"),
        ("You can’t do that.", 'You can\'t do that. Let me know if you have "other" questions!'),
        ("See [docs](https://a.b/c).", "see docs https://a.b/c"),
        ("Use it:\n```python\nx = 1\n```\nDone.", "use it\n```\nx = 1  \n```\ndone"),
    ],
)
def test_layout_and_politeness_are_no_difference(stored: str, new: str) -> None:
    assert compare_answers(stored, new, never) == ("same", "equal")
    assert compare_answers(new, stored, never) == ("same", "equal")


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("1.5", "15"),
        ("-5", "5"),
        ("5!", "5"),
        ("x²", "x2"),
        ("3:30", "330"),
        ("we're closed", "were closed"),
        ("C++", "C"),
        ("Use `Foo`.", "Use `foo`."),
        ("Of course not.", "Not."),
        ("3. Berlin", "2. Berlin"),
        ("2*3*4", "234"),
        ("See [docs](https://a.b/c).", "See [docs](https://a.b/d)."),
    ],
)
def test_what_carries_meaning_is_not_normalised_away(stored: str, new: str) -> None:
    assert judged(stored, new, 0.0)[0] != "same"
    assert read_answer(stored).words != read_answer(new).words


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("Yes, you can.", "No, you cannot."),
        ("yes", "no"),
        ("It takes 5 days.", "It takes 7 days."),
        ("The card is covered.", "The card is not covered."),
        ("The capital is Oslo.", "The capital is Lima."),
        ("Turn left at the church.", "Turn right at the church."),
        ("It is 5 miles away.", "It is 5 kilometres away."),
    ],
)
def test_short_answers_that_exclude_each_other_differ_without_an_embedding(stored: str, new: str) -> None:
    assert compare_answers(stored, new, never) == ("different", "veto")
    assert compare_answers(new, stored, never) == ("different", "veto")


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("Your charger is covered by the warranty.", "The charger is covered by our warranty."),
        ("Turn left after 5 metres.", "After 5 metres, turn left."),
    ],
)
def test_the_same_content_words_and_a_high_cosine_are_the_same(stored: str, new: str) -> None:
    assert judged(stored, new, 0.95) == ("same", "embedding")
    assert judged(stored, new, 0.8) == ("undecided", "open")


def test_sentences_may_have_another_order() -> None:
    stored, new = "Paris is the capital. It lies on a river.", "It lies on the river. Paris is its capital."

    def similarity(a: str, b: str) -> float:
        return 0.95 if ("river" in a) == ("river" in b) else 0.1

    assert compare_answers(stored, new, similarity) == ("same", "embedding")
    assert compare_answers(stored, "Paris is its capital.", similarity) == ("undecided", "open")


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("The shop is open on weekdays.", "The shop is open only on weekdays."),
        ("Anna reports to Brian.", "It is Anna to whom Brian reports."),
        ("Anna reports to Brian.", "Brian reports to Anna."),
        ("Cats mostly eat fish.", "Cats mostly eat meat."),
        ("Take it before the meal. Then rest.", "Take it with the meal. Then rest."),
        ("The shop opens at 8 am.", "The shop opens at 8 pm."),
        ("I had used it.", "I have used it."),
        ("Use it:\n```\nx = 1\n```", "Use it:\n```\nx = 2\n```"),
    ],
)
def test_no_cosine_makes_a_replaced_word_an_added_limit_or_swapped_names_the_same(stored: str, new: str) -> None:
    assert judged(stored, new, 1.0)[0] != "same"


def test_one_different_sentence_of_several_is_enough() -> None:
    stored = "The bag is free. It must fit under the seat. Food is not included."
    new = "The bag is free. It must fit under the seat. Drinks are not included."
    assert judged(stored, new) != ("same", "embedding")
    assert judged(stored, "Food is not included. The bag is free. It must fit under the seat.")[0] != "different"


def test_far_embeddings_are_different() -> None:
    assert judged("Water boils when it is heated.", "Paris lies on the Seine.", 0.1) == ("different", "embedding")


def test_the_work_is_bounded() -> None:
    calls = 0

    def similarity(_a: str, _b: str) -> float:
        nonlocal calls
        calls += 1
        return 0.99

    many = " ".join(f"Sentence {k} is here." for k in range(MAX_SENTENCES + 1))
    assert compare_answers(many, many + " And more.", similarity) == ("undecided", "length")
    words = "word " * (MAX_WORDS + 1)
    assert compare_answers(words, words + "more", similarity) == ("undecided", "length")
    long = "a" * (MAX_TEXT + 1)
    assert compare_answers(long, long, similarity) == ("same", "equal")
    assert compare_answers(long, long + "b", similarity) == ("undecided", "length")
    assert calls == 0
    few = " ".join(f"Sentence {'x' * k} is here." for k in range(1, MAX_SENTENCES))
    compare_answers(few, few + " One more here.", similarity)
    assert calls == (MAX_SENTENCES - 1) * MAX_SENTENCES


@pytest.mark.parametrize(
    "hostile",
    ["*" * MAX_TEXT, "[" * MAX_TEXT, "* " * (MAX_TEXT // 2), "`" * MAX_TEXT, "1. \n" * (MAX_TEXT // 4), "\0" * 99,
     "sure! " * (MAX_TEXT // 6), "**a" * (MAX_TEXT // 3), "![a](" * (MAX_TEXT // 5), ". " * (MAX_TEXT // 2), "\ud800"],
)  # fmt: skip
def test_hostile_texts_are_read_quickly(hostile: str) -> None:
    check_seconds(cpu_seconds(lambda: compare_answers(hostile, hostile + "x", high)), 2.0, "the comparison")
