"""Simulation of several proxies: the cost of each design of a shared cache (designs.py)."""
