"""How many examples Hypothesis draws: few by default, many in `make test-long`."""

from __future__ import annotations

from hypothesis import settings


def examples(few: int, many: int) -> int:
    """Return `many` with the profile `exploring` of tests/conftest.py, and `few` otherwise."""
    return few if settings.default is not None and settings.default.derandomize else many
