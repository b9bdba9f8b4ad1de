"""From a request, in any of the forms in which programs have one, to the question that the cache is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.errors import Uncacheable
from knapcache.keys.canonical import Key, Keyer
from knapcache.model import Endpoint


class KeyedRequest(NamedTuple):
    """A request with its key."""

    endpoint: Endpoint | None
    """None: a plain function."""
    key: Key
    tenant: str
    model: str
    """The one asked for."""


class RequestKeyer:
    """Makes them. namespace: whose they are, where a request does not say."""

    def __init__(self, keyer: Keyer, namespace: str) -> None:
        self.keyer, self._namespace = keyer, namespace

    def tenant(self, namespace: str | None) -> str:
        """Whose request it is."""
        return self._namespace if namespace is None else namespace

    def of(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        namespace: str | None,
        context: Mapping[str, str] | None,
    ) -> KeyedRequest | Uncacheable:
        """The question, or why the request has no key."""
        if isinstance(request, KeyedRequest):
            return request
        tenant = self._namespace if namespace is None else namespace
        # Half a character is no UTF-8: such a text has no key.
        given = request.encode(errors="surrogatepass") if isinstance(request, str) else request
        try:
            at, body, keys = self.keyer.read(endpoint, given, tenant, context)
        except Uncacheable as reason:
            return reason
        model = body.get("model")
        key = keys[0] if len(keys) == 1 else self.keyer.combine(keys)
        return KeyedRequest(at, key, tenant, model if type(model) is str else "")
