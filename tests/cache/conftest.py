from __future__ import annotations

from tests.store.conftest import ram_path

__all__ = ["ram_path"]
