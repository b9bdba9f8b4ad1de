"""Explains why a request was a hit or a miss."""
