"""The check of `Host` and `Origin`, for `/v1` and the admin API alike.

Browsers send both headers, and a page cannot change them. The check stops two attacks:

    DNS rebinding   a page makes its own host name resolve to this address. Its Host is not in `allowed_hosts`.
    other origins   a page of another site sends requests here. Its Origin is not in `allowed_hosts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from knapcache.serve.http.asgi_request import RequestRejected

AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{0,5})?")


class HostCheck:
    """Accepts the hosts in `allowed_hosts`; "*" accepts all."""

    def __init__(self, allowed_hosts: Iterable[str]) -> None:
        hosts = frozenset(host.lower() for host in allowed_hosts)
        self._hosts = None if "*" in hosts else hosts

    def check(self, host: str, origin: str | None) -> None:
        """Raise RequestRejected for an unknown host (421) or origin (403).

        host: the Host header; empty if it is missing or given more than once.
        """
        if self._hosts is None:
            return
        if origin is not None and host_name(origin_authority(origin)) not in self._hosts:
            raise RequestRejected(403, "Pages of other sites may not use this proxy.", "origin_not_allowed")
        if host_name(host.lower()) not in self._hosts:
            raise RequestRejected(421, "The Host header is not in allowed_hosts.", "host_not_allowed")


def host_name(authority: str) -> str:
    """Return the host of `host:port`, or an empty string if it is malformed. A trailing dot is removed."""
    found = AUTHORITY.fullmatch(authority)
    return found[1].removesuffix(".") if found else ""


def origin_authority(origin: str) -> str:
    """Return `host:port` of an Origin header, or an empty string if it is malformed or has another scheme."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") and not parts.path else ""
