"""Hypothesis explores anew in every run of a developer; in CI a run can be repeated, and so can its failure."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("exploring", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "exploring")
