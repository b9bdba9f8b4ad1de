"""Limits on calls to upstreams, of each tenant and of all callers together: dollars, requests, tokens, concurrency."""
