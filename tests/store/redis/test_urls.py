"""URLs of stores on Valkey and Redis."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.store.redis.urls import Address, parse
from knapcache.store.registry import split_url


def address_of(url: str, **environment: str) -> Address:
    return parse(*split_url(url), environment)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", {"kind": "server", "hosts": (("host", 6379),), "db": 0, "tls": False}),
        ("redis://", {"hosts": (("localhost", 6379),)}),
        ("valkey://host:7000/3", {"hosts": (("host", 7000),), "db": 3}),
        ("rediss://[::1]:7000", {"hosts": (("::1", 7000),), "tls": True}),
        ("valkeys://h?ca=a.pem&cert=b.pem&key=c.pem", {"tls": True, "ca": "a.pem", "cert": "b.pem", "key": "c.pem"}),
        ("redis+unix:///run/engine.sock", {"kind": "unix", "socket": "/run/engine.sock"}),
        ("unix:///run/engine.sock", {"kind": "unix", "socket": "/run/engine.sock"}),
        ("redis+cluster://a:1,b,c:3", {"kind": "cluster", "hosts": (("a", 1), ("b", 6379), ("c", 3))}),
        ("valkeys+cluster://a", {"kind": "cluster", "tls": True}),
        (
            "redis+sentinel://a,b:5/main/2",
            {"kind": "sentinel", "hosts": (("a", 26379), ("b", 5)), "master": "main", "db": 2},
        ),
        ("redis://me:p%40ss@host", {"user": "me", "password": "p@ss"}),
        ("redis://:secret@host", {"user": None, "password": "secret"}),
        ("redis://h?prefix=a:b&timeout=1.5&near=1MB&shards=9", {"prefix": "a:b", "timeout": 1.5, "near": 1_000_000}),
        ("redis://h?near=0", {"near": 0, "timeout": 0.24, "shards": None, "prefix": "knapcache"}),
    ],
)
def test_forms_of_urls(url: str, expected: dict[str, Any]) -> None:
    address = address_of(url)
    assert {name: getattr(address, name) for name in expected} == expected


def test_user_and_password_come_from_the_environment_unless_the_url_has_them() -> None:
    environment = {
        "KNAPCACHE_STORE_USER": "u", "KNAPCACHE_STORE_PASSWORD": "p",
        "KNAPCACHE_SENTINEL_USER": "su", "KNAPCACHE_SENTINEL_PASSWORD": "sp",
    }  # fmt: skip
    address = address_of("redis+sentinel://host/main", **environment)
    assert (address.user, address.password) == ("u", "p")
    assert (address.sentinel_user, address.sentinel_password) == ("su", "sp")
    assert address_of("redis://me:mine@host", **environment).password == "mine"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis:host", "URL must be redis://HOST:PORT/DB"),
        ("redis://hunter2@host", "USER:PASSWORD or :PASSWORD before the @"),
        ("redis://a:hunter2@h:x", "HOST or HOST:PORT"),
        ("redis://a:hunter2@h:99999", "HOST or HOST:PORT"),
        ("redis://a:hunter2@h/one", "at the end of the URL must be a number"),
        ("redis://:1/hunter2@h", "at the end of the URL must be a number"),
        ("redis://:1?hunter2@h", "once, and no other"),
        ("redis://h?hunter2=1", "once, and no other"),
        ("redis://a:hunter2@h/1/2", "/DB only"),
        ("redis+cluster://a:hunter2@h/1", "a cluster has one database"),
        ("redis+sentinel://a:hunter2@h", "followed by /MASTER"),
        ("redis+unix://", "followed by :///PATH"),
        ("redis://h?timeout=0", "timeout must be 0.01 to 60 seconds, not '0'"),
        ("redis://h?near=much", "near must be a number of bytes such as 64MB, or 0, not 'much'"),
        ("redis://h?shards=0", "shards must be a number from 1 to 1024, not '0'"),
        ("redis://h?prefix={a}", "prefix must be 1 to 64 letters"),
        ("redis://h?retry=1", "options prefix, timeout, .* once, and no other"),
        ("redis://h?near=1&near=2", "once, and no other"),
        ("redis://h?ca=a.pem", "ca, cert and key are for TLS"),
    ],
)
def test_wrong_urls_are_refused_without_their_password(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        address_of(url)
    assert "hunter2" not in str(raised.value)


def test_the_password_is_not_in_the_representation() -> None:
    assert "hunter2" not in repr(address_of("redis://me:hunter2@host"))
