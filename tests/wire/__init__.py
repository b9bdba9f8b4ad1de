"""Formats, by properties and against the real SDKs."""
