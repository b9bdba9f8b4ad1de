r"""Regular expressions that find all matches in time proportional to the length of the text.

google-re2 1.1.20251105 cannot replace this module: it takes quadratic time to find all matches (`a.*b|a` in a text of
80,000 `a`: 8.8 s; here 0.06 s), and finds less. Its `\w`, `\d`, `\s` and `\b` are ASCII only, so that `\bÖzil\b` does
not match in "Herr Özil", and of overlapping matches it finds only the first.

Python's `re` backtracks: some patterns take exponential time on some texts, and it keeps the interpreter's lock
meanwhile, so that a thread does not help. Texts come from clients, and patterns from the settings. So patterns of the
settings are parsed by `re` and run here, as an automaton (Glushkov's): a state is a character of the pattern, and a set
of states is an integer.

    forward    F[i] = states that may have consumed text[i] in a match that began at or before i
    backward   G[i] = states in F[i] from which the rest of the text completes a match
    result     every i with G[i] ≠ ∅, which is every character that is part of any match

Steps are remembered, so a character costs a few dictionary lookups. At worst it costs MAX_STATES steps. The loop is
Python code, so other threads run meanwhile. Rejected: bounds on the length of the text for `re`, because `(a+)+b` takes
minutes for 40 characters, and a check of patterns for such cases, which rejects harmless patterns and misses others.

Lookaround, back references, atomic groups and possessive quantifiers are not regular expressions in this sense, and are
refused. Lazy quantifiers match as greedy ones do: all matches count. `^` and `$` match at every line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from knapcache.errors import InvalidInput

MAX_PATTERN = 1000
"""Characters of a pattern."""
MAX_STATES = 256
"""Characters of a pattern after its counted repetitions were written out."""
MAX_REMEMBERED = 20_000
"""Steps that are remembered. Of more, those that were not used for the longest time are forgotten."""

Predicate = Callable[[str], bool]
_parse: Any = import_module("re._parser").parse  # not public, and the only parser of this syntax
_NONE, _NEWLINE, _WORD, _OTHER = range(4)
"""Kinds of characters, as far as `^`, `$` and `\\b` need them. _NONE: before the start, and after the end."""
_CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "AT_BEGINNING": lambda before, _: before in (_NONE, _NEWLINE),
    "AT_BEGINNING_STRING": lambda before, _: before == _NONE,
    "AT_END": lambda _, after: after in (_NONE, _NEWLINE),
    "AT_END_STRING": lambda _, after: after == _NONE,
    "AT_BOUNDARY": lambda before, after: (before == _WORD) != (after == _WORD),
    "AT_NON_BOUNDARY": lambda before, after: (before == _WORD) == (after == _WORD),
}
_CATEGORIES: dict[str, Predicate] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda char: char.isalnum() or char == "_",
}
_REFUSED = {
    "ASSERT": "lookahead and lookbehind",
    "ASSERT_NOT": "lookahead and lookbehind",
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "back references",
    "GROUPREF_IGNORE": "back references",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive quantifiers",
}


class LinearRegex:
    """A compiled pattern in the syntax of `re`, without what the module refuses. Not for several threads at once."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise InvalidInput(f"a pattern may have {MAX_PATTERN} characters, not {len(pattern)}")
        self.pattern = pattern
        program = _Program(pattern)
        self._predicates = program.predicates
        self._bounds = sorted(program.bounds)
        self._ignores_case = program.ignores_case
        self._classes: dict[CharacterClass, int] = {}
        self._conditional = program.conditional
        self._follow = [program.closure(target) for target in program.targets]
        self._start = program.closure(program.start)
        remembered = lru_cache(MAX_REMEMBERED)
        self._matching = remembered(self._find_matching)
        self._begin = remembered(self._find_begin)
        self._step = remembered(self._find_step)
        self._complete = remembered(self._find_complete)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the parts of the text that matches cover, as (start, end), in order. Adjacent matches are one part."""
        conditional, kind, after = self._conditional, _NONE, _NONE
        states, found, matched = 0, [0] * len(text), False
        begin = self._begin(0)
        for place, char in enumerate(text):
            context = 0
            if conditional:
                after = _kind(char)
                context, kind = kind * 4 + after, after
                begin = self._begin(context)
            matching = self._matching(char)
            if states:
                follow, accepted = self._step(states, context)
                matched = matched or accepted
                states = found[place] = (follow | begin) & matching
            elif begin & matching:
                states = found[place] = begin & matching
        if states and not matched:
            matched = self._step(states, kind * 4 + _NONE if conditional else 0)[1]
        return self._covered(text, found) if matched else []

    def replace(self, text: str, replacement: str) -> str:
        """Return the text with every part that matches cover replaced."""
        spans = self.spans(text)
        if not spans:
            return text
        parts, end = [], 0
        for start, stop in spans:
            parts += [text[end:start], replacement]
            end = stop
        return "".join((*parts, text[end:]))

    def _covered(self, text: str, found: list[int]) -> list[tuple[int, int]]:
        """Return the parts of the text in which the states that were found lead to the end of a match."""
        spans: list[tuple[int, int]] = []
        completing, kind = 0, _NONE
        stop: int | None = None
        for place in range(len(text) - 1, -1, -1):
            context = 0
            if self._conditional:
                before = _kind(text[place])
                context, kind = before * 4 + kind, before
            states = found[place]
            completing = self._complete(states, completing, context) if states else 0
            if completing and stop is None:
                stop = place + 1
            elif not completing and stop is not None:
                spans.append((place + 1, stop))
                stop = None
        if stop is not None:
            spans.append((0, stop))
        return spans[::-1]

    def _find_matching(self, char: str) -> int:
        """Return the states that may consume a character."""
        kind = self._class(char)
        found = self._classes.get(kind)
        if found is None:
            if len(self._classes) > MAX_REMEMBERED:
                self._classes.clear()
            tests = enumerate(self._predicates)
            found = self._classes[kind] = sum(1 << state for state, test in tests if test(char))
        return found

    def _class(self, char: str) -> CharacterClass:
        """Return the class of a character. The pattern treats all characters of one class alike."""
        forms = (char, char.lower(), char.upper()) if self._ignores_case else (char,)
        return tuple(
            (bisect_right(self._bounds, ord(form)), form.isdecimal(), form.isspace(), form.isalnum())
            for form in forms
            if len(form) == 1
        )

    def _find_begin(self, context: int) -> int:
        """Return the states in which a match may begin."""
        return _reached((self._start,), context)[0]

    def _find_step(self, states: int, context: int) -> tuple[int, bool]:
        """Return the states that may come next, and whether a match may end."""
        return _reached([self._follow[state] for state in _members(states)], context)

    def _find_complete(self, states: int, completing: int, context: int) -> int:
        """Return those of the states after which a match ends, or that lead to a completing state."""
        found = 0
        for state in _members(states):
            follow, accepted = _reached((self._follow[state],), context)
            if accepted or follow & completing:
                found |= 1 << state
        return found


CharacterClass = tuple[tuple[int, bool, bool, bool], ...]
"""For the character, and for its other case if the pattern ignores case: the number of the interval between two bounds
of the pattern that contains it, and whether it is a digit, a space, or alphanumeric."""
Edge = tuple[frozenset[str], int]
"""Conditions, and a state; −1: the end of a match."""


def _kind(char: str) -> int:
    if char == "\n":
        return _NEWLINE
    return _WORD if char.isalnum() or char == "_" else _OTHER


def _members(states: int) -> Iterable[int]:
    while states:
        lowest = states & -states
        yield lowest.bit_length() - 1
        states ^= lowest


def _reached(edges: Iterable[Sequence[Edge]], context: int) -> tuple[int, bool]:
    before, after = divmod(context, 4)
    states, accepted = 0, False
    for each in edges:
        for conditions, state in each:
            if all(_CONDITIONS[name](before, after) for name in conditions):
                if state < 0:
                    accepted = True
                else:
                    states |= 1 << state
    return states, accepted


class _Program:
    """The nodes of a pattern: a state that consumes a character, a choice, a condition, or the end."""

    def __init__(self, pattern: str) -> None:
        try:
            parsed = _parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidInput(f"is not a regular expression: {error}") from None
        self.predicates: list[Predicate] = []
        self.targets: list[int] = []
        """The node after each state."""
        self.conditional = False
        self.bounds = {ord("\n"), ord("\n") + 1, ord("_"), ord("_") + 1, 128}
        """The code points at which the answer of a predicate may change. 128: the end of ASCII."""
        self.ignores_case = False
        self._nodes: list[tuple[str, Any]] = [("end", None)]
        self.start = self._sequence(parsed, parsed.state.flags, 0)

    def closure(self, node: int) -> list[Edge]:
        """Return the states that are reached from a node without a character, and the conditions for it."""
        found: dict[Edge, None] = {}
        seen: set[Edge] = set()
        waiting: list[Edge] = [(frozenset(), node)]
        while waiting:
            conditions, node = edge = waiting.pop()
            if edge in seen:
                continue
            seen.add(edge)
            kind, value = self._nodes[node]
            if kind == "end":
                found[conditions, -1] = None
            elif kind == "state":
                found[conditions, value] = None
            elif kind == "choice":
                waiting += [(conditions, target) for target in value]
            else:
                name, target = value
                waiting.append((conditions | {name}, target))
        return list(found)

    def _node(self, kind: str, value: Any) -> int:
        if len(self._nodes) > 8 * MAX_STATES:
            raise self._too_long()
        self._nodes.append((kind, value))
        return len(self._nodes) - 1

    def _too_long(self) -> InvalidInput:
        return InvalidInput(
            f"is too long: with its counted repetitions written out it may have {MAX_STATES} characters"
        )

    def _sequence(self, items: Iterable[Any], flags: int, target: int) -> int:
        """Add the nodes of a sequence, which lead to `target`. Return the first."""
        for code, value in reversed(list(items)):
            target = self._item(str(code), value, flags, target)
        return target

    def _item(self, code: str, value: Any, flags: int, target: int) -> int:
        if code in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            if len(self.predicates) >= MAX_STATES:
                raise self._too_long()
            self.predicates.append(_predicate(code, value, flags))
            self.bounds.update(_bounds(code, value))
            self.ignores_case = self.ignores_case or bool(flags & re.IGNORECASE)
            self.targets.append(target)
            return self._node("state", len(self.predicates) - 1)
        if code == "BRANCH":
            return self._node("choice", [self._sequence(branch, flags, target) for branch in value[1]])
        if code == "SUBPATTERN":
            _, added, removed, items = value
            return self._sequence(items, (flags | added) & ~removed, target)
        if code in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, items = value
            return self._repeat(least, most, items, flags, target)
        if code == "AT":
            self.conditional = True
            return self._node("condition", (str(value), target))
        raise InvalidInput(f"has {_REFUSED.get(code, code)}, which cannot be matched in linear time")

    def _repeat(self, least: int, most: Any, items: Any, flags: int, target: int) -> int:
        if str(most) == "MAXREPEAT":
            loop = self._node("choice", [])
            self._nodes[loop][1].extend((self._sequence(items, flags, loop), target))
            entry = loop
        else:
            entry = target
            for _ in range(most - least):
                entry = self._node("choice", [self._sequence(items, flags, entry), target])
        for _ in range(least):
            before = len(self._nodes)
            entry = self._sequence(items, flags, entry)
            if len(self._nodes) == before:  # the repeated part is empty
                break
        return entry


def _predicate(code: str, value: Any, flags: int) -> Predicate:
    """Return a function that tests one character. If the pattern ignores case, one of the two cases must pass."""
    negated, tests = False, []
    if code == "ANY":
        return (lambda _: True) if flags & re.DOTALL else (lambda char: char != "\n")
    for kind, operand in value if code == "IN" else [("LITERAL", value)]:
        if str(kind) == "NEGATE":
            negated = True
        else:
            tests.append(_member(str(kind), operand, flags))
    negated = negated or code == "NOT_LITERAL"

    def test(char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else (char,)
        return any(one(form) for one in tests for form in forms if len(form) == 1) != negated

    return test


def _bounds(code: str, value: Any) -> Iterator[int]:
    """Yield the code points at which the literals and ranges of a predicate begin, and those after their ends."""
    for kind, operand in value if code == "IN" else [("LITERAL", value)]:
        if str(kind) == "LITERAL" and operand is not None:
            yield from (operand, operand + 1)
        elif str(kind) == "RANGE":
            yield from (operand[0], operand[1] + 1)


def _member(kind: str, operand: Any, flags: int) -> Predicate:
    if kind == "LITERAL":
        return lambda char: ord(char) == operand
    if kind == "RANGE":
        low, high = operand
        return lambda char: low <= ord(char) <= high
    name = str(operand).removeprefix("CATEGORY_")
    category = _CATEGORIES[name.removeprefix("NOT_")]
    wanted = not name.startswith("NOT_")
    if flags & re.ASCII:
        return lambda char: (char.isascii() and category(char)) == wanted
    return lambda char: category(char) == wanted
