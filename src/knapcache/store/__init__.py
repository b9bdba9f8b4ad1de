"""Stores hold entries. base.py is the protocol; memory.py and sqlite/ implement it; registry.py opens one by URL."""
