"""Entries in a Valkey or Redis server, shared by many machines."""
