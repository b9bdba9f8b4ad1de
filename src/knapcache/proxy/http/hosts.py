"""Check the headers `Host` and `Origin` of requests to `/v1` and to the admin API.

Browsers send both headers, and a page cannot change them. The check stops two attacks:

    DNS rebinding   a page makes its own host name resolve to this address. Its Host is not in `allowed_hosts`.
    other origins   a page of another site sends requests here. Its Origin differs from the Host header in host or port,
                    and is not in `allowed_origins`.

Schemes are not compared, because TLS may end in front of the proxy: `https://name` is the origin of the host `name`. A
port that is the default of the Origin's scheme may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from knapcache.proxy.http.asgi_request import RequestRejected

AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{0,5})?")

DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""By scheme, as a suffix of the host."""


class HostCheck:
    """Accepts the hosts in `allowed_hosts`, the origin of the same host and port, and those in `allowed_origins`.

    "*" accepts all.
    """

    def __init__(self, allowed_hosts: Iterable[str], allowed_origins: Iterable[str] = ()) -> None:
        hosts = frozenset(host.lower() for host in allowed_hosts)
        self._hosts = None if "*" in hosts else hosts
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)

    def check(self, host: str, origin: str | None, site: str | None = None) -> None:
        """Raise RequestRejected for an unknown host (421) or origin (403).

        host: the Host header; empty if it is missing or given more than once. site: the header Sec-Fetch-Site. Browsers
        send no Origin with images, scripts, links and simple GET requests of other pages, but they send this header.
        """
        host = host.lower()
        foreign = (
            site in ("cross-site", "same-site") if origin is None else not self._accepts_origin(host, origin.lower())
        )
        if foreign:
            raise RequestRejected(403, "Pages of other sites may not use this proxy.", "origin_not_allowed")
        if self._hosts is not None and host_name(host) not in self._hosts:
            raise RequestRejected(421, "The Host header is not in allowed_hosts.", "host_not_allowed")

    def _accepts_origin(self, host: str, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        port = DEFAULT_PORTS.get(origin.partition(":")[0], "")
        authority = origin_authority(origin)
        return authority != "" and authority.removesuffix(port) == host.removesuffix(port)


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
