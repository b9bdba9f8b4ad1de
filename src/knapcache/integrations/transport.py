"""The transport for httpx and httpx2, on which the SDKs of OpenAI and Anthropic are built.

    OpenAI(http_client=httpx.Client(transport=CacheTransport(cache)))
    Anthropic(http_client=httpx2.Client(transport=CacheTransport(cache)))

POST to an endpoint whose answers are kept goes through the cache, everything else through untouched. What is done is in
`exchange.py`, `batch.py` and `relay.py`; here, and in its async sister (`transport_async.py`), is only how to wait for
it: httpx has two kinds of transports, and they have to be two classes.

A plain miss is a call under the cache's single flight. A streamed miss runs in a thread (a task) of its own, so that
the asker hears it while it comes. An answer that has not what is asked for (a stream without usage, and usage is
wanted) is fetched anew, once.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

from knapcache.cache import Answer, Cache, Reply
from knapcache.errors import Incomplete, NotCached
from knapcache.exchange.embedding_batch import Batch, batch_of
from knapcache.exchange.exchange import Exchange, cacheable_endpoint, given, is_stream, not_cached, passing, plain_reply
from knapcache.exchange.fetcher import PATIENCE, REFUSALS, miss_said
from knapcache.exchange.stream_tee import Heard, Opened, StreamTee
from knapcache.integrations.httpx_common import (
    Transport,
    live,
    marked,
    passed,
    response_of,
    with_content,
)


class CacheTransport(Transport):
    """For `httpx.Client` and `httpx2.Client`."""

    def __init__(self, cache: Cache, inner: Any = None, **options: Any) -> None:
        super().__init__(cache, inner, **options)
        self._fetches: set[threading.Thread] = set()

    def handle_request(self, request: Any) -> Any:
        """A request's response, kept or fetched."""
        endpoint = cacheable_endpoint(request.method, request.url.path)
        if endpoint is None:
            return self._send(request)  # nothing of it is read: it may be a large file
        request.read()
        exchange = self._exchange(endpoint, request)
        batch = batch_of(self._cache, exchange)
        if exchange.bypass or (batch and batch.bypass):
            if batch is None:
                self._count_bypass(exchange)
            return marked(self._send(request))
        try:
            if batch:
                return self._batch(request, exchange, batch)
            return self._streamed(request, exchange) if exchange.stream else self._plain(request, exchange)
        except NotCached:
            return response_of(request, not_cached(), sync=True)

    def _plain(self, request: Any, exchange: Exchange) -> Any:
        headers: list[tuple[str, str]] | None = None

        def call() -> Reply:
            nonlocal headers
            response = self._send(with_content(request, exchange.sent(False)))
            try:
                content = response.read()
            finally:
                response.close()
            headers = list(response.headers.multi_items())
            return plain_reply(exchange, response.status_code, response.headers, content)

        for refresh in (exchange.control.refresh, True):
            answer = self._cache.fetch(exchange.endpoint, exchange.body, call, **exchange.wishes(refresh))
            try:
                return response_of(request, given(exchange, answer, headers), sync=True)
            except Incomplete:
                continue
        return marked(self._send(request))

    def _streamed(self, request: Any, exchange: Exchange) -> Any:
        for refresh in (exchange.control.refresh, True):
            heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
            relay = StreamTee(exchange, self._finish, heard.put)
            run = contextvars.copy_context().run
            fetch = threading.Thread(target=run, args=(self._fetch, request, exchange, relay, refresh), daemon=True)
            self._fetches = {thread for thread in self._fetches if thread.is_alive()} | {fetch}
            fetch.start()
            first = heard.get()
            if isinstance(first, Opened):
                headers = [*passing(first.headers), *miss_said()]
                return live(request, headers, self._heard(heard, relay), relay, sync=True)
            if isinstance(first, BaseException):
                raise first
            assert isinstance(first, Answer)
            try:
                return response_of(request, given(exchange, first, relay.answered), sync=True)
            except Incomplete:
                continue
        return marked(self._send(request))

    def _heard(self, heard: queue.SimpleQueue[Heard], relay: StreamTee) -> Iterator[bytes]:
        while isinstance(block := heard.get(), bytes):
            yield block
        yield from relay.held
        if isinstance(block, BaseException):
            raise block

    def _fetch(self, request: Any, exchange: Exchange, relay: StreamTee, refresh: bool) -> None:
        """In a thread of its own: whatever happens, the asker hears of it."""
        try:
            relay.put(
                self._cache.fetch(
                    exchange.endpoint,
                    exchange.body,
                    lambda: self._stream_call(request, exchange, relay),
                    **exchange.wishes(refresh),
                )
            )
        except BaseException as error:  # raised again, where it is heard
            relay.put(error)

    def _stream_call(self, request: Any, exchange: Exchange, relay: StreamTee) -> Reply:
        asking = self._asks_usage(request, exchange)
        response = self._send(with_content(request, exchange.sent(asking)))
        if asking and response.status_code in REFUSALS:
            response.close()
            asking = False
            response = self._send(with_content(request, exchange.sent(False)))
            self._refused(request, response)
        try:
            if not is_stream(response.status_code, response.headers):
                relay.answered = list(response.headers.multi_items())
                return plain_reply(exchange, response.status_code, response.headers, response.read())
            relay.opened(dict(response.headers), list(response.headers.multi_items()), asking or exchange.usage)
            for piece in response.iter_bytes():
                if relay.fed(piece):
                    break
            return relay.reply()
        finally:
            response.close()

    def _batch(self, request: Any, exchange: Exchange, batch: Batch) -> Any:
        if batch.complete:
            return response_of(request, batch.given(), sync=True)
        if exchange.control.only_cached:
            raise NotCached
        response = self._send(with_content(request, batch.sent()))
        try:
            content = response.read()
            if response.status_code == 200:
                batch.settle(response.headers, content)
                return response_of(request, batch.given(response.headers.multi_items()), sync=True)
        except Incomplete:
            if batch.hits:  # half an answer helps nobody: as if there were no cache
                return marked(self._send(with_content(request, exchange.sent(False))))
        finally:
            response.close()
        return response_of(request, passed(response, content), sync=True)

    def _send(self, request: Any) -> Any:
        return self._sender(request, "HTTPTransport").handle_request(request)

    def close(self) -> None:
        """Wait a little for streams that are still being read, then let connections go. The cache is the caller's."""
        end = time.monotonic() + PATIENCE
        for fetch in self._fetches:
            fetch.join(max(0.0, end - time.monotonic()))
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
