"""A provider that answers by meaning, and proxies with a semantic tier in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.meanings import MODEL, TASKS, WORDINGS, Asked, MeaningUpstream, SemanticClient
from tests.support.programs import need_semantic_extra
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

PRICES = {model: {"input": 1.0, "output": 2.0} for model in (MODEL, "judge-model")}


class TierProxy(NamedTuple):
    """A running proxy with a semantic tier, and a client."""

    proxy: RunningProxy
    client: SemanticClient


StartTier = Callable[..., TierProxy]


@pytest.fixture(scope="module")
def upstream() -> Iterator[MeaningUpstream]:
    with MeaningUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def embedding_model() -> None:
    """Skip the test if the packages of the local embedding model are not installed."""
    need_semantic_extra()


@pytest.fixture(scope="module")
def start_tier(
    upstream: MeaningUpstream,
    tmp_path_factory: pytest.TempPathFactory,
    embedding_model: None,  # noqa: ARG001 - it may skip
) -> Iterator[StartTier]:
    """Start proxies with a semantic tier. They stop with the module, after a check of their cache."""
    with ExitStack() as stack:

        def start(key: str = "any", **settings: Any) -> TierProxy:
            folder = settings.pop("path", None) or tmp_path_factory.mktemp("data")
            given = {"policy": "lru", "semantic": "on", "semantic_error": 0.1, "prices": PRICES, **settings}
            proxy = stack.enter_context(RunningProxy(folder, upstream.openai_url, **given))
            stack.callback(proxy.proxy.cache.check)
            client = stack.enter_context(SemanticClient(proxy.url, proxy.proxy.admin_token, key))
            return TierProxy(proxy, client)

        yield start


def learn_in_shadow(upstream: MeaningUpstream, folder: Path, **settings: Any) -> list[Asked]:
    """Run a proxy in shadow until its labels are enough, with a margin, for one that serves. Return what was asked."""
    given = {"policy": "lru", "semantic": "shadow", "prices": PRICES, **settings}
    with (
        RunningProxy(folder, upstream.openai_url, **given) as proxy,
        SemanticClient(proxy.url, proxy.proxy.admin_token) as client,
    ):
        client.wait_ready()
        before = upstream.count()
        questions = [wording.format(task) for wording in WORDINGS[:5] for task in TASKS]
        asked = [client.ask(question) for question in questions]
        assert upstream.count() - before == len(questions)
        wait_until(lambda: client.labels() >= 45)  # not all: a question may come before its predecessor is indexed
        scope = client.scope()
        assert (scope["mode"], scope["state"]) == ("shadow", "shadow")
        assert any(level["certified"] for level in scope["levels"]), "the labels would be enough"
        assert scope["all"]["labels"].keys() <= {"shadow same", "shadow different", "shadow undecided"}
        assert client.ask(WORDINGS[5].format(TASKS[0]), stream=True).outcome == "miss"
        return asked
