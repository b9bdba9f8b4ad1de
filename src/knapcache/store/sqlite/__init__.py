"""A store in one SQLite file, shared by processes. store.py is the entry point."""
