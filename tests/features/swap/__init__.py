"""Tests of swap."""
