"""Tests of the live cache."""
