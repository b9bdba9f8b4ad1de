"""Tests of the semantic tier."""
