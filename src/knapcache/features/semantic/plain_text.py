"""The plain form of a text: characters that look alike, or are not seen, do not make two texts different.

    ｎｏｔ, 𝐧𝐨𝐭, n.o.t       not         compatibility forms (NFKC), and letters with points between them
    no\u200bt                     not         format characters and stray combining marks are removed
    раin                     pain        letters of other scripts that look like Latin ones
    1½, ¼, 1 1/2             1.5, 0.25   vulgar fractions
    x², 10⁻³, H₂O            x^2, 10^-3  superscripts; subscripts become digits
    ×, ÷, −, ≤               *, /, -, <=
    6', 6'', 6", 50°          feet, inches, degrees

`is_disguised` returns whether a word has letters of another script that look like Latin ones. Such a text is never
matched: an attacker could evade a veto with it.
"""

from __future__ import annotations

import re
import unicodedata

_ALIKE = {
    "a": "аαɑ", "b": "Ьƅ", "c": "сϲᴄ", "d": "ԁ", "e": "еҽ", "g": "ɡ", "h": "һ", "i": "іιıɩ", "j": "јϳ", "k": "κк",
    "l": "ӏⅼ", "m": "м", "n": "ո", "o": "оοօᴏ", "p": "рρ", "q": "ԛգ", "r": "г", "s": "ѕꜱ", "t": "тτ", "u": "υսʋ",
    "v": "νѵᴠ", "w": "ԝωшᴡ", "x": "хχ", "y": "уγү", "z": "ᴢ",
}  # fmt: skip
_ALIKE_CAPITALS = {
    "A": "АΑ", "B": "ВΒ", "C": "СϹ", "E": "ЕΕ", "F": "Ϝ", "G": "Ԍ", "H": "НΗ", "I": "ІΙ", "J": "Ј", "K": "КΚ",
    "M": "МΜ", "N": "Ν", "O": "ОΟՕ", "P": "РΡ", "S": "Ѕ", "T": "ТΤ", "U": "Ս", "V": "Ѵ", "W": "Ԝ", "X": "ХΧ",
    "Y": "ΥҮ", "Z": "Ζ",
}  # fmt: skip
LOOK_ALIKES = {ord(char): latin for latin, chars in (_ALIKE | _ALIKE_CAPITALS).items() for char in chars}
"""Letters of other scripts, and the Latin letters that they look like."""
_GREEK_SYMBOLS = frozenset("αβγλμνπρστφχψωΔΣΩ")
"""Letters that stand alone in English texts."""

_SIGNS = str.maketrans({"’": "'", "ʼ": "'", "−": "-", "‐": "-", "‑": "-", "×": "*", "⋅": "*", "÷": "/", "≤": "<=",
                        "≥": ">=", "≠": "!=", "→": "->", "\u00a0": " "})  # fmt: skip
_MICRO = re.compile(r"[µμ](?=[A-Za-z])")
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUPERSCRIPT = re.compile(rf"[⁺⁻]?[{_SUPERSCRIPTS}]+")
_FRACTION = re.compile(r"(?:(\d+)\s+)?(?<![\d/.,])(\d{1,3})[⁄/](\d{1,3})(?![\d/.,⁄]*\d)")
_SPACED = re.compile(r"(?<![\w.'-])[^\W\d_](?:([.\- ])[^\W\d_])(?:\1[^\W\d_])+(?![\w'])")
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = re.compile(r"[^\W\d_]")
_ASCII_LETTER, _OTHER_SCRIPT = re.compile(r"[A-Za-z]"), re.compile(r"[\u0370-\u058f]")  # Greek, Cyrillic, Armenian
_ASCII = re.compile(r"[\x20-\x7e\n\t]*")
MAX_DENOMINATOR = 16
"""Of a fraction that is written with a slash. "24/7" and "2/20" are none."""


def plain_text(text: str) -> str:
    """Return the plain form of a text."""
    if not _ASCII.fullmatch(text):
        text = "".join(map(_character, _SUPERSCRIPT.sub(_power, text)))
        text = _MICRO.sub("u", unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS))
        text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Me"))
        text = _WORD.sub(lambda word: _latin(word[0]), text)
    if "/" in text or "⁄" in text:
        text = _FRACTION.sub(_decimal, text)
    return _SPACED.sub(_joined, _measures(text))


_FEET = re.compile(r"(?<=\d)['′](?![\w'′])|(?<=\d)['′](?=\d{1,2}(?!\w))")
_INCHES = re.compile(r"(?<=\d)(?:''|″|′′)(?!\w)")
_INCH_QUOTE = re.compile(r'(?<=\d)"(?!\w)')
_DEGREES = re.compile(r"(?<=\d)\s?°(?!\s?[CFcf]\b)")
_OPENS = re.compile(r"(?<!\w)'")


def _measures(text: str) -> str:
    """Return a text with names for the signs of feet, inches and degrees. A closing quotation mark is no sign."""
    if "°" in text:
        text = _DEGREES.sub(" degrees ", text)
    if not _MEASURED.search(text):
        return text
    text = text if _OPENS.search(text) else _FEET.sub(" feet ", text)
    text = _INCHES.sub(" inches ", text)
    return _INCH_QUOTE.sub(" inches ", text) if text.count('"') % 2 else text


_MEASURED = re.compile(r"\d['\"′″]")


def is_disguised(text: str) -> bool:
    """Return whether a word mixes Latin letters with those of another script, or has none but looks Latin."""
    if _ASCII.fullmatch(text):
        return False
    text = _MICRO.sub("u", unicodedata.normalize("NFKC", text).translate(_SIGNS))
    return any(_only_looks_latin(word) for word in _WORD.findall(text))


def _only_looks_latin(word: str) -> bool:
    if word.isascii() or word in _GREEK_SYMBOLS:
        return False
    return _latin(word) != word or bool(_ASCII_LETTER.search(word) and _OTHER_SCRIPT.search(word))


def _character(char: str) -> str:
    """Return a vulgar fraction with spaces around it. Otherwise NFKC would make 11⁄2 of 1½."""
    is_fraction = unicodedata.decomposition(char).startswith("<fraction>")
    return f" {unicodedata.normalize('NFKC', char)} " if is_fraction else char


def _power(match: re.Match[str]) -> str:
    digits = "".join("-" if char == "⁻" else "" if char == "⁺" else str(_SUPERSCRIPTS.index(char)) for char in match[0])
    return f"^{digits}"


def _decimal(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    if not 0 < int(above) < int(below) <= MAX_DENOMINATOR:
        return match[0].replace("⁄", "/")
    return f"{int(whole or 0) + int(above) / int(below):.6g}"


def _joined(match: re.Match[str]) -> str:
    """Return letters that stand apart as one word: "n.o.t"."""
    return match[0] if match[1] == " " and len(match[0]) < len("n o t") else match[0].replace(match[1], "")


def _latin(word: str) -> str:
    """Return a word in Latin letters, if all its letters are Latin or look so. A Greek symbol stays: α is not a."""
    if word.isascii() or word in _GREEK_SYMBOLS:
        return word
    found = word.translate(LOOK_ALIKES)
    if found == word or not all(char < "\u0250" for char in _LETTERS.findall(found)):
        return word
    return found
