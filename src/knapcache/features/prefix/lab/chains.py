"""From lines that name the request they share a prefix with, to requests with positions.

A position is a place where a prefix ends that can be marked and read. A request has those positions of its parent that
both have in common, the end of its system prompt, and its own end. So a mark at the end of one request is found by
every later request that continues it, over any number of turns.

Traces count shared tokens in whole blocks: 64 tokens in `agent_sessions`, 512 in `chat_prefixes`. The common prefix of
two requests may be up to one block longer than the trace says. A request is taken to have a position of its parent if
it shares all whole blocks before it:

    ⌊position / block⌋ · block ≤ shared tokens    and    position ≤ input tokens

So a request that shares all whole blocks of its parent's input continues it exactly. Rejected: to round the positions
down as well. Then nearly every request would pay for the rest of a block, which a provider does not round.

The length of a block is the greatest common divisor of all shared tokens. Shared tokens that are the whole input of one
of the two requests are exact, and do not count for it. Few values may have a common divisor by chance, so the block
must divide USUAL_BLOCK then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.lab.traces.base import BrokenLineError
from knapcache.lab.traces.sessions import Id, SharingRequest, check_parent

USUAL_BLOCK, FEW = 512, 16
"""Blocks of providers and traces divide this number of tokens. Fewer values than FEW may look like other blocks."""


def to_prefix_requests(
    requests: Sequence[SharingRequest],
    minimum_of: Callable[[str], int],
    broken: Callable[[int, str], NoReturn],
) -> list[PrefixRequest]:
    """Return requests with positions. Requests must be in the order of time.

    minimum_of   returns the tokens below which a model's prefixes are not cached
    broken       called with the index of a request whose parent is not before it, and the reason; it raises
    """
    lengths = {request.id: request.input_tokens for request in requests}
    block = block_length(requests, lengths)
    chains: dict[Id, list[Position]] = {}
    earlier: dict[Id, int] = {}
    minima: dict[str, int] = {}
    found = []
    for k, request in enumerate(requests):
        try:
            check_parent(request, earlier)
        except BrokenLineError as error:
            broken(k, str(error))
        earlier[request.id] = request.input_tokens
        chain, system = positions_of(request, chains, block)
        chains[request.id] = chain
        minimum = minima.get(request.model)
        if minimum is None:
            minimum = minima[request.model] = minimum_of(request.model)
        found.append(
            PrefixRequest(
                time=request.time,
                positions=chain,
                tokens=request.input_tokens,
                system=system,
                kind=request.kind,
                minimum=minimum,
            )
        )
    return found


def block_length(requests: Sequence[SharingRequest], lengths: dict[Id, int]) -> int:
    """Return the number of tokens that shared lengths are counted in."""
    counted = {
        request.shared_tokens
        for request in requests
        if request.shared_tokens not in (0, request.input_tokens, lengths.get(request.parent or ()))
    }
    block = math.gcd(*counted)
    return block if len(counted) >= FEW else math.gcd(block, USUAL_BLOCK)


def positions_of(request: SharingRequest, chains: dict[Id, list[Position]], block: int) -> tuple[list[Position], int]:
    """Return the positions of a request, and the index of the end of its system prompt."""
    end, shared, system = request.input_tokens, request.shared_tokens, min(request.system_tokens, request.input_tokens)
    chain: list[Position] = []
    if request.parent is not None:
        parent = chains[request.parent]
        count = len(parent) if shared else 0
        while count and (parent[count - 1].tokens > end or parent[count - 1].tokens // block * block > shared):
            count -= 1
        chain = parent[:count]
    if not chain or chain[-1].tokens < end:
        chain.append(Position(request.id, end))
    at = -1
    if system > 0:
        at = len(chain) - 1
        while at > 0 and chain[at - 1].tokens >= system:
            at -= 1
        if chain[at].tokens != system:
            chain.insert(at, Position((*request.id, "system"), system))
    return chain, at
