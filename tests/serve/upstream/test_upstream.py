"""An upstream that cannot be asked: what is told, and what is counted."""

from __future__ import annotations

import socket

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.serve.settings import UpstreamSettings
from knapcache.serve.upstream.upstream import Upstream


class Absent:
    """A local model that does not start."""

    async def ready(self) -> str:
        raise ConnectionError("not started")


@pytest.mark.parametrize("local", [None, Absent()])
async def test_the_reason_of_a_failure_is_kept(local: Absent | None) -> None:
    """For the log: a caller is told who, and no address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        upstream = Upstream(UpstreamSettings.model_validate({"name": "away", "url": url}), local)
        attempts: list[int] = []
        for times in (1, 2, 3):
            with pytest.raises(UpstreamFailed, match="away cannot be reached") as told:
                await upstream.send("GET", "/models", b"", None, attempts)
            assert isinstance(told.value.__cause__, ConnectionError)
            assert told.value.safe_to_retry
            assert attempts == [0] * times
        assert url not in str(told.value)
