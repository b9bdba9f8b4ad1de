"""The rules of the setting `redact`: built-in ones by name, and regular expressions.

    emails   addresses                                                       [email]
    keys     API keys of common providers, bearer tokens, JWTs, private keys [key]
    cards    card numbers: 13 to 19 digits with a valid check digit          [card]
    other    a regular expression (linear_regex.py)                          [redacted]

Every rule takes time proportional to the text. The patterns of the built-in rules run in `re`: their quantifiers are
possessive or have small bounds, and a match can only start where no earlier attempt has scanned the same characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.serve.redaction.linear_regex import LinearRegex

Rule = Callable[[str], str]

DOMAIN = r"(?:[\w-]++(?:\.[\w-]++)++|\[[0-9A-Fa-f:.IPv]{2,60}+\])"
LOCAL = r"[\w.!#$%&'*+/=?^`{|}~-]"
EMAIL = re.compile(rf'(?:"[^"\n]{{1,64}}+"|(?<!{LOCAL}){LOCAL}++)@{DOMAIN}')
TOKEN = "[A-Za-z0-9_-]"
KEY = re.compile(
    rf"""
    (?<![A-Za-z0-9])(?:
        sk-{TOKEN}{{16,}}+                               # OpenAI, Anthropic, OpenRouter, DeepSeek
      | (?:gsk_|xai-|hf_|r8_|pplx-|nvapi-|fw_|csk-|tgp_v1_|glpat-|github_pat_|gh[pousr]_|npm_|pypi-|dop_v1_)
        {TOKEN}{{16,}}+                                  # Groq, xAI, Hugging Face, Replicate, Perplexity, GitHub, …
      | [rs]k_(?:live|test)_[A-Za-z0-9]{{10,}}+          # Stripe
      | AIza{TOKEN}{{30,}}+ | ya29\.{TOKEN}{{16,}}+      # Google
      | (?:AKIA|ASIA)[0-9A-Z]{{16}}                      # AWS
      | xox[abeoprs]-{TOKEN}{{10,}}+                     # Slack
    )
  | (?<!{TOKEN})eyJ{TOKEN}{{8,}}+\.{TOKEN}{{8,}}+(?:\.{TOKEN}*+)?                 # JWT
  | (?<![A-Za-z])(?i:bearer)\s{{1,8}}+[A-Za-z0-9._~+/=-]{{12,}}+
  | (?<![A-Za-z])(?i:(?:x-)?api[_-]?key)["']?+\s{{0,4}}+[:=]\s{{0,4}}+["']?+[A-Za-z0-9._~+/=-]{{12,}}+
  | -----BEGIN\ [A-Z ]{{0,40}}PRIVATE\ KEY-----[^-]*+(?:-----END\ [A-Z ]{{0,40}}PRIVATE\ KEY-----)?
    """,
    re.VERBOSE,
)
DIGITS = re.compile(r"(?<![0-9])[0-9](?:[ -]?+[0-9]){12,}+")
CARD_LENGTHS = range(13, 20)
DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
"""Sum of the digits of twice a digit."""
CARD_STARTS = "23456"
"""First digits of the card schemes."""


def redact_emails(text: str) -> str:
    """Replace e-mail addresses."""
    return EMAIL.sub("[email]", text) if "@" in text else text


def redact_keys(text: str) -> str:
    """Replace API keys, bearer tokens and private keys."""
    return KEY.sub("[key]", text)


def redact_cards(text: str) -> str:
    """Replace card numbers."""
    return DIGITS.sub(_without_cards, text)


def _without_cards(match: re.Match[str]) -> str:
    """Replace the card numbers in a run of digits. A number begins and ends at a separator or an end of the run."""
    parts = re.split(r"([ -])", match[0])
    groups, separators = parts[::2], [*parts[1::2], ""]
    kept, place = [], 0
    while place < len(groups):
        end = _card_end(groups, place)
        kept.append(groups[place] if end is None else "[card]")
        place = place + 1 if end is None else end
        kept.append(separators[place - 1])
    return "".join(kept)


def _card_end(groups: list[str], start: int) -> int | None:
    """Return the index after the last group of the longest card number that begins with this group, or None.

    The check digit is Luhn's: every second digit counts double, from the right, and the sum is a multiple of 10. Both
    sums are updated for each digit: with the last digit counted once, and with it counted double.
    """
    count = single = double = 0
    found = None
    if groups[start][:1] not in CARD_STARTS:
        return None
    for place in range(start, len(groups)):
        count += len(groups[place])
        if count > CARD_LENGTHS[-1]:
            break
        for digit in map(int, groups[place]):
            single, double = double + digit, single + DOUBLED[digit]
        if count in CARD_LENGTHS and single % 10 == 0:
            found = place + 1
    return found


BUILT_IN: dict[str, Rule] = {"emails": redact_emails, "keys": redact_keys, "cards": redact_cards}


def redaction_rules(names: Iterable[str]) -> list[Rule]:
    """Return the rules of the setting `redact`, or raise InvalidInput."""
    return [_rule(name) for name in names]


def _rule(name: str) -> Rule:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if re.fullmatch(r"[A-Za-z_]*", name):
        raise InvalidInput(
            f"must be {', '.join(BUILT_IN)} or regular expressions; one for just the word {name[:40]!r} is "
            f"'(?:{name[:40]})'"
        )
    try:
        found = LinearRegex(name)
    except InvalidInput as error:
        raise InvalidInput(f"the pattern {name[:80]!r} {error}") from None
    return partial(found.replace, replacement="[redacted]")


class TextRedactor:
    """Applies rules to texts, and to the texts in JSON values. For one thread at a time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._rules = redaction_rules(names)

    def text(self, text: str) -> str:
        """Return a text after all rules, in their order."""
        for rule in self._rules:
            text = rule(text)
        return text

    def number(self, value: float) -> Any:
        """Return a number, or a text in its place if a rule applies to its digits."""
        shown = str(value)
        found = self.text(shown)
        return value if found == shown else found
