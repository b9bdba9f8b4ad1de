from __future__ import annotations

from tests.store.conftest import path

__all__ = ["path"]
