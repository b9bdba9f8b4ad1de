"""How the parent of several workers stops them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable

import pytest

from knapcache.proxy.settings import Settings
from knapcache.proxy.workers import supervisor


def obedient(_settings: Settings, _listening: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, which ends the process."""
    on_ready("")
    time.sleep(60)


def stubborn(_settings: Settings, _listening: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve, whatever signals come."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    on_ready("")
    time.sleep(60)


def stop_at_once(serve: supervisor.Serve) -> None:
    """Start a worker, and stop the parent when it serves."""
    settings = Settings(workers=1, grace=0.0)
    with socket.socket() as listening:
        supervisor.supervise(settings, listening, serve, lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_a_worker_that_ends_is_not_killed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "knapcache.serve"):
        stop_at_once(obedient)
    assert not caplog.messages


def test_a_worker_that_does_not_end_is_killed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT", 0.2)
    with caplog.at_level(logging.INFO, "knapcache.serve"):
        stop_at_once(stubborn)
    assert caplog.messages == ["Worker killed: it did not stop within 0 seconds."]
