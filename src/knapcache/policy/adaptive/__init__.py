"""The default policy: value per size over a half-life and an admission rule learned from shadow caches."""
