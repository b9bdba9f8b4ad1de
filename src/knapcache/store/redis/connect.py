"""Build redis-py clients from an address. All of them have timeouts, and none retries: the breaker decides instead.

The client's own timeout is that of one read. So a server that sends a byte now and then would keep a thread for ever,
and one that sends an endless string would fill the memory. Therefore `BoundedSocket` limits a whole reply.
"""

from __future__ import annotations

import re
import time
from typing import Any

from knapcache.errors import MissingExtra, install_command
from knapcache.store.redis.urls import Address

MAX_REDIRECTIONS = 5
"""Redirections that a command to a cluster follows. Of the last ones, each waits 50 ms for a slot that is moving."""

MAX_REPLY_BYTES = 256 << 20
"""More than any reply of the store: entries of at most 16 MiB, some in one reply."""
REPLY_TIMEOUTS = 8
"""Timeouts that a whole reply may take: a large entry needs several reads."""
_HUGE_ARRAY = re.compile(rb"(?:\*\d+\r\n)*\*\d{8,}\r\n")
"""Beginning of an array of more than ten million elements: the client's parser would allocate it as a whole."""


def require_redis() -> Any:
    """Return the package redis-py, or raise MissingExtra."""
    try:
        import redis.cluster
        import redis.sentinel
    except ImportError:
        raise MissingExtra(f"a store on Valkey or Redis needs the package redis: {install_command('redis')}") from None
    return redis


def connect(address: Address, timeout: float, *, refreshes: bool = True) -> Any:
    """Return a client. One for a cluster connects at once; others connect with their first command.

    refreshes: after a failed command, the client of a cluster asks the nodes for the topology. False: `client.refresh`
    does it.
    """
    redis = require_redis()
    settings = _settings(redis, address, timeout)
    if address.kind == "unix":
        return _bounded(redis.Redis(unix_socket_path=address.socket, db=address.db, **settings), timeout)
    if address.kind == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
        client = redis.RedisCluster(startup_nodes=nodes, require_full_coverage=False, reinitialize_steps=0, **settings)
        client.RedisClusterRequestTTL = MAX_REDIRECTIONS
        for node in client.get_nodes():
            if node.redis_connection is not None:
                bound_replies(node.redis_connection, timeout)
                node.redis_connection.connection_pool.disconnect()
        create = client.nodes_manager.create_redis_node
        client.nodes_manager.create_redis_node = lambda *given, **named: _bounded(create(*given, **named), timeout)
        if not refreshes:
            # After a timeout the client asks every node for the topology, one timeout after the other, in the thread of
            # the request. Instead, `RedisServer.probe_nodes` does it in the background.
            client.refresh, client.nodes_manager.initialize = client.nodes_manager.initialize, _do_nothing
        return client
    if address.kind == "sentinel":
        watchers = {**settings, "username": address.sentinel_user, "password": address.sentinel_password}
        sentinel = redis.sentinel.Sentinel(list(address.hosts), sentinel_kwargs=watchers, **settings)
        return _bounded(sentinel.master_for(address.master, db=address.db), timeout)
    host, port = address.hosts[0]
    return _bounded(redis.Redis(host=host, port=port, db=address.db, **settings), timeout)


def _bounded(client: Any, timeout: float) -> Any:
    bound_replies(client, timeout)
    return client


def _do_nothing(*_: Any, **__: Any) -> None:
    """Take the place of the refresh."""


def _settings(redis: Any, address: Address, timeout: float) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "username": address.user,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "protocol": 2,
    }
    if address.tls:
        settings |= {
            "ssl": True,
            "ssl_ca_certs": address.ca,
            "ssl_certfile": address.cert,
            "ssl_keyfile": address.key,
        }
    return settings


class BoundedSocket:
    """A socket of a connection on which commands and replies alternate."""

    def __init__(self, sock: Any, seconds: float) -> None:
        self._sock, self._seconds = sock, seconds
        self._received, self._deadline = 0, time.monotonic() + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, *given: Any) -> None:
        """Send a command. Its reply begins."""
        self._received, self._deadline = 0, time.monotonic() + self._seconds
        self._sock.sendall(*given)

    def recv_into(self, *given: Any) -> int:
        """Receive a part of the reply. TimeoutError if it takes too long, OSError if it is too long."""
        if time.monotonic() > self._deadline:
            raise TimeoutError("the reply has taken too long")
        count: int = self._sock.recv_into(*given)
        if not self._received and _HUGE_ARRAY.match(given[0][:64]):
            raise ConnectionResetError("the reply has too many elements")
        self._received += count
        if self._received > MAX_REPLY_BYTES:
            raise ConnectionResetError("the reply is too long")
        return count


def bound_replies(client: Any, timeout: float) -> None:
    """Limit the replies to a client. It has not connected yet."""
    pool = client.connection_pool
    connection_class = pool.connection_class

    class BoundedConnection(connection_class):  # type: ignore[misc,valid-type]
        def _connect(self) -> Any:
            return BoundedSocket(super()._connect(), timeout * REPLY_TIMEOUTS)

    pool.connection_class = BoundedConnection
