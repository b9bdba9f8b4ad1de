"""What is public changes only with its list in tests/surfaces. docs/reference/stability.md has the rules."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.surfaces import SURFACES, path_of


@pytest.mark.features
@pytest.mark.parametrize("surface", SURFACES)
def test_a_public_surface_is_that_of_its_list(surface: str) -> None:
    found = Counter(SURFACES[surface]())
    listed = Counter(path_of(surface).read_text(encoding="utf-8").splitlines())
    removed, added = sorted((listed - found).elements()), sorted((found - listed).elements())
    assert removed == [], "a name that leaves or changes needs a major version: docs/reference/stability.md"
    assert added == [], "`python -m tests.support.surfaces` adds them; they are public from the next minor version on"
