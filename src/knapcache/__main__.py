"""`python -m knapcache`: the command line."""

from __future__ import annotations

from knapcache.cli.main import run

if __name__ == "__main__":
    run()
