"""Tests of the layer between transports and cache."""
