"""Map paths of providers to the proxy's, for clients whose base URL has another host and the provider's path.

    /v1beta/openai/…      Gemini                 as /v1/…
    /openai/v1/…          Groq, Azure            as /v1/…
    /api/v1/…             OpenRouter             as /v1/…
    /openai/deployments/… Azure, with a version  as /v1/deployments/…

The last one has its model in the path. Its upstream's URL ends with /openai, and the name of the deployment is part of
the key.
"""

from __future__ import annotations

import re

from knapcache.model import Endpoint
from knapcache.proxy.http.asgi_request import Scope
from knapcache.wire import FORMATS

ROOTS = {
    "/v1beta/openai": "/v1",
    "/openai/v1": "/v1",
    "/api/v1": "/v1",
    "/openai/deployments": "/v1/deployments",
}
DEPLOYMENT = re.compile(
    rf"/v1/deployments/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,63}})/(?P<endpoint>{'|'.join(at.value for at in FORMATS)})"
)


def with_own_root(scope: Scope) -> Scope:
    """Return the scope with the proxy's own path, or as it is if its path begins with none of ROOTS."""
    path, raw = scope["path"], scope.get("raw_path")
    for root, own in ROOTS.items():
        if path.startswith(f"{root}/"):
            if raw is None:
                return {**scope, "path": own + path[len(root) :]}
            encoded = root.encode()
            if raw.startswith(encoded):  # not where a part of it is percent-encoded
                return {**scope, "path": own + path[len(root) :], "raw_path": own.encode() + raw[len(encoded) :]}
    return scope


def azure_deployment(path: str) -> tuple[Endpoint, str] | None:
    """Return the endpoint and the name in a path of an Azure deployment whose answers are cached, or None."""
    found = DEPLOYMENT.fullmatch(path)
    return (Endpoint(found["endpoint"]), found["name"]) if found else None
