"""From a request, in any of the forms in which programs have one, to the question that the cache is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knapcache.cache.values import Question
from knapcache.errors import Uncacheable
from knapcache.match import Keyer
from knapcache.model import Endpoint


class Questions:
    """Makes them. namespace: whose they are, where a request does not say."""

    def __init__(self, keyer: Keyer, namespace: str) -> None:
        self.keyer, self._namespace = keyer, namespace

    def tenant(self, namespace: str | None) -> str:
        """Whose request it is."""
        return self._namespace if namespace is None else namespace

    def of(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | Question,
        namespace: str | None,
        context: Mapping[str, str] | None,
    ) -> Question | Uncacheable:
        """The question, or why the request has no key."""
        if isinstance(request, Question):
            return request
        tenant = self._namespace if namespace is None else namespace
        # Half a character is no UTF-8: such a text has no key.
        given = request.encode(errors="surrogatepass") if isinstance(request, str) else request
        try:
            at, body, keys = self.keyer.read(endpoint, given, tenant, context)
        except Uncacheable as reason:
            return reason
        model = body.get("model")
        key = keys[0] if len(keys) == 1 else self.keyer.together(keys)
        return Question(at, key, tenant, model if type(model) is str else "")
