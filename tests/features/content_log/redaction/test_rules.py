"""Redaction: what the built-in rules remove, what they leave, and how long they take."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import InvalidInput
from knapcache.features.content_log.redaction import BUILT_IN, TextRedactor
from tests.support.timing import check_linear

ALL = TextRedactor(("emails", "keys", "cards"))
SECRETS = (
    "sk-proj-Ab12_Cd34-Ef56Gh78Ij90", "sk-ant-api03-aaaaBBBBccccDDDD", "gsk_aaaaBBBBccccDDDDeeee",
    "AIzaSyA1234567890123456789012345678901", "hf_abcdefghijklmnopqrst", "AKIAIOSFODNN7EXAMPLE",
    "ghp_0123456789abcdefghij0123456789abcdef", "xoxb-1234567890-abcdefghijkl", "sk_live_0123456789abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
)  # fmt: skip


@given(st.text(max_size=20), st.emails(), st.text(max_size=20))
def test_no_address_survives(before: str, address: str, after: str) -> None:
    assert address not in TextRedactor(("emails",)).text(before + address + after)


@given(st.text(max_size=200))
def test_redaction_is_idempotent(text: str) -> None:
    once = ALL.text(text)
    assert ALL.text(once) == once


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", ["{}", "key={}", '"{}"', "use {}, please", "Authorization: Bearer {}"])
def test_no_key_survives(secret: str, form: str) -> None:
    found = ALL.text(form.format(secret))
    assert "[key]" in found
    assert secret not in found


def test_a_private_key_without_an_end_is_removed_to_the_end_of_the_text() -> None:
    assert ALL.text("a -----BEGIN EC PRIVATE KEY-----\\nProc-Type: 4\\nMII-x\n-----END") == "a [key]"


def test_a_private_key_is_removed_as_a_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"
    assert ALL.text(f"a\n{key}\nb") == "a\n[key]\nb"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4111111111111111", "[card]"),
        ("pay 4111 1111 1111 1111, please", "pay [card], please"),
        ("12 5500-0000-0000-0004 7", "12 [card] 7"),
        ("378282246310005", "[card]"),
        ("4111111111111112", "4111111111111112"),  # wrong check digit
        ("order 12345678901234", "order 12345678901234"),
    ],
)
def test_cards_have_a_check_digit(text: str, found: str) -> None:
    assert ALL.text(text) == found


@pytest.mark.parametrize("length", range(12, 21))
def test_cards_have_13_to_19_digits(length: int) -> None:
    def checks(number: str) -> bool:  # Luhn's check digit
        return sum(sum(divmod(int(digit) * (1 + k % 2), 10)) for k, digit in enumerate(reversed(number))) % 10 == 0

    number = next(number for last in range(10) if checks(number := "4" + "7" * (length - 2) + str(last)))
    assert ALL.text(number) == ("[card]" if 13 <= length <= 19 else number)


@pytest.mark.parametrize(
    "text",
    [
        "a @ b", "@someone said", "a@b", "ask-me-anything-about-it", "sk-short", "v1.2.3",
        "task-2024-Q3-planning-notes-Final-Draft", "risk-550e8400-e29b-41d4-a716-446655440000", "desk-or-table-at-home",
        "laughs_and_more_words_in_one_name", "http://localhost:8080/v1", "see https://example.com/a:b and c@d",
        "Basic understanding of authorization: a must", "the secret key: patience", "public_key_fingerprint = a-b-c",
        "-----BEGIN CERTIFICATE-----\nMIIBxx\n-----END CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----\nMII",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert ALL.text(text) == text


def test_quoted_and_international_addresses_are_removed() -> None:
    assert ALL.text('"jo doe"@ex.org jürgen@müller.de x@[10.0.0.1]') == "[email] [email] [email]"


@pytest.mark.parametrize("rule", BUILT_IN)
@pytest.mark.parametrize(
    "part",
    [
        "a", "@", "a@", "a@b.", "a.@b.", "-eyJ", "eyJaaaaaaaa.", "sk-", "sk-a ", "1 ", "4", "4-", "4 ", "4 4-",
        "4111 1111 1111 1112 ", '"', '"a', "-----BEGIN ", "bearer ", "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY----", "://a:", "://:", "api_key=", "authorization: a ",
    ],
)  # fmt: skip
def test_hostile_texts_take_linear_time(rule: str, part: str) -> None:
    check_linear(lambda length: partial(BUILT_IN[rule], part * (length // len(part))), 4_000, f"{rule} on {part!r}")


def test_patterns_are_rules() -> None:
    assert TextRedactor((r"\bEMP-\d+\b", "emails")).text("EMP-12 a@b.org") == "[redacted] [email]"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("email", "must be emails, keys, cards or regular expressions; one for just the word 'email' is '(?:email)'"),
        ("(?=a)", "the pattern '(?=a)' has lookahead and lookbehind, which cannot be matched in linear time"),
    ],
)
def test_unknown_rules_are_refused(rule: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as error:
        TextRedactor((rule,))
    assert str(error.value) == problem


def test_numbers_are_redacted_as_text() -> None:
    assert ALL.number(4111111111111111) == "[card]"
    assert ALL.number(4111111111111112) == 4111111111111112
