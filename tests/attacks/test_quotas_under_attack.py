"""Quotas under attack: a tenant that floods the cache never exceeds its quota, and others keep their entries.

What is promised: the entries of a namespace with a quota never take more bytes than the quota. While the quotas leave
enough of the capacity for the others, a flood evicts none of their entries.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.raw_client import RawClient, chat
from tests.support.running_proxy import RunningProxy

ATTACKER, VALID_KEY = "kc-attacker-xxxxxxxxxxxxxx", "kc-victim-xxxxxxxxxxxxxxxx"
QUOTA = 200_000
NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["adaptive", pytest.param("lru", marks=pytest.mark.long)])
def proxy_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    tenants = [
        {"name": "attacker", "keys": [digest_of(ATTACKER)], "quota": QUOTA},
        {"name": "victim", "keys": [digest_of(VALID_KEY)]},
    ]
    return {"tenants": tenants, "policy": request.param, "capacity": "2MB"}


def sizes(proxy: RunningProxy) -> dict[str, int]:
    """Return the bytes of each tenant's entries."""
    found: dict[str, int] = {"attacker": 0, "victim": 0}
    for row in proxy.proxy.cache.entries(limit=1000)["rows"]:
        found[proxy.proxy.authenticator.name_of(row["tenant"])] += row["size"]
    return found


def ask(client: RawClient, text: str, key: str, **fields: Any) -> str | None:
    response = client.send(chat(text, key=key, **fields)).response()
    assert response.status == 200
    return response.outcome


FLOODS: dict[str, Any] = {
    "distinct requests": lambda k: (f"flood {k} " + "x" * 2000, {}),
    "repeated requests": lambda k: (f"popular {k % 150} " + "x" * 2000, {}),
    "large answers": lambda k: (f"large {k} " + "x" * 60_000, {}),
    "answers larger than the quota": lambda k: (f"huge {k} " + "x" * 150_000, {}),
    "namespaces": lambda k: (f"same {k % 3}" + "x" * 2000, {"cache": {"namespace": f"n{k}"}}),
    "time to live": lambda k: (f"expiring {k} " + "x" * 2000, {"cache": {"ttl": 0.001 * (k % 3)}}),
    "refreshes": lambda k: (f"refreshed {k % 5} " + "x" * 2000 * (k % 7), {"cache": {"no-cache": True}}),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_stays_within_its_quota_and_evicts_none_of_the_others(
    proxy: RunningProxy, connect: Connect, flood: str
) -> None:
    victim, attacker = connect(), connect()
    texts = [f"{flood} {k} " + "v" * 1000 for k in range(5)]
    for text in texts:
        assert ask(victim, text, VALID_KEY) == "miss"
        assert ask(victim, text, VALID_KEY) == "hit"
    before = sizes(proxy)["victim"]
    rounds = 30 if "arge" in flood else 100
    for k in range(rounds):
        text, fields = FLOODS[flood](next(NUMBERS))
        ask(attacker, text, ATTACKER, **fields)
        if k % 20 == 0:
            proxy.proxy.cache.check()
            assert sizes(proxy)["attacker"] <= QUOTA
    assert sizes(proxy)["attacker"] <= QUOTA
    assert sizes(proxy)["victim"] >= before
    assert [ask(victim, text, VALID_KEY) for text in texts] == ["hit"] * 5
    proxy.proxy.cache.check()
