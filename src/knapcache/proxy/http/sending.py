"""Send one request to the upstreams of its group.

    choose a member ─▶ edit and send ─▶ answered: its response is returned
         ▲                  │
         └── the next one ──┘ failed: no complete head, status 429, or 500 and more;
                                   while there is a next one, also: the body breaks off, or is an HTML page

A request goes to another member only before the first byte of its answer was passed on. So while there is a next
member, a plain answer is awaited as a whole (up to HIGH_WATER bytes), and the first bytes of a stream. While another
member is available, a member is not sent the request again (`retries`): the other one answers sooner.

Each member gets its own headers, path and model, and a body that features edit for it (hooks.py). As long as a member
has not accepted an edited body, it gets the body as it came if it is a fallback.

When all members fail, the caller gets the response or the error of the last one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange, FallbackAnswer, is_event_stream
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.keys.edited_text import with_field
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.proxy.events.events import UpstreamTry
from knapcache.proxy.hooks import BodyEditor, CallHooks
from knapcache.proxy.upstream import Pairs, Response, encode_headers
from knapcache.proxy.upstream.upstream import Upstream, retry_after
from knapcache.proxy.upstream.upstreams import GroupMember, UpstreamGroup

if TYPE_CHECKING:
    from knapcache.proxy.http.access import RequestHead
    from knapcache.threads import DeadlinePool

T = TypeVar("T")
Calls = tuple[str, tuple[int, ...], str, tuple[UpstreamTry, ...], float]
"""Calls of a request as fields of its event: upstream, attempts, error, tried and open_until."""
TOO_MANY_REQUESTS = 429
HTML = "text/html"
ASKS_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
"""A stream's usage is asked for. In a text the quotes would be escaped."""


class UpstreamSender:
    """Sends one request. It is the `marker` of its exchange, too, where a body is edited or there are several."""

    __slots__ = (
        "_attempts", "_barred", "_deployment", "_error", "_exchange", "_generation", "_group", "_head", "_hooks",
        "_last", "_member", "_model", "_query", "_tried", "_workers", "editor",
    )  # fmt: skip

    def __init__(
        self,
        group: UpstreamGroup,
        head: RequestHead,
        exchange: Exchange,
        model: str,
        query: bytes,
        hooks: Sequence[CallHooks] = (),
        workers: DeadlinePool | None = None,
        deployment: str = "",
    ) -> None:
        """workers: threads for long bodies; None: nothing is edited. deployment: of Azure, in the path."""
        self._group, self._head, self._exchange, self._model = group, head, exchange, model
        self._query, self._hooks, self._workers, self._deployment = query, hooks, workers, deployment
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
        self.editor: BodyEditor | None = None
        """What changes the body for the member that was chosen, or has answered; None: it is sent as it came."""
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
        """Choose a member, and return the body as features edit it for that member; None: as it came."""
        editor = self._editor_for(self._choose())
        return None if editor is None else await editor.mark()

    def answered(self, status: int, *, marked: bool) -> None:
        """Take note of the status with which the member has answered a body with or without changes."""
        if self.editor is not None:
            self.editor.answered(status, marked=marked)

    @property
    def refusable(self) -> bool:
        """Whether the member has not yet accepted a changed body for this model."""
        return self.editor is not None and self.editor.refusable

    @property
    def fallback(self) -> FallbackAnswer | None:
        """The model that answered instead of the first member's model; None: it was the same one."""
        if self._member is None:
            return None
        model = self._group.replaced_model(self._member, self._model)
        return FallbackAnswer(model, self._group.fallback_cache) if model else None

    # Sending.

    async def send(self, content: bytes) -> UpstreamResponse:
        """Send the request with this body, and return the response. Raises UpstreamFailed."""
        first = self.editor
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
        self.editor, self._error = None, ""
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
                text = "an HTML page instead of an answer"
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
        path = f"/v1/deployments/{self._deployment}/" if self._deployment else "/v1/"
        path += self._exchange.endpoint.value
        return upstream.path(f"{path}?{self._query.decode('latin-1')}" if self._query else path)

    def _editor_for(self, member: GroupMember) -> BodyEditor | None:
        """Return what changes the body for a member: the editor of the first feature that has one."""
        model = member.model or self._model
        # First the feature that has chosen the model: its checks of the answer may need what its editor asks for.
        hooks = sorted(self._hooks, key=lambda each: not each.substitutes)
        found = (each.editor(member.upstream, model) for each in hooks if each.edits)
        self.editor = next((editor for editor in found if editor is not None), None)
        return self.editor

    async def _fallback_body(self, content: bytes, member: GroupMember, first: BodyEditor | None) -> bytes:
        """Return the body for a fallback. first: the editor of the first member, whose changes are in the content."""
        exchange, marked = self._exchange, None
        if first is not None:  # so there are no items: the content is the whole request
            editor = self._editor_for(member)
            if editor is not None and not editor.refusable:
                marked = await editor.mark()
            else:
                self.editor = None
            ask = exchange.lacks_usage and ASKS_USAGE.search(content) is not None
            content = await self._run(exchange.raw, partial(exchange.upstream_body, ask, marked))
        if member.model is not None:
            content = await self._run(content, partial(with_model, content, member.model))
        return content

    async def _run(self, content: bytes, work: partial[T]) -> T:
        """Return the result of work on a body. Long ones are worked on in a thread."""
        if self._workers is None or len(content) <= SHORT:
            return work()
        return await self._workers.call(work)

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

    def add_tried(self, calls: Calls | None) -> None:
        """Take over the calls of another sender, which has failed the request."""
        if calls is not None:
            upstream, attempts, error, tried, open_until = calls
            self._tried += [*tried, UpstreamTry(upstream, attempts, error, open_until)]

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


def with_model(content: bytes, model: str) -> bytes:
    """Return a body with another model. One that is not JSON stays as it is, for the upstream to refuse."""
    try:
        return with_field(content, "model", model)
    except ValueError:
        return content
