"""Tests of the policies share their plain judges, hence a package."""
