"""Whoever reads the disk of a proxy with encryption reads nothing of prompts and answers, also after kill -9."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import chat, exchange
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

KEY, OTHER = "5e" * 32, "7a" * 32
CANARY = "canary-in-the-coal-mine"


def ask(url: str, text: str) -> str | None:
    (response,) = exchange(url, chat(text, key="k"))
    assert response.status == 200, response
    assert response.text == f"You said: {text}"
    return response.outcome


def assert_no_canary(folder: Path, *, files: int) -> None:
    """Search every file of the data directory, whatever it is for."""
    found = [file for file in folder.rglob("*") if file.is_file()]
    assert len(found) >= files, found
    for file in found:
        content = file.read_bytes()
        for form in (content, gzip.decompress(content) if file.suffix == ".gz" else b""):
            assert CANARY.encode() not in form, f"{file} has a prompt or an answer in it"
            assert b"You said" not in form, f"{file} has an answer in it"
    assert KEY.encode() not in b"".join(file.read_bytes() for file in found), "the key is in a file"


@pytest.fixture
def run(
    tmp_path: Path, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str | None], RunningProxy]:
    """Start a proxy on the test's directory, with these keys."""

    def start(keys: str | None) -> RunningProxy:
        monkeypatch.setenv("CACHE_KEY", keys or "")
        settings = {"encryption_key_env": "CACHE_KEY"} if keys else {}
        return RunningProxy(tmp_path, upstream.openai_url, **settings)

    return start


def test_no_file_has_prompts_or_answers(
    run: Callable[[str | None], RunningProxy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with run(KEY) as proxy:
        for k in range(10):
            assert ask(proxy.url, f"{CANARY} {k}") == "miss"
            assert ask(proxy.url, f"{CANARY} {k}") == "hit"
        assert_no_canary(tmp_path, files=4)
    assert_no_canary(tmp_path, files=4)
    assert CANARY not in caplog.text
    with run(KEY) as proxy:
        assert ask(proxy.url, f"{CANARY} 3") == "hit"
    for wrong, message in ((None, "is encrypted, and no key"), (OTHER, "is encrypted with another key")):
        before = (tmp_path / "cache.sqlite").read_bytes()
        with run(wrong) as proxy:
            assert proxy.proxy.storage.memory_fallback
            assert ask(proxy.url, "something else") == "miss"
        assert message in caplog.text
        assert (tmp_path / "cache.sqlite").read_bytes() == before
    with run(f"{OTHER},{KEY}") as proxy:  # rotation: the first encrypts, both decrypt
        assert ask(proxy.url, f"{CANARY} 4") == "hit"
        assert ask(proxy.url, f"{CANARY} new") == "miss"
    with run(f"{OTHER},{KEY}") as proxy:
        assert ask(proxy.url, f"{CANARY} new") == "hit"


def test_the_same_run_without_a_key_has_them_in_its_files(
    run: Callable[[str | None], RunningProxy], tmp_path: Path
) -> None:
    """The search would find them."""
    with run(None) as proxy:
        ask(proxy.url, f"{CANARY} 1")
    with pytest.raises(AssertionError, match="has a prompt or an answer in it"):
        assert_no_canary(tmp_path, files=4)


def test_a_killed_proxy_leaves_nothing_readable(
    run: Callable[[str | None], RunningProxy], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    process = ProxyProcess(tmp_path, upstream.openai_url, {"CACHE_KEY": KEY}, encryption_key_env="CACHE_KEY")
    try:
        for k in range(10):
            ask(process.url, f"{CANARY} {k}")
    finally:
        process.process.kill()
        process.process.wait()
        assert_no_canary(tmp_path, files=4)
        process.stop()
    with run(KEY) as proxy:
        assert ask(proxy.url, f"{CANARY} 0") == "hit"


@pytest.mark.long
def test_two_workers_hand_over_nothing_readable(tmp_path: Path, upstream: RecordingUpstream) -> None:
    environment = {"CACHE_KEY": KEY}
    with ProxyProcess(tmp_path, upstream.openai_url, environment, encryption_key_env="CACHE_KEY", workers=2) as process:
        for k in range(12):
            ask(process.url, f"{CANARY} {k}")
            assert_no_canary(tmp_path, files=4)
        os.kill(process.owner(), signal.SIGKILL)
        assert_no_canary(tmp_path, files=4)
