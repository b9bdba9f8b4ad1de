"""What it costs to share one cache between several proxies, by the design of the sharing (designs.py)."""
