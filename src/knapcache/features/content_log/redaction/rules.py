"""The rules of the setting `redact`: built-in ones by name, and regular expressions.

    emails   addresses                                                       [email]
    keys     API keys, bearer tokens, JWTs, private keys, passwords in URLs   [key]
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
from knapcache.features.content_log.redaction.linear_regex import LinearRegex

Rule = Callable[[str], str]

DOMAIN = r"(?:[\w-]++(?:\.[\w-]++)++|\[[0-9A-Fa-f:.IPv]{2,60}+\])"
LOCAL = r"[\w.!#$%&'*+/=?^`{|}~-]"
EMAIL = re.compile(rf'(?:"[^"\n]{{1,64}}+"|(?<!{LOCAL}){LOCAL}++)@{DOMAIN}')
TOKEN = "[A-Za-z0-9_-]"
VALUE = "[A-Za-z0-9._~+/=-]"
IS = r"""\\?+["']?+\s{0,4}+[:=]\s{0,4}+\\?+["']?+"""
"""Between the name of a field and its value, in JSON, in JSON inside a text, and in settings."""
PRIVATE = r"[A-Z0-9\ ]{0,40}?PRIVATE\ KEY(?:\ BLOCK)?-----"
"""The end of the first and of the last line of a private key: of RSA, EC, OPENSSH, PGP and others, or encrypted."""
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
  # After a letter or a digit, where prefixes are also the ends of words (task-…): only what has the form of a key.
  | sk-(?:proj|ant|or|svcacct|admin)-{TOKEN}{{16,}}+ | sk-(?=[A-Za-z]{{0,24}}[0-9])[A-Za-z0-9]{{20,}}+
  | gh[pousr]_[A-Za-z0-9]{{30,}}+ | github_pat_{TOKEN}{{16,}}+ | gsk_[A-Za-z0-9]{{30,}}+ | hf_[A-Za-z0-9]{{30,}}+
  | AIza{TOKEN}{{30,}}+ | (?:AKIA|ASIA)[0-9A-Z]{{16}} | xox[abeoprs]-[0-9]{TOKEN}{{10,}}+
  | (?<!{TOKEN})eyJ{TOKEN}{{8,}}+\.{TOKEN}{{8,}}+(?:\.{TOKEN}*+)?                 # JWT
  | (?<![A-Za-z])(?i:bearer)\s{{1,8}}+{VALUE}{{12,}}+
  | (?<![A-Za-z])(?i:authorization){IS}[A-Za-z]{{2,12}}+\s{{1,4}}+{VALUE}{{8,}}+
  | (?i:api[_-]?key|secret[_-]?key|access[_-]?key|client[_-]?secret|access[_-]?token){IS}{VALUE}{{12,}}+
  | (?<=://)[^/\s:@"'\\]{{0,64}}+:[^/\s@"'\\]{{1,256}}+(?=@)                                 # user:password
  | -----BEGIN\ {PRIVATE}(?:[^-]++|-(?!----END\ {PRIVATE}))*+(?:-----END\ {PRIVATE})?  # or to the end
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
    return EMAIL.sub("[email]", text) if "@" in text else text


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


BUILT_IN: dict[str, Rule] = {
    "emails": redact_emails,
    "keys": partial(KEY.sub, "[key]"),
    "cards": partial(DIGITS.sub, _without_cards),
}


def redaction_rules(names: Iterable[str]) -> list[Rule]:
    """Return the rules of the setting `redact`, or raise InvalidInput.

    `keys` comes first: the rule for addresses would take the end of a password in a URL.
    """
    return [_rule(name) for name in sorted(names, key=lambda name: name != "keys")]


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
