"""Tests of the Oracle share their instances and judges, hence a package."""
