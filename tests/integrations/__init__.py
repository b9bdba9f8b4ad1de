"""Integrations against the real libraries."""
