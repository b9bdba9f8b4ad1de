"""Prompt caching at the provider: which prefixes of requests to mark, and for how long."""
