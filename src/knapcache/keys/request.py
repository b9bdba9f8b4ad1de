"""From a request, in any form in which programs have one, to a request with its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.errors import Uncacheable
from knapcache.keys.canonical import Key, Keyer, checked_endpoint
from knapcache.model import Endpoint


class KeyedRequest(NamedTuple):
    """A request with its key."""

    endpoint: Endpoint | None
    """None: the call of a plain function."""
    key: Key
    tenant: str
    model: str
    """The requested model."""


class UnkeyedRequest(NamedTuple):
    """A request that has no key. It can be sent, but its answer is not stored."""

    endpoint: Endpoint
    tenant: str
    reason: str


class RequestKeyer:
    """Computes the keys of requests. `namespace` is the default for requests that name none."""

    def __init__(self, keyer: Keyer, namespace: str) -> None:
        self.keyer, self._namespace = keyer, namespace

    def tenant(self, namespace: str | None) -> str:
        """Return the namespace of a request."""
        return self._namespace if namespace is None else namespace

    def key(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        namespace: str | None,
        context: Mapping[str, str] | None,
    ) -> KeyedRequest | UnkeyedRequest:
        """Return the request with its key, or with the reason why it has none."""
        if isinstance(request, KeyedRequest):
            return request
        tenant = self._namespace if namespace is None else namespace
        # A lone surrogate is not valid UTF-8, so the parser rejects it.
        body = request.encode(errors="surrogatepass") if isinstance(request, str) else request
        try:
            endpoint, parsed, keys = self.keyer.read(endpoint, body, tenant, context)
        except Uncacheable as reason:
            return UnkeyedRequest(checked_endpoint(endpoint), tenant, str(reason))
        model = parsed.get("model")
        key = keys[0] if len(keys) == 1 else self.keyer.combine(keys)
        return KeyedRequest(endpoint, key, tenant, model if type(model) is str else "")
