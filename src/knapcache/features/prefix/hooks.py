"""What the prefix tier does for one request: an editor of its body for each upstream, and the part of its event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from knapcache.features.prefix.event import PrefixEvent
from knapcache.features.prefix.settings import PrefixRouteSettings
from knapcache.features.prefix.tier import PrefixMarker, PrefixTier, reported_event
from knapcache.price.meter import Bill
from knapcache.proxy.hooks import BodyEditor, CallContext, CallHooks
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.threads import DeadlinePool

BODY_DIGESTS = ("content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256")
"""Request headers that hold for the bytes of the body."""


class PrefixHooks(CallHooks):
    """The prefix tier's part of one request."""

    __slots__ = ("_call", "_mode", "_pool", "_tiers", "edits")
    name = "prefix"

    def __init__(self, call: CallContext, tiers: Mapping[str, PrefixTier], pool: DeadlinePool) -> None:
        self._call, self._tiers, self._pool = call, tiers, pool
        route = cast(PrefixRouteSettings | None, call.route)
        self._mode = None if route is None else route.prefix
        self.edits = self._mode != "off" and call.upstream.name in tiers

    def editor(self, upstream: Upstream, model: str) -> PrefixMarker | None:
        """Return what marks the body for an upstream."""
        tier, exchange = self._tiers.get(upstream.name), self._call.exchange
        if tier is not None and self._mode is not None:
            tier = tier.in_mode(self._mode)
        if tier is None or tier.mode == "off" or exchange is None:
            return None
        if is_signed(self._call.headers, self._call.query):  # a changed body would break the signature
            tier = tier.in_mode("observe")
        return PrefixMarker(
            tier,
            exchange.endpoint,
            exchange.body,
            len(exchange.raw),
            model=model,
            account=upstream.account(self._call.credential),
            pool=self._pool,
        )

    def event_part(self, *, sent: bool, bill: Bill | None, editor: BodyEditor | None) -> PrefixEvent | None:
        """Report the input tokens of a paid answer to the tier, and return what is recorded of them."""
        if not sent:
            return None
        counted = None if bill is None else bill.input
        return editor.report(counted) if isinstance(editor, PrefixMarker) else reported_event("off", counted)


def is_signed(headers: Mapping[str, str], query: bytes) -> bool:
    """Return whether the request has a signature or a digest of its body. headers: by lower-case name."""
    return (
        headers.get("authorization", "").lstrip().upper().startswith("AWS4-")
        or b"x-amz-signature=" in query.lower()
        or any(name in headers for name in BODY_DIGESTS)
    )
