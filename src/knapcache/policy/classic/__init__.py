"""Textbook policies, one per file."""
