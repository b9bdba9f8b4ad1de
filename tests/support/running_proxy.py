"""A proxy served by uvicorn on loopback, in a thread of its own, on the event loop that `knapcache serve` uses."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

import httpx

from knapcache.proxy.proxy import Proxy
from knapcache.proxy.run import listen, server
from knapcache.proxy.settings import Settings
from tests.support.timing import wait_until


class RunningProxy:
    """A proxy with these settings, in front of an upstream. loop: "auto", which is uvloop, or "asyncio".

    The policy is `lru` unless the settings name another one: its kernels take no time to compile.
    """

    def __init__(self, folder: Path, upstream: str, loop: Any = "auto", **settings: Any) -> None:
        defaults = {"path": folder, "port": 0, "upstreams": [{"name": "fake", "url": upstream}]}
        defaults |= {"policy": "lru", "shadows": ("lru",), "capacity": "20MB", "grace": 2.0}
        self.proxy = Proxy(Settings(**(defaults | settings)))
        self._socket = listen("127.0.0.1", 0)
        self._server = server(self.proxy)
        self._server.config.loop = loop
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        """The proxy's address."""
        scheme = "http" if self.proxy.settings.tls_cert is None else "https"
        return f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's SDK."""
        return f"{self.url}/v1"

    def admin(self, path: str) -> Any:
        """Return what a GET route of the admin API answers."""
        return self._get(f"/admin/v1{path}").json()

    def metrics(self) -> str:
        """Return all metrics."""
        return self._get("/metrics").text

    def _get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.proxy.admin_token}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=60).raise_for_status()

    def _serve(self) -> None:
        self._server.run([self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(self._has_started, "the start of the proxy")
        return self

    def _has_started(self) -> bool:
        assert self._thread.is_alive(), "the proxy did not start"
        return self._server.started

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop as on SIGTERM."""
        self._server.should_exit = True
        wait_until(lambda: not self._thread.is_alive(), "the end of the proxy")
        self._socket.close()
