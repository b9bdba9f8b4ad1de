"""Authenticator: who shares with whom, who is refused, and that strangers cannot make memory grow."""

from __future__ import annotations

import re
import time
from itertools import combinations
from typing import Any

import pytest

from knapcache.serve.http.auth import LONGEST, REMEMBERED, Authenticator, Principal
from knapcache.serve.settings import Settings
from knapcache.serve.settings.secrets import digest_of

SECRET = b"s" * 32
LOCAL = [{"url": "local"}]


def callers(secret: bytes = SECRET, **settings: Any) -> Authenticator:
    return Authenticator(Settings(upstreams=LOCAL, **settings), secret)


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


def admitted(who: Authenticator, headers: dict[str, str]) -> Principal:
    found = who.admit(headers)
    assert found is not None
    assert who.admit(headers) == found, "the second time it is known by heart, and the same"
    return found


def tenants(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"keys": [digest_of("key-of-" + each["name"])], **each} for each in given]


def test_own_credentials_are_own_namespaces() -> None:
    who = callers()
    headers = [
        {},
        bearer("k1"),
        bearer("k2"),
        bearer("k1", **{"openai-organization": "o"}),
        bearer("k1", **{"openai-project": "o"}),
        bearer("k1", **{"openai-organization": "o", "openai-project": "o"}),
        bearer('k1", "o'),
        bearer("k1", **{"x-api-key": "k2"}),
        bearer("k2", **{"x-api-key": "k1"}),
        bearer("k1", **{"x-goog-api-key": "k2", "api-key": "k3"}),
    ]
    found = [admitted(who, each) for each in headers]
    for a, b in combinations(found, 2):
        assert a.namespace != b.namespace
    for caller in found:
        assert re.fullmatch(r"[0-9a-f]{32}", caller.namespace)
        assert who.name_of(caller.namespace) == caller.name
    assert found[0] == ("anonymous", found[0].namespace, None)
    assert found[1] == (f"caller-{found[1].namespace[:8]}", found[1].namespace, "k1")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k1"},
        {"authorization": "bearer   k1 "},
        {"x-api-key": "k1"},
        {"api-key": " k1"},
        {"authorization": "Bearer ", "api-key": "k1"},
        {"authorization": "Bearer k1", "x-api-key": "k1"},
        {"x-goog-api-key": "k1"},
        {"authorization": "Bearer k1", "content-type": "text/html", "x-forwarded-for": "me"},
    ],
)
def test_one_credential_however_it_comes(headers: dict[str, str]) -> None:
    assert admitted(callers(), headers) == admitted(callers(), {"x-api-key": "k1"})


@pytest.mark.parametrize("value", ["Basic azE6", "k1", "Digest x", "BearerK1"])
def test_a_credential_that_cannot_be_read_is_not_taken_for_none(value: str) -> None:
    assert callers().admit({"authorization": value}) is None
    assert callers().admit({"authorization": value, "x-api-key": "k1"}) is None


def test_namespaces_depend_on_the_secret_and_on_nothing_else() -> None:
    assert admitted(callers(), bearer("k")) == admitted(callers(), bearer("k"))
    assert admitted(callers(b"t" * 32), bearer("k")).namespace != admitted(callers(), bearer("k")).namespace


def test_strangers_where_they_are_not_wanted() -> None:
    who = callers(allow_anonymous=False)
    for headers in ({}, {"authorization": ""}, {"authorization": "Bearer"}, {"x-api-key": "  "}):
        assert who.admit(headers) is None
    assert who.admit(bearer("k")) is not None


def test_a_dummy_beside_the_true_key_makes_nobody_share() -> None:
    who = callers()
    mine, yours = (admitted(who, bearer("dummy", **{"x-api-key": key})) for key in ("mine", "yours"))
    assert len({mine.namespace, yours.namespace, admitted(who, bearer("dummy")).namespace}) == 3


def test_everyone_shares_where_it_is_said() -> None:
    who = callers(share_all=True)
    a, b = admitted(who, bearer("k1")), admitted(who, bearer("k2"))
    assert a.namespace == b.namespace
    assert (a.key, b.key) == ("k1", "k2")
    assert (a.name, who.name_of(a.namespace)) == ("everyone", "everyone")
    assert admitted(who, {}).namespace != a.namespace, "who shows nothing shares with those who show nothing"


def test_tenants() -> None:
    who = callers(
        tenants=tenants(
            {"name": "a", "quota": "1MB"},
            {"name": "b", "group": "g", "quota": "2MB"},
            {"name": "c", "group": "g", "pass_key": True},
            {"name": "g"},
        )
    )
    a, b, c, g = (admitted(who, bearer(f"key-of-{name}")) for name in "abcg")
    assert [caller.name for caller in (a, b, c, g)] == ["a", "b", "c", "g"]
    assert b.namespace == c.namespace
    assert len({a.namespace, b.namespace, g.namespace}) == 3, "a group is not a tenant of the same name"
    assert [caller.key for caller in (a, b, c, g)] == [None, None, "key-of-c", None]
    assert who.quotas() == {a.namespace: 1_000_000, b.namespace: 2_000_000}
    assert [who.name_of(caller.namespace) for caller in (a, b, c, g)] == ["a", "g", "g", "g"]
    assert [who.namespace_of(caller.name) for caller in (a, b, c, g)] == [one.namespace for one in (a, b, c, g)]
    assert who.namespace_of("d") is None
    assert admitted(who, bearer("key-of-a", **{"openai-project": "p"})) == a, "tenants are who we say they are"


def test_unknown_keys_are_refused() -> None:
    who = callers(tenants=tenants({"name": "a"}), allow_anonymous=True)
    for key in ("key-of-b", "key-of-a ".upper(), digest_of("key-of-a"), "key-of-\ud800"):
        assert who.admit(bearer(key)) is None
        assert who.admit(bearer(key)) is None
    assert who.admit({}) == ("anonymous", callers()._namespace("anonymous"), None)
    assert callers(tenants=tenants({"name": "a"})).admit({}) is None


def test_a_flood_of_credentials_takes_bounded_memory_and_changes_nobody() -> None:
    who = callers()
    mine = admitted(who, bearer("mine"))
    for k in range(REMEMBERED + 100):
        who.admit(bearer(f"made-up-{k}"))
    assert len(who._known) == REMEMBERED
    who.admit(bearer("x" * LONGEST))
    assert bearer("x" * LONGEST)["authorization"] not in {shown[0] for shown in who._known}
    assert admitted(who, bearer("mine")) == mine
    closed = callers(tenants=tenants({"name": "a"}))
    for k in range(100):
        assert closed.admit(bearer(f"made-up-{k}")) is None
    assert not closed._known


def test_a_known_caller_costs_little() -> None:
    who, headers = callers(), bearer("k", **{"content-type": "application/json", "user-agent": "x"})
    who.admit(headers)
    best = 1.0
    for _ in range(300):  # short rounds: on a busy machine some of them are not interrupted
        start = time.perf_counter()
        for _ in range(50):
            who.admit(headers)
        best = min(best, (time.perf_counter() - start) / 50)
    assert best < 3e-6
