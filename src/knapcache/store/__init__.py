"""Stores: where answers lie. contract.py says what a store is; memory.py and sqlite.py are two."""
