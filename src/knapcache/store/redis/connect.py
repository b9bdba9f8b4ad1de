"""Build redis-py clients from an address. All of them have timeouts, and none retries: the breaker decides instead."""

from __future__ import annotations

from typing import Any

from knapcache.errors import MissingExtra
from knapcache.store.redis.urls import Address

MAX_REDIRECTIONS = 5
"""Redirections that a command to a cluster follows. Of the last ones, each waits 50 ms for a slot that is moving."""


def require_redis() -> Any:
    """Return the package redis-py, or raise MissingExtra."""
    try:
        import redis.cluster
        import redis.sentinel
    except ImportError:
        raise MissingExtra(
            "a store on Valkey or Redis needs the package redis, which is in an extra: pip install 'knapcache[redis]'"
        ) from None
    return redis


def connect(address: Address, timeout: float) -> Any:
    """Return a client. One for a cluster connects at once; others connect with their first command."""
    redis = require_redis()
    settings = _settings(redis, address, timeout)
    if address.kind == "unix":
        return redis.Redis(unix_socket_path=address.socket, db=address.db, **settings)
    if address.kind == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
        client = redis.RedisCluster(startup_nodes=nodes, require_full_coverage=False, **settings)
        client.RedisClusterRequestTTL = MAX_REDIRECTIONS
        return client
    if address.kind == "sentinel":
        watchers = {**settings, "username": address.sentinel_user, "password": address.sentinel_password}
        sentinel = redis.sentinel.Sentinel(list(address.hosts), sentinel_kwargs=watchers, **settings)
        return sentinel.master_for(address.master, db=address.db)
    host, port = address.hosts[0]
    return redis.Redis(host=host, port=port, db=address.db, **settings)


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
