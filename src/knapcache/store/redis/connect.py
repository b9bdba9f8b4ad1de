"""Build redis-py clients from an address. All of them have timeouts, and none retries: the breaker decides instead."""

from __future__ import annotations

from typing import Any

from knapcache.errors import MissingExtra, install_command
from knapcache.store.redis.bounded_sockets import bound_replies
from knapcache.store.redis.urls import Address

MAX_REDIRECTIONS = 5
"""Redirections that a command to a cluster follows. Of the last ones, each waits 50 ms for a slot that is moving."""


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
            # the request. Instead, `RedisServer.refresh` does it in the background.
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
