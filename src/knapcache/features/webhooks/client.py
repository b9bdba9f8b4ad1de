"""Sends the requests of webhooks with the proxy's HTTP client, which follows no redirects."""

from __future__ import annotations

from knapcache.features.webhooks.delivery import MAX_RESPONSE, TIMEOUT
from knapcache.proxy.upstream.client import Client, encode_headers


class WebhookClient:
    """The HTTP client of webhooks."""

    def __init__(self) -> None:
        self._client = Client("the webhook", TIMEOUT, TIMEOUT, TIMEOUT, max_body=MAX_RESPONSE)

    async def post(self, base: str, path: str, headers: dict[str, str], body: bytes) -> int:
        """Send a body, and return the status. Raises UpstreamFailed."""
        response = await self._client.request("POST", base, path, encode_headers(headers.items()), body)
        try:
            return response.status
        finally:
            await response.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
