"""Policies: which answers to keep. One algorithm, one file; registry.py has them all by name."""
