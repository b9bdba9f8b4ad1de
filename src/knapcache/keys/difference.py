"""Compare two canonical requests, and say in plain words in which fields they differ.

    temperature               0.2 instead of 0
    system prompt             only white space differs
    last user message         only numbers differ, such as a date, a time or an id
    messages                  2 more messages: 5 instead of 3

A difference may hold parts of the requests in each of its texts. `without_content` returns what is shown to readers
who may not see content: values of the parameters that `public.py` lists, and of all others only kinds, lengths and
positions.

`weight` ranks differences: which of several entries is nearest is the one with the smallest sum. A parameter weighs 1,
a prompt with another meaning 15, so an entry that differs in two parameters is nearer than one with another prompt.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from knapcache.keys.outline import CONVERSATION, CanonicalRequest, hash_of, is_system, plain_text, text_of
from knapcache.keys.public import MESSAGE_FIELDS, FieldPath, public_value
from knapcache.keys.system_prompt import SYSTEM_FIELDS

MAX_DIFFERENCES = 20
SIMILAR = 10.0
"""The largest sum of weights of two requests that are called similar."""
EXCERPT = 64
"""Characters of a text that are shown around its first difference."""
SHORT_TEXT = frozenset((
    "model", "type", "role", "tool_choice", "reasoning_effort", "effort", "encoding_format", "verbosity", "truncation",
    "format", "detail", "quality", "summary", "mode",
))  # fmt: skip
"""Fields whose text is most often a choice of few words: it is shown as a whole to readers who may see content."""
CONTEXT = {
    "upstream": "upstream",
    "url": "upstream",
    "namespace": "cache.namespace",
    "route namespace": "namespace of the route",
    "query": "query of the URL",
    "headers": "request headers",
}
"""Names of the parts of the context. All others are headers."""
HASHED = {
    "headers": "headers that are part of the key differ; the setting ignored_headers can leave them out of it",
    "query": "the queries differ",
}
"""Parts of the context that are stored as a hash."""
SETTINGS = ("upstream", "url", "route namespace")
"""Parts of the context that are not from a client."""


class Difference(NamedTuple):
    """One field in which two requests differ."""

    field: str
    text: str
    """How they differ, in plain words."""
    here: str | None = None
    """The value in the first request; None: not set, or too long to show."""
    there: str | None = None
    content: bool = False
    """Whether `here` and `there` are parts of a prompt or of a definition."""
    weight: float = 1.0
    public: tuple[str, str] | None = None
    """Field and text for readers who may not see content; None: the same ones, which have none."""

    def without_content(self) -> Difference:
        """Return the difference for readers who may not see content."""
        field, text = self.public or (self.field, self.text)
        here, there = (None, None) if self.content else (self.here, self.there)
        return Difference(field, text, here, there, weight=self.weight)


class _Missing:
    """The type of MISSING: the value of a field that is not set."""


MISSING = _Missing()


def differences(here: CanonicalRequest, there: CanonicalRequest) -> list[Difference]:
    """Return the fields in which two requests differ, at most MAX_DIFFERENCES; none for equal requests."""
    found: list[Difference] = []
    if here.kind != there.kind:
        kinds = (here.kind, there.kind)
        found.append(Difference("endpoint", f"{kinds[0]} instead of {kinds[1]}", *kinds, weight=30.0))
    if here.namespace != there.namespace:
        found.append(Difference("tenant", "the other request is of another tenant or API key"))
    for name in sorted({*here.context, *there.context}):
        found += _context(name, here.context.get(name), there.context.get(name))
    names = {*here.body, *there.body}
    for name in sorted(names, key=lambda name: (name in CONVERSATION, name in SYSTEM_FIELDS, name != "model", name)):
        a, b = here.body.get(name, MISSING), there.body.get(name, MISSING)
        if not _same(a, b):
            found += _field(name, a, b)
    return found[:MAX_DIFFERENCES]


def distance(found: Iterable[Difference]) -> float:
    """Return the sum of weights: the smaller, the more similar."""
    return sum(difference.weight for difference in found)


def without_content(found: Iterable[Difference]) -> list[Difference]:
    """Return differences for readers who may not see content. Those that look the same then are named once."""
    return list({(one.field, one.text): one for one in (each.without_content() for each in found)}.values())


def _field(name: str, a: Any, b: Any) -> list[Difference]:
    """Return the differences of one field at the top of the body."""
    if name in CONVERSATION and isinstance(a, list) and isinstance(b, list) and _are_messages(a) and _are_messages(b):
        return _messages(a, b)
    if name in CONVERSATION:
        return _text_or_value(FieldPath.top(name), a, b, 1.0)
    if name in SYSTEM_FIELDS:
        return _text_or_value(FieldPath.fixed("system prompt"), a, b, 0.4)
    found: list[Difference] = []
    if isinstance(a, (dict, list)) and isinstance(b, (dict, list)):
        _compare(FieldPath.top(name), a, b, found.append)
    elif isinstance(a, str) and isinstance(b, str) and public_value(name, a) is None:
        found.append(_text(FieldPath.top(name), a, b, 0.2))
    else:
        found.append(_scalar(FieldPath.top(name), a, b, [_parameter(name, value) for value in (a, b)]))
    # However many leaves of one parameter differ, it is one parameter.
    return [difference._replace(weight=min(3.0, difference.weight) / len(found)) for difference in found]


def _parameter(name: str, value: Any) -> str | None:
    """Return the value of a parameter for readers who may not see content; None if it is content."""
    return "not set" if isinstance(value, _Missing) else public_value(name, value)


def _compare(path: FieldPath, a: Any, b: Any, add: Callable[[Difference], object], depth: int = 0) -> None:
    """Report the leaves in which two values differ. They are content."""
    if isinstance(a, dict) and isinstance(b, dict) and depth < 6:
        for name in sorted({*a, *b}):
            x, y = a.get(name, MISSING), b.get(name, MISSING)
            if not _same(x, y):
                _compare(path.field(name), x, y, add, depth + 1)
    elif isinstance(a, list) and isinstance(b, list) and depth < 6:
        if len(a) != len(b):
            text = f"{_count(len(a), 'item')} instead of {len(b)}"
            add(Difference(path.full, text, public=(path.public, text)))
        for k, (x, y) in enumerate(zip(a, b, strict=False)):
            if not _same(x, y):
                _compare(path.item(k), x, y, add, depth + 1)
    elif isinstance(a, str) and isinstance(b, str) and path.full.rpartition(".")[2] not in SHORT_TEXT:
        add(_text(path, a, b, 0.2))
    else:
        add(_scalar(path, a, b))


def _scalar(path: FieldPath, a: Any, b: Any, public: Sequence[str | None] = (None, None)) -> Difference:
    """Return the difference of two values that are not both texts or both objects.

    public: the two values for readers who may not see content; None for one that is content
    """
    content = None in public
    full = [_short(path.full, value) for value in (a, b)]
    text = _in_place_of(a, b, full)
    shown = _in_place_of(a, b, (None, None)) if content else text
    return Difference(path.full, text, _excerpt(a), _excerpt(b), content=content, public=(path.public, shown))


def _in_place_of(a: Any, b: Any, forms: Sequence[str | None]) -> str:
    """Return in words that the value is `a` instead of `b`. forms: the values as text; None: named by their kind."""
    here, there = forms
    if isinstance(a, _Missing):
        return f"not set instead of {there}" if there else "only the other request sets it"
    if isinstance(b, _Missing):
        return f"{here} instead of not set" if here else "only this request sets it"
    if here and there:
        return f"{here} instead of {there}"
    kinds = _kind(a), _kind(b)
    return f"{kinds[0]} instead of {kinds[1]}" if kinds[0] != kinds[1] else "the values differ"


def _short(field: str, value: Any) -> str | None:
    """Return a value that is short, as text; None for others."""
    if isinstance(value, _Missing):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return value[:EXCERPT] if isinstance(value, str) and field.rpartition(".")[2] in SHORT_TEXT else None


def _context(name: str, a: str | None, b: str | None) -> list[Difference]:
    if a == b:
        return []
    field = CONTEXT.get(name, f"header {name}")
    if name in HASHED:
        return [Difference(field, HASHED[name])]
    here, there = a or "not set", b or "not set"
    text = f"{here[:EXCERPT]} instead of {there[:EXCERPT]}"
    if name in SETTINGS:
        return [Difference(field, text, a, b)]
    words = "the values differ" if a and b else f"only {'this' if a else 'the other'} request sets it"
    return [Difference(field, text, a, b, content=True, public=(field, words))]


# Conversations.


def _are_messages(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(message, dict) for message in value)


def _messages(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[Difference]:
    """Return the differences of two conversations."""
    shorter = min(len(a), len(b))
    start = next((k for k in range(shorter) if not _same(a[k], b[k])), shorter)
    end = next((k for k in range(shorter - start) if not _same(a[-1 - k], b[-1 - k])), shorter - start)
    if len(a) == len(b):
        found: list[Difference] = []
        for k in range(start, len(a) - end):
            if not _same(a[k], b[k]):
                found += _message(_message_name(a, k), a[k], b[k])
        return found
    longer, more = (a, "more") if len(a) > len(b) else (b, "fewer")
    number = abs(len(a) - len(b))
    counts = f"{_count(number, more + ' message')}: {len(a)} instead of {len(b)}"
    if start + end < shorter:  # not only insertions
        first = _message(_message_name(a, start), a[start], b[start])
        return [Difference("messages", counts, weight=4.0 + number), *first]
    inserted = longer[start : start + number]
    if all(is_system(message) for message in inserted):
        whose = "this" if longer is a else "the other"
        texts = [None, _excerpt(text_of(inserted))]
        here, there = texts[::-1] if longer is a else texts
        return [Difference("system prompt", f"only {whose} request has one", here, there, content=True, weight=2.0)]
    place = "" if start == shorter else f", from message {start + 1} on"
    return [Difference("messages", counts + place, weight=2.0 + 0.5 * number)]


def _message_name(messages: list[dict[str, Any]], k: int) -> str:
    if is_system(messages[k]):
        return "system prompt"
    role = messages[k].get("role")
    if role == "user" and all(message.get("role") != "user" for message in messages[k + 1 :]):
        return "last user message"
    return f"message {k + 1}" + (f" ({role})" if role in ("user", "assistant", "tool") else "")


def _message(name: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    share = 0.4 if name == "system prompt" else 1.0
    path = FieldPath.fixed(name)
    for field in sorted({*a, *b}):
        x, y = a.get(field, MISSING), b.get(field, MISSING)
        if _same(x, y):
            continue
        if field == "content":
            found += _text_or_value(path, x, y, share)
        else:
            _compare(path.field(field, MESSAGE_FIELDS), x, y, found.append)
    return found


def _text_or_value(path: FieldPath, a: Any, b: Any, share: float) -> list[Difference]:
    """Return the differences of two contents: texts, or lists of parts."""
    if isinstance(a, str) and isinstance(b, str):
        return [_text(path, a, b, share)]
    if isinstance(a, (str, list)) and isinstance(b, (str, list)):
        texts = text_of(a), text_of(b)
        if type(a) is not type(b) and texts[0] == texts[1]:
            return [Difference(path.full, f"the same text as {_kind(a)} instead of {_kind(b)}", weight=1.0)]
        if texts[0] != texts[1]:
            return [_text(path, *texts, share)]
    found: list[Difference] = []
    _compare(path, a, b, found.append)
    return found


def _text(path: FieldPath, a: str, b: str, share: float) -> Difference:
    """Return the difference of two texts. share: how much a text counts, compared with a prompt."""
    start, equal = _common(a, b)
    text, weight = _accident(a, b), 2.0
    if text is None:
        lengths = f"{len(a)} characters instead of {len(b)}" if len(a) != len(b) else f"both have {len(a)} characters"
        text = f"the text differs from character {start + 1} on; {lengths}"
        weight = 3.0 + 12.0 * (1.0 - equal / max(len(a), len(b), 1))
    here, there, public = _excerpt(a, start), _excerpt(b, start), (path.public, text)
    return Difference(path.full, text, here, there, content=True, weight=share * weight, public=public)


def _accident(a: str, b: str) -> str | None:
    """Return what differs if the two texts say the same."""
    if a.split() == b.split():
        return "only white space differs"
    if a.casefold() == b.casefold():
        return "only upper and lower case differs"
    if unicodedata.normalize("NFKC", a) == unicodedata.normalize("NFKC", b):
        return "only the Unicode form of characters differs"
    return "only numbers differ, such as a date, a time or an id" if plain_text(a) == plain_text(b) else None


def _common(a: str, b: str) -> tuple[int, int]:
    """Return the length of the common start, and that of common start and end together."""
    shorter = min(len(a), len(b))
    start = _common_start(a, b, shorter)
    return start, start + _common_start(a[::-1], b[::-1], shorter - start)


def _common_start(a: str, b: str, limit: int) -> int:
    """Return how many characters are equal at the start, at most `limit`, by bisection: slices compare fast."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _excerpt(value: Any, start: int = 0) -> str | None:
    """Return a value, cut to EXCERPT characters around `start`; None for a field that is not set."""
    if isinstance(value, _Missing):
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    first = max(0, start - EXCERPT // 4)
    cut = text[first : first + EXCERPT]
    return f"{'…' if first else ''}{cut}{'…' if first + EXCERPT < len(text) else ''}"


def _kind(value: Any) -> str:
    names = {
        str: "a text",
        list: "a list",
        dict: "an object",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal: unlike in Python, true is not 1."""
    if isinstance(a, _Missing) or isinstance(b, _Missing):
        return a is b
    if a is b or (isinstance(a, str) and isinstance(b, str)):
        return bool(a == b)
    return bool(a == b) and hash_of(a) == hash_of(b)
