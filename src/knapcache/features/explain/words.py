"""Numbers and lists in the sentences of explanations."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration in its largest unit of at least 1."""
    seconds = max(0.0, seconds)
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= (2 * size if name == "d" else size):
            return f"{seconds / size:.0f} {name}"
    return "less than a second"


def ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{suffix}"


def join(parts: list[str]) -> str:
    """Return "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
