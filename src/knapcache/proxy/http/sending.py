"""The way of one request to the upstreams of its group.

    choose a member ─▶ mark and send ─▶ answered: its response is returned
         ▲                  │
         └── the next one ──┘ failed: no complete head, status 429, or 500 and more;
                                   while there is a next one, also: the body breaks off, or is an HTML page

A request goes to another member only before the first byte of its answer was passed on. So while there is a next
member, a plain answer is awaited as a whole (up to HIGH_WATER bytes), and the first bytes of a stream. While another
member is available, a member is not sent the request again (`retries`): the other one answers sooner.

Each member gets its own headers, path and model. Marks for the prefix cache are those of its own prefix tier: a prefix
is live at one provider only. As long as its provider has not accepted marks, a fallback gets none.

When all members fail, the caller gets the response or the error of the last one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange, FallbackAnswer, is_event_stream
from knapcache.features.prefix.tier import PrefixMarker, PrefixMode, reported_event
from knapcache.keys.edited_text import with_field
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.proxy.events.events import PrefixEvent, UpstreamTry
from knapcache.proxy.upstream import Pairs, Response, encode_headers
from knapcache.proxy.upstream.group import GroupMember, UpstreamGroup
from knapcache.proxy.upstream.upstream import Upstream, retry_after

if TYPE_CHECKING:
    from knapcache.price.input_tokens import InputTokens
    from knapcache.proxy.http.access import RequestHead
    from knapcache.threads import DeadlinePool

Calls = tuple[str, tuple[int, ...], str, tuple[UpstreamTry, ...], float]
"""Calls of a request as fields of its event: upstream, attempts, error, tried and open_until."""
TOO_MANY_REQUESTS = 429
HTML = "text/html"
ASKS_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
"""A stream's usage is asked for. In a text the quotes would be escaped."""
BODY_DIGESTS = ("content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256")
"""Request headers that hold for the bytes of the body."""


class UpstreamSender:
    """Sends one request. It is the `marker` of its exchange, too, where a member has a prefix tier or another model."""

    __slots__ = (
        "_attempts", "_barred", "_error", "_exchange", "_generation", "_group", "_head", "_last", "_marker", "_member",
        "_model", "_prefix", "_query", "_tried", "_workers",
    )  # fmt: skip

    def __init__(
        self,
        group: UpstreamGroup,
        head: RequestHead,
        exchange: Exchange,
        model: str,
        query: bytes,
        workers: DeadlinePool | None = None,
        prefix: PrefixMode | None = None,
    ) -> None:
        """prefix: mode of the prefix tiers; None: their own."""
        self._group, self._head, self._exchange, self._model = group, head, exchange, model
        self._query, self._workers, self._prefix = query, workers, prefix
        self._last = group.members[0]
        """The member that was called last."""
        self._member: GroupMember | None = None
        """The member that was chosen, or has answered; None: none yet, or it has failed."""
        self._barred: list[GroupMember] = []
        """Members that must not get this request."""
        if exchange.endpoint is Endpoint.EMBEDDINGS and not group.fallback_cache:
            # Vectors of two models cannot be compared, so they must not get into one index.
            self._barred = [member for member in group.members if group.replaced_model(member, model)]
        self._generation = 0
        self._marker: PrefixMarker | None = None
        self._attempts: list[int] = []
        """Statuses of its calls that are in no event yet."""
        self._error = ""
        """Why the last of them failed."""
        self._tried: list[UpstreamTry] = []
        """Members that have failed before, and are in no event yet."""

    @property
    def upstream(self) -> str:
        """Name of the upstream that was called last."""
        return self._last.upstream.name

    # The marker of the exchange.

    async def mark(self) -> Mapping[str, Any] | None:
        """Choose a member, and return the body with marks for its prefix cache; None: as it came."""
        marker = self._marker_for(self._choose())
        return None if marker is None else await marker.mark()

    def answered(self, status: int, *, marked: bool) -> None:
        """Take note of the status with which the member has answered a body with or without marks."""
        if self._marker is not None:
            self._marker.answered(status, marked=marked)

    @property
    def refusable(self) -> bool:
        """Whether the member has not yet accepted a marked body for this model."""
        return self._marker is not None and self._marker.refusable

    @property
    def fallback(self) -> FallbackAnswer | None:
        """The model that has answered in place of the first member's; None: it was the same one."""
        if self._member is None:
            return None
        model = self._group.replaced_model(self._member, self._model)
        return FallbackAnswer(model, self._group.fallback_cache) if model else None

    # Sending.

    async def send(self, content: bytes) -> Response:
        """Send the request with this body, and return the response. Raises UpstreamFailed."""
        first = self._marker
        member = self._member or self._choose()
        body = content if member.model is None else await self._run(content, partial(with_model, content, member.model))
        tried = [*self._barred, member]
        while True:
            last = len(tried) == len(self._group.members)
            try:
                response = await self._send_to(member, body, tried, last=last)
            except UpstreamFailed as error:
                self._error = error.reason
                if last:
                    self._member = None
                    raise
            else:
                if response is not None:
                    return response
            member = self._choose(tried)
            tried.append(member)
            body = await self._fallback_body(content, member, first)

    def _choose(self, tried: Sequence[GroupMember] = ()) -> GroupMember:
        """Take a member for the next call."""
        member = self._group.choose(tried or self._barred)
        assert member is not None, "the caller has checked that one is left"
        if self._attempts and member is not self._last:
            upstream = self._last.upstream
            open_until = upstream.health.open_until_unix()
            self._tried.append(UpstreamTry(upstream.name, tuple(self._attempts), self._error, open_until))
            self._attempts.clear()
        self._member = self._last = member
        self._marker, self._error = None, ""
        health = member.upstream.health
        self._generation = health.begin(time.monotonic()) if health.open_until else health.generation
        return member

    async def _send_to(
        self, member: GroupMember, body: bytes, tried: Sequence[GroupMember], *, last: bool
    ) -> Response | None:
        """Return the response of a member; None if it is an error that another member may not have.

        last   there is no other member
        """
        upstream, health = member.upstream, member.upstream.health
        retries = None if last or not self._group.has_available(tried) else 0
        try:
            response = await upstream.send_with_retries(
                self._path(upstream), self._headers(upstream), body, self._attempts, retries
            )
            status = response.status
            if status == 200 and not last:
                await self._await_body(response)
        except UpstreamFailed:
            health.fail(self._generation, time.monotonic())
            raise
        except BaseException:  # the caller left
            health.release(self._generation, time.monotonic())
            raise
        if status < 400:
            health.succeed(self._generation)
            return response
        failed = status >= 500
        if failed or (status == TOO_MANY_REQUESTS and upstream.own_credential):
            health.fail(self._generation, time.monotonic(), None if failed else retry_after(response.headers))
        else:  # the caller's error, or the limit of the caller's key
            health.release(self._generation, time.monotonic())
        if last or not (failed or status == TOO_MANY_REQUESTS):
            return response
        await response.close()
        return None

    async def _await_body(self, response: Response) -> None:
        """Wait for what must have come before an answer is passed on. Raises UpstreamFailed."""
        try:
            if response.headers.get("content-type", "").lower().startswith(HTML):
                text = "an HTML page in place of an answer"
                raise UpstreamFailed(502, f"upstream {self.upstream} failed: {text}", reason=text)
            stream = self._exchange.stream and is_event_stream(response.status, response.headers)
            await response.wait_for_body(whole=not stream)
        except BaseException:
            await response.close()
            raise

    def _headers(self, upstream: Upstream) -> bytes:
        head = self._head
        headers = head.upstream_headers.get(upstream.name)
        if headers is None:
            headers = head.upstream_headers[upstream.name] = encode_headers(
                upstream.request_headers(head.headers, head.principal.credential is not None)
            )
        return headers

    def _path(self, upstream: Upstream) -> str:
        # Not the path as sent: the key has the endpoint only, so another spelling must not reach another route.
        path = f"/v1/{self._exchange.endpoint.value}"
        return upstream.path(f"{path}?{self._query.decode('latin-1')}" if self._query else path)

    def _marker_for(self, member: GroupMember) -> PrefixMarker | None:
        upstream, exchange = member.upstream, self._exchange
        tier = upstream.prefix
        if tier is not None and self._prefix is not None:
            tier = tier.in_mode(self._prefix)
        if tier is None or tier.mode == "off":
            return None
        if is_signed(self._head.headers, self._query):  # a changed body would break the signature
            tier = tier.in_mode("observe")
        assert self._workers is not None
        self._marker = PrefixMarker(
            tier,
            exchange.endpoint,
            exchange.body,
            len(exchange.raw),
            model=member.model or self._model,
            account=upstream.account(self._head.principal.credential),
            pool=self._workers,
        )
        return self._marker

    async def _fallback_body(self, content: bytes, member: GroupMember, first: PrefixMarker | None) -> bytes:
        """Return the body for a fallback. first: the marker of the first member, whose marks are in the content."""
        exchange, marked = self._exchange, None
        if first is not None:  # so there are no items: the content is the whole request
            marker = self._marker_for(member)
            if marker is not None and not marker.refusable:
                marked = await marker.mark()
            else:
                self._marker = None
            ask = exchange.lacks_usage and ASKS_USAGE.search(content) is not None
            content = await self._run(exchange.raw, partial(exchange.upstream_body, ask, marked))
        if member.model is not None:
            content = await self._run(content, partial(with_model, content, member.model))
        return content

    async def _run(self, content: bytes, work: partial[bytes]) -> bytes:
        """Return the result of work on a body. Long ones are worked on in a thread."""
        if self._workers is None or len(content) <= SHORT:
            return work()
        made: bytes = await self._workers.call(work)
        return made

    # Headers and event.

    def broken(self, reason: str) -> None:
        """Take note that the answer broke off after its first bytes were passed on."""
        if self._member is not None and reason:
            self._member.upstream.health.fail(self._generation, time.monotonic())
        self._member, self._error = None, reason

    def headers(self) -> Pairs:
        """Return the response headers that name the upstream that has answered; none if none has."""
        member = self._member
        if member is None:
            return []
        found = [member.upstream.header]
        if member.model is not None and member.model != self._model:
            found.append(("x-knapcache-model", member.model))
        return found

    def prefix_event(self, counted: InputTokens | None) -> PrefixEvent | None:
        """Report the input tokens of a paid answer to the prefix tier, and return what is recorded of them."""
        return reported_event("off", counted) if self._marker is None else self._marker.report(counted)

    def take_calls(self) -> Calls | None:
        """Return the calls that are in no event yet.

        None: there are none. Of several embeddings, the first that was fetched has them.
        """
        if not self._attempts and not self._error and not self._tried:
            return None
        upstream = self._last.upstream
        open_until = upstream.health.open_until_unix()
        found = upstream.name, tuple(self._attempts), self._error, tuple(self._tried), open_until
        self._attempts.clear()
        self._tried.clear()
        self._error = ""
        return found


def is_signed(headers: Mapping[str, str], query: bytes) -> bool:
    """Return whether the request has a signature or a digest of its body. headers: by lower-case name."""
    return (
        headers.get("authorization", "").lstrip().upper().startswith("AWS4-")
        or b"x-amz-signature=" in query.lower()
        or any(name in headers for name in BODY_DIGESTS)
    )


def with_model(content: bytes, model: str) -> bytes:
    """Return a body with another model. One that is not JSON stays as it is, for the upstream to refuse."""
    try:
        return with_field(content, "model", model)
    except ValueError:
        return content
