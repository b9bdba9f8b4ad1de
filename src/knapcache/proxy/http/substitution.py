"""Send one request to a model that answers instead of the requested one (`Substitute`).

The substitute gets the request once. If it fails, or its answer is not accepted, `SubstituteFailed` is raised before
anything of an answer was passed on. The request is then fetched as one without a substitute: under the key of the asked
model, whose answer is stored there. Requests that have waited for the substitute do the same.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from knapcache.errors import Incomplete, KnapcacheError, Uncacheable, UpstreamFailed
from knapcache.exchange.exchange import Exchange, is_event_stream
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.proxy.http.sending import UpstreamSender
from knapcache.proxy.upstream.upstreams import GroupMember
from knapcache.wire import StreamCollector
from knapcache.wire.base import CompleteAnswer

Accepts = Callable[[CompleteAnswer | None], bool]
"""Returns whether the caller may get an answer; None: it is not complete."""


class SubstituteFailed(KnapcacheError):  # noqa: N818
    """The substitute has failed, or its answer was not accepted: the asked model has to answer."""


class SubstituteSender(UpstreamSender):
    """Sends one request to the first member of its group, which is followed by those of the asked model."""

    __slots__ = ("accepts",)

    accepts: Accepts | None
    """What has to accept the whole answer; None: a stream is passed on as it comes."""

    async def send(self, content: bytes) -> UpstreamResponse:
        """Return the response of the substitute. Raises SubstituteFailed if it fails as an upstream may.

        Other errors are returned: without an option that it does not know, the substitute may get the request again.
        """
        response = await super().send(content)
        if response.status != 200 or self.accepts is None:
            return response
        try:
            body = await response.read()
        except UpstreamFailed as error:
            self.broken(error.reason)
            raise SubstituteFailed from error
        finally:
            await response.close()
        stream = self._exchange.stream and is_event_stream(response.status, response.headers)
        answer = await self._run(body, partial(whole_answer, self._exchange, body, stream=stream))
        if not self.accepts(answer):
            raise SubstituteFailed
        return ReadResponse(response, body)

    def _choose(self, tried: Sequence[GroupMember] = ()) -> GroupMember:
        """Take the substitute. Raises SubstituteFailed if it was tried, or gets no requests for now."""
        if tried or not self._group.members[0].upstream.health.available(time.monotonic()):
            raise SubstituteFailed
        return super()._choose()


class ReadResponse:
    """A response whose body was read before."""

    def __init__(self, response: UpstreamResponse, body: bytes) -> None:
        self.status, self.headers, self.pairs, self._body = response.status, response.headers, response.pairs, body

    async def read(self) -> bytes:
        """Return the whole body."""
        return self._body

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self._body

    async def close(self) -> None:
        """Do nothing: the connection was released."""


def whole_answer(exchange: Exchange, body: bytes, *, stream: bool) -> CompleteAnswer | None:
    """Return the answer in the body of a response; None if it is not complete."""
    try:
        if not stream:
            return exchange.format.parse(body, exchange.body)
        collector = StreamCollector(exchange.format, None)
        collector.feed(body)
        collector.close()
        return collector.complete()
    except (Incomplete, Uncacheable):
        return None
