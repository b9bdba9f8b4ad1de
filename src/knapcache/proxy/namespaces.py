"""Namespaces of the proxy's callers. `auth.py` in `http` says what a principal is.

namespace = HMAC-SHA256(server secret, principal), 32 hex digits
"""

from __future__ import annotations

import hashlib
import hmac
import json


def principal_namespace(secret: bytes, *principal: str) -> str:
    """Return the namespace of a principal such as ("tenant", its name)."""
    text = json.dumps(principal).encode()  # ASCII, whatever the headers contain
    return hmac.new(secret, b"namespace\0" + text, hashlib.sha256).hexdigest()[:32]
