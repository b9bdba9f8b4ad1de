"""Conditions of a purge: as JSON, as a filter of metadata, and as a selection of rows, which agree."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.cache.entries import purge_preview
from knapcache.cache.entry_index import entry_table
from knapcache.cache.purging import model_filter, purge_conditions
from knapcache.errors import InvalidInput
from knapcache.store.base import EntryInfo
from tests.support.caches import CHAT, Upstream, request_of, small_cache

TAGS = st.lists(st.sampled_from(["a", "b", "ab", "c:d"]), max_size=3, unique=True)
MODELS = st.sampled_from(["m", "m-2024-08-06", "m-mini-2024-08-06", "n"])
DIGESTS = st.sampled_from(["", "00000000000000ff", "0123456789abcdef", "01234567ffffffff", "ffffffffffffffff"])


@st.composite
def infos(draw: st.DrawFn) -> list[EntryInfo]:
    rows = draw(st.lists(st.tuples(st.sampled_from("xy"), MODELS, TAGS, DIGESTS, st.integers(0, 9))))
    return [
        EntryInfo(
            key=bytes([k]) * 32,
            tenant=tenant,
            model=model,
            size=100 + k,
            cost=1.0,
            seconds=1.0,
            created=float(created),
            expires=None,
            meta={**({"tags": sorted(tags)} if tags else {}), **({"system": system} if system else {})},
        )
        for k, (tenant, model, tags, system, created) in enumerate(rows)
    ]


CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.integers(0, 5).map(lambda k: bytes([k]) * 32),
        "model": MODELS | st.just("o"),
        "tenant": st.sampled_from("xyz"),
        "older_than": st.floats(0, 10),
        "tags": TAGS.filter(bool),
        "system": st.tuples(DIGESTS.filter(bool), st.integers(1, 16)).map(lambda pair: pair[0][: pair[1]]),
    },
)


@given(infos(), CONDITIONS)
def test_the_preview_has_what_the_filter_selects(entries: list[EntryInfo], given: dict[str, Any]) -> None:
    conditions = purge_conditions(**given)
    chosen = list(filter(conditions.filter(10.0), entries))
    preview = purge_preview(entry_table(entries, {}), 10.0, conditions)
    assert (preview["entries"], preview["bytes"]) == (len(chosen), sum(info.size for info in chosen))
    assert purge_conditions(**orjson.loads(orjson.dumps(conditions.to_json()))) == conditions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tags": []}, "no tag is given"),
        ({"tags": ["a b"]}, "'a b' is not a tag"),
        ({"tags": 5}, "tags must be a list"),
        ({"system": ""}, "16 hex digits"),
        ({"system": "xyz"}, "16 hex digits"),
        ({"system": "0" * 17}, "16 hex digits"),
        ({"key": "00"}, "64 hex digits"),
        ({"key": "xyz"}, "64 hex digits"),
        ({"key": b"short"}, "64 hex digits"),
        ({"older_than": -1}, "older_than"),
    ],
)
def test_what_is_not_a_condition_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        purge_conditions(**given)


@pytest.mark.parametrize(
    ("wanted", "name", "found"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4", "gpt-4-0613", True),
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", False),
        ("gpt-4o-2024-08-06", "gpt-4o", False),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06", False),
        ("claude-sonnet-4", "claude-sonnet-4-5", False),
        ("gpt.4o", "gpt-4o", False),
        ("", "gpt-4o", False),
    ],
)
def test_the_name_of_a_model_stands_for_its_dated_versions(wanted: str, name: str, found: bool) -> None:
    assert model_filter(wanted)(name) is found


def test_a_digest_may_be_in_upper_case() -> None:
    assert purge_conditions(system="ABCD").system == "abcd"


def test_shadows_pay_for_a_purged_answer_again() -> None:
    with small_cache(shadows=("lru",)) as cache:
        for _ in range(2):
            key = cache.fetch(CHAT, request_of(1), Upstream()(1)).key
            cache.purge(key=key)
        spent = cache.stats().shadows
        assert spent["lru"] == spent["none"] > 0
