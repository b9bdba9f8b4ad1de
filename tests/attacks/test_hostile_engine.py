"""A program in place of the server of a shared store that sends anything: requests are answered, and none wrongly."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attacks.test_shared_store import text_of
from tests.proxy.test_shared_store import SharedProxy
from tests.support.recording_upstream import RecordingUpstream
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until, within

pytest.importorskip("redis", reason="the extra redis is not installed")

Send = Callable[[socket.socket], None]


class HostileServer:
    """Relays connections to a real server. With `reply` set, it answers each packet with that instead."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.reply: Send | None = None
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()
                threading.Thread(target=self._return, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(1 << 16):
                if self.reply is None:
                    server.sendall(data)
                else:
                    self.reply(client)

    def _return(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)

    def become(self, reply: Send | None) -> None:
        """Send something else from now on, also on open connections."""
        self.reply = reply

    def drop_connections(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.drop_connections()


def sends(data: bytes) -> Send:
    return lambda client: client.sendall(data)


def sends_without_end(client: socket.socket) -> None:
    client.sendall(b"$2000000000\r\n")
    block = b"x" * (1 << 16)
    for _ in range(30_000):
        client.sendall(block)


def drips(client: socket.socket) -> None:
    client.sendall(b"$1000\r\n")
    for _ in range(1000):
        client.sendall(b"x")
        threading.Event().wait(0.02)


REPLIES: dict[str, Send] = {
    "nil": sends(b"$-1\r\n"),
    "number": sends(b":42\r\n"),
    "text": sends(b"$3\r\nabc\r\n"),
    "status": sends(b"+OK\r\n"),
    "empty array": sends(b"*0\r\n"),
    "mixed array": sends(b"*5\r\n:1\r\n$-1\r\n*1\r\n:2\r\n$1\r\nx\r\n+OK\r\n"),
    "numbers": sends(b"*5\r\n" + b":9223372036854775807\r\n" * 5),
    "texts": sends(b"*5\r\n" + b"$3\r\n\xff\xfe\x00\r\n" * 5),
    "redirect": sends(b"-MOVED 1 127.0.0.1:1\r\n"),
    "ask": sends(b"-ASK 1 127.0.0.1:1\r\n"),
    "error": sends(b"-\xff\xfe nonsense\r\n"),
    "push": sends(b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"),
    "deep array": sends(b"*1\r\n" * 100_000),
    "huge array": sends(b"*2147483647\r\n"),
    "huge length": sends(b"$99999999999999999999\r\n"),
    "garbage": sends(bytes(range(256)) * 16),
}
QUICK = ["nil", "mixed array", "huge array"]
SLOW: dict[str, Send] = {"endless text": sends_without_end, "slow drip": drips}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileServer]:
    with RedisProcess(tmp_path) as server:
        engine = HostileServer(server.port)
        yield engine
        engine.close()


def attack(proxy: SharedProxy, hostile: HostileServer, replies: dict[str, Send]) -> None:
    for name, reply in replies.items():
        hostile.become(reply)
        for k in range(3):
            with within(20, f"a request while the server sends: {name}"):
                assert text_of(proxy, f"{name} {k}") == f"You said: {name} {k}"
            assert text_of(proxy, "stored before") == "You said: stored before"
        hostile.become(None)
        hostile.drop_connections()
        wait_until(lambda name=name: not proxy.misses(f"after {name}"))  # type: ignore[misc]


@pytest.mark.parametrize("names", [QUICK, pytest.param([*REPLIES], marks=pytest.mark.long)])
def test_whatever_the_engine_sends_requests_are_answered(
    names: list[str],
    hostile: HostileServer,
    upstream: RecordingUpstream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with SharedProxy(tmp_path / "data", upstream.openai_url, f"{hostile.url}?near=0") as proxy:
        proxy.ask("stored before")
        wait_until(lambda: not proxy.misses("stored before"))
        attack(proxy, hostile, {name: REPLIES[name] for name in names})
    assert not [record for record in caplog.records if record.exc_info], "a traceback is in the log"


@pytest.mark.long
def test_replies_without_end_take_neither_threads_nor_memory(
    hostile: HostileServer, upstream: RecordingUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SharedProxy(tmp_path / "data", upstream.openai_url, f"{hostile.url}?near=0") as proxy:
        proxy.ask("stored before")
        wait_until(lambda: not proxy.misses("stored before"))
        attack(proxy, hostile, SLOW)
    assert not [record for record in caplog.records if record.exc_info], "a traceback is in the log"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20, "KiB"
