"""Builds the semantic tier from the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from knapcache.cache.options import seal_secret
from knapcache.errors import InvalidInput, UpstreamFailed
from knapcache.features.semantic.call import SemanticCalls
from knapcache.features.semantic.embedding import Embedder, check_local_embedder, local_embedder
from knapcache.features.semantic.embeddings_endpoint import EndpointEmbedder
from knapcache.features.semantic.judging import Judge
from knapcache.features.semantic.log import MemoryLog, SemanticLog
from knapcache.features.semantic.matcher import Matcher
from knapcache.features.semantic.redis_log import RedisLog
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.features.semantic.tier import SemanticTier
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.settings import Settings
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.rows import Sealer

LOG_FILE, INDEX_FILE = "semantic.sqlite", "semantic.index"
INDEX_CONTEXT = b"semantic index"


def open_semantic(context: ProxyContext) -> SemanticCalls:
    """Return the semantic tier. `SemanticTier.start` loads its model.

    Raises MissingExtra if the local model is to be used and is not installed.
    """
    settings, folder, shared_store = context.settings, context.folder, context.shared_store
    assert isinstance(settings, SemanticSettings)
    check_embedder(settings)  # a start without it would look like a tier that learns
    encryption = Encryption(context.encryption_keys) if context.encryption_keys else None

    def protect(content: bytes) -> bytes:
        return content if encryption is None else b"".join(encryption.encrypt(INDEX_CONTEXT, content))

    def reveal(content: bytes) -> bytes | None:
        if encryption is None:
            return content
        found = encryption.decrypt(INDEX_CONTEXT, content)
        return None if found is None else found[0]

    def open_matcher(errors: Mapping[str, float]) -> Matcher:
        embedder = open_embedder(settings)
        file = None if folder is None else folder / INDEX_FILE
        return Matcher(context.cache, embedder, open_log(), errors, settings.semantic_questions, file, protect, reveal)

    def open_log() -> SemanticLog:
        sealer = Sealer(seal_secret(context.secret), encryption)
        if shared_store is not None:
            return RedisLog(shared_store.record_logs, settings.semantic_questions)
        if folder is not None:
            return SqliteLog(folder / LOG_FILE, sealer, settings.semantic_questions)
        return MemoryLog(settings.semantic_questions)

    tier = SemanticTier(settings, open_matcher)
    judge = Judge(
        tier.embed,
        upstreams=context.upstreams,
        model=settings.semantic_judge or "",
        meter=context.meter,
        spent=context.count_payment,
    )
    return SemanticCalls(tier, judge, partial(context.events.append_note, "semantic"))


def check_embedder(settings: Settings) -> None:
    """Raise MissingExtra or InvalidInput if the embedding model of the settings cannot be used. It takes no time."""
    assert isinstance(settings, SemanticSettings)
    if settings.semantic_embeddings is None:
        check_local_embedder()
        return
    if not settings.semantic_embeddings_model:
        raise InvalidInput("semantic_embeddings needs semantic_embeddings_model, the name of a model of that API")
    variable = settings.semantic_embeddings_key_env
    if variable and not os.environ.get(variable):  # the message omits the value: it may be the key itself
        raise InvalidInput("semantic_embeddings_key_env must be the name of an environment variable that holds the key")


def open_embedder(settings: Settings) -> Embedder:
    """Return the embedding model of the settings. Raises InvalidInput, MissingExtra or UpstreamFailed."""
    assert isinstance(settings, SemanticSettings)
    if settings.semantic_embeddings is None:
        return local_embedder()
    key = os.environ.get(settings.semantic_embeddings_key_env or "", "")
    embedder = EndpointEmbedder(settings.semantic_embeddings, settings.semantic_embeddings_model or "", key)
    try:
        assert embedder.dimensions  # calls the API
    except UpstreamFailed:
        embedder.close()
        raise
    return embedder
