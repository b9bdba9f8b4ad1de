"""Tests of the prefix tier."""
