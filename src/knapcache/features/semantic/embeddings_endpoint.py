"""Embeddings by an OpenAI-compatible API: POST URL/embeddings.

`Embedder` blocks, because the tier calls it in a thread. The proxy's HTTP client is asynchronous, and it is used here
all the same, on an event loop that runs only during a call: it keeps connections open, follows the environment's proxy
settings and bounds what it reads, which `http.client` does not.

After a failure, calls fail at once for some seconds: a request that is not served by similarity should not wait long.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from knapcache.errors import InvalidInput, UpstreamFailed
from knapcache.proxy.upstream.client import Client, encode_headers, parse_base_url
from knapcache.proxy.upstream.proxies import environment_proxy

TIMEOUT = 5.0
"""Seconds for one call."""
PAUSE, MAX_PAUSE = 2.0, 60.0
"""Seconds for which calls fail at once after a failure; doubled with each further one."""
MAX_BATCH = 64
"""Texts of one call. Every known API accepts as many."""
MAX_CHARACTERS = 8000
"""Of a text, so that it has fewer than the 8,192 tokens that APIs accept."""
MAX_DIMENSIONS = 16_384
MAX_REPLY = 32 << 20
COMPONENT_BYTES, REPLY_BYTES = 32, 64 << 10
"""Bytes of a component as JSON, and of all the rest of a reply, at most. A longer reply is not parsed: that would hold
the interpreter's lock, and stop the event loop, for up to a second."""
REFUSED_TEXT = (400, 413, 422)
"""Statuses with which an API that works refuses a text. They cause no pause, or one caller could stop the tier."""
_WORD = re.compile(r"\w+|[^\w\s]")
_CHARACTERS_PER_TOKEN = 8
"""A longer word counts as several tokens."""


class EndpointEmbedder:
    """An embedding model of an API.

    url     base URL, to which /embeddings is appended
    model   name of the model
    key     sent as a bearer token; empty: none
    """

    def __init__(self, url: str, model: str, key: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.build = f"{model} of {url.rstrip('/')}"
        self._url, self._model = url.rstrip("/"), model
        headers = [("content-type", "application/json"), ("accept", "application/json")]
        self._headers = encode_headers([*headers, *([("authorization", f"Bearer {key}")] if key else [])])
        self._client = Client(
            "semantic_embeddings",
            connect_timeout=TIMEOUT,
            idle_timeout=TIMEOUT,
            total_timeout=TIMEOUT,
            proxy=environment_proxy(parse_base_url(self._url).origin),
            max_body=MAX_REPLY,
        )
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._clock = clock
        self._dimensions = 0
        self._failures = 0
        self._resume_at = 0.0
        self._reason = ""

    @property
    def dimensions(self) -> int:
        """Components of a vector, learned from the API's first reply. The first call may raise UpstreamFailed."""
        if not self._dimensions:
            self.embed(["dimensions"])
        return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, as rows.

        Raises UpstreamFailed; InvalidInput for a text that the API refuses.
        """
        with self._lock:
            if self._clock() < self._resume_at:
                raise UpstreamFailed(502, f"{self._reason} (not tried again yet)")
            try:
                batches = [texts[k : k + MAX_BATCH] for k in range(0, len(texts), MAX_BATCH)]
                vectors = [self._loop.run_until_complete(self._embed(batch)) for batch in batches]
            except UpstreamFailed as error:
                pause = min(PAUSE * 2**self._failures, MAX_PAUSE)
                self._failures = min(self._failures + 1, 10)
                self._resume_at, self._reason = self._clock() + pause, str(error)
                raise
            self._failures = 0
        return np.concatenate(vectors) if vectors else np.empty((0, self._dimensions), np.float32)

    def tokens(self, text: str) -> int:
        """Return about how many tokens a text has: words and marks, and more for long words."""
        return sum(1 + (len(word) - 1) // _CHARACTERS_PER_TOKEN for word in _WORD.findall(text[:MAX_CHARACTERS]))

    def close(self) -> None:
        with self._lock:
            if not self._loop.is_closed():
                self._client.close()
                self._loop.run_until_complete(asyncio.sleep(0))  # lets transports close
                self._loop.close()

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        # APIs refuse an empty text. A lone surrogate, which JSON may contain, has no encoding.
        inputs = [text[:MAX_CHARACTERS].encode("utf-8", "replace").decode() or " " for text in texts]
        content = orjson.dumps({"model": self._model, "input": inputs})
        try:
            status, reply = await self._post(content)
        except UpstreamFailed as error:
            if not error.safe_to_retry:
                raise
            status, reply = await self._post(content)  # the API had closed an idle connection
        if status in REFUSED_TEXT and self._dimensions:
            raise InvalidInput(f"semantic_embeddings refused a text with status {status}")
        if status != 200:
            # The message may quote the texts. Before the first vectors, they are of no request.
            message = "" if self._dimensions else _message(reply)
            raise UpstreamFailed(502, f"semantic_embeddings answered with status {status}{message}")
        return self._vectors(reply, len(texts))

    async def _post(self, content: bytes) -> tuple[int, bytes]:
        response = await self._client.request("POST", self._url, "/embeddings", self._headers, content)
        return response.status, await response.read()

    def _vectors(self, reply: bytes, count: int) -> NDArray[np.float32]:
        if len(reply) > count * (self._dimensions or MAX_DIMENSIONS) * COMPONENT_BYTES + REPLY_BYTES:
            raise UpstreamFailed(502, f"semantic_embeddings answered with {len(reply)} bytes, which is too long")
        try:
            items = orjson.loads(reply)["data"]
            rows: list[Any] = [None] * count
            for item in items:
                rows[item["index"]] = item["embedding"]
            vectors = np.array(rows, np.float32)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise UpstreamFailed(502, f"semantic_embeddings answered without embeddings of {count} texts") from None
        if vectors.ndim != 2 or not 0 < vectors.shape[1] <= MAX_DIMENSIONS:
            raise UpstreamFailed(502, f"semantic_embeddings answered with vectors of the shape {vectors.shape}")
        if self._dimensions not in (0, vectors.shape[1]):
            raise UpstreamFailed(
                502,
                f"semantic_embeddings answered with {vectors.shape[1]} components; before it was {self._dimensions}",
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not lengths.all():
            raise UpstreamFailed(502, "semantic_embeddings answered with a vector without a direction")
        self._dimensions = vectors.shape[1]
        return np.asarray(vectors / lengths, np.float32)


def _message(reply: bytes) -> str:
    """Return the message of an error in OpenAI's form, shortened; empty if there is none."""
    try:
        message = orjson.loads(reply)["error"]["message"]
    except (KeyError, TypeError, ValueError):
        return ""
    return f": {message[:200]}" if isinstance(message, str) else ""
