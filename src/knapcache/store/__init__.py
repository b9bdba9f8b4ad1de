"""Stores hold entries. base.py defines the protocol; memory.py and sqlite/ implement it; registry.py opens one by URL."""
