"""Validation of settings, error messages, and absence of secrets in texts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from knapcache import InvalidInput
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.value_types import header_patterns

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@pytest.fixture(autouse=True)
def environment_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def settings_error(**values: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        Settings(**values)
    assert error.value.__cause__ is None
    return str(error.value)


def test_defaults_are_for_loopback_and_the_embedded_model() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)
    assert settings.capacity == 256_000_000
    assert settings.allow_anonymous
    assert settings.metrics_public
    assert settings.allowed_hosts == ("127.0.0.1", "localhost", "[::1]")
    assert [(u.name, u.local, u.models) for u in settings.upstreams] == [("local", True, ("*",))]
    assert settings.path.is_absolute()
    assert settings.cache_file == settings.path / "cache.sqlite"
    assert Settings(memory_only=True).cache_file is None


def test_settings_are_immutable_and_compare_by_value() -> None:
    settings = Settings(port=1234, tenants=[{"name": "a", "keys": [DIGEST]}])
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert Settings(port=1234, tenants=[{"name": "a", "keys": [DIGEST]}]) == settings


def test_the_constructor_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_PORT", "1")
    assert Settings().port == 8080


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [("64k", 64_000), ("1.5gib", 3 << 29), (4096, 4096), ("4096", 4096), (" 32 Mb ", 32_000_000), (1e9, 10**9)],
)
def test_sizes_have_units(value: Any, bytes_: int) -> None:
    assert Settings(capacity=value).capacity == bytes_


@pytest.mark.parametrize("value", ["", "much", "-1", "0", 0, -5, 1.5, True, "10%", "1.3B", [1], None])
def test_invalid_sizes_are_rejected(value: Any) -> None:
    assert settings_error(capacity=value).startswith("capacity: must be a number with an optional unit")


@pytest.mark.parametrize(
    ("value", "seconds"), [("90", 90), ("15m", 900), ("12h", 43_200), ("1.5 d", 129_600), (0.5, 0.5)]
)
def test_durations_have_units(value: Any, seconds: float) -> None:
    assert Settings(ttl=value).ttl == seconds


def test_a_size_that_may_be_zero() -> None:
    assert [Settings(local_prompt_cache=value).local_prompt_cache for value in (0, "0", "1MB")] == [0, 0, 1_000_000]
    assert settings_error(local_prompt_cache=False).startswith("local_prompt_cache: ")


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("port", 0, 65_535),
        ("workers", 1, 64),
        ("max_header_count", 1, 10_000),
        ("max_connections", 1, 1_000_000),
        ("max_connections_per_address", 1, None),
        ("max_requests_per_caller", 1, None),
        ("audit_log_bytes", 65_536, None),
        ("local_threads", 1, 256),
        ("local_context", 128, 1_048_576),
    ],
)
def test_numbers_have_bounds(name: str, lowest: int, highest: int | None) -> None:
    assert getattr(Settings(**{name: lowest}), name) == lowest
    assert settings_error(**{name: lowest - 1}).startswith(f"{name}: ")
    if highest is not None:
        assert getattr(Settings(**{name: highest}), name) == highest
        assert settings_error(**{name: highest + 1}).startswith(f"{name}: ")


@pytest.mark.parametrize("value", ["soon", "-1", -1, 0, "0h", float("nan"), float("inf"), True, "1e400", [5]])
def test_invalid_durations_are_rejected(value: Any) -> None:
    assert settings_error(ttl=value).startswith("ttl: must be ")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"port": 65536}, "port: must be less than or equal to 65535, not 65536"),
        ({"port": "http"}, "port: must be an integer, not 'http'"),
        ({"host": ""}, "host: string should have at least 1 character, not ''"),
        ({"workers": 0}, "workers: must be greater than or equal to 1, not 0"),
        ({"polcy": "lru"}, "unknown setting polcy: did you mean policy?"),
        ({"policy": "lruu"}, "policy: unknown policy 'lruu': did you mean lru?"),
        (
            {"policy": "belady"},
            "policy: must be an online policy (offline ones need all future requests), not 'belady'",
        ),
        (
            {"shadows": "lru, LRU"},
            "shadows: must be names of policies, each with an optional @2x for twice the capacity, not 'lru, LRU'",
        ),
        (
            {"shadows": ["lru@0x"]},
            "shadows: must be names of policies, each with an optional @2x for twice the capacity",
        ),
        ({"log_level": "loud"}, "log_level: must be 'debug', 'info', 'warning' or 'error', not 'loud'"),
        ({"dashboard": "perhaps"}, "dashboard: must be a boolean, not 'perhaps'"),
        ({"tenants": 3}, "tenants: must be a list"),
        ({"prices": {"m": {"inputt": 1}}}, "prices: prices of model m must be dollars per million tokens such as"),
        ({"fallback_price": "cheap"}, "fallback_price: must be dollars per second, or prices such as { input = 2.5,"),
        (
            {"fallback_price": 0},
            "fallback_price: fallback must not be 0: an answer that costs nothing is never admitted",
        ),
        ({"cost": "euros"}, 'cost: a cost is "usd", "seconds", a sum such as "usd + 0.01*seconds"'),
        ({"local_model": "/no/such.gguf"}, "local_model: must be an existing file, not '/no/such.gguf'"),
        ({"otlp_endpoint": "collector:4318"}, "otlp_endpoint: must be a URL that starts with http:// or https://"),
    ],
)
def test_an_error_is_one_line(values: dict[str, Any], line: str) -> None:
    message = settings_error(**values)
    assert message.startswith(line)
    assert "\n" not in message
    assert message.count(", not ") <= 1
    for value in values.values():
        assert message.count(repr(value)) <= 1, "the value is named twice"
    assert len(message) < 200


def test_each_problem_is_one_line() -> None:
    lines = settings_error(port=-1, capacity="x", upstreams=[{"url": "ftp://h", "retries": 99}]).splitlines()
    assert [line.split(":")[0] for line in lines] == ["port", "capacity", "upstreams[0].url", "upstreams[0].retries"]


# Upstreams.


@pytest.mark.parametrize(
    "url",
    ["", "LOCAL", "h/v1", "ftp://h/v1", "file:///etc/passwd", "http://", "http://[::1", "http://h:port/",
     "http://h:0/", "http://h /v1", "http://h/v1?key=1", "http://h/v1?", "http://h/v1#x",
     "http://h\n/v1", "http://me:word@h/", "//h/v1"],
)  # fmt: skip
def test_invalid_urls_are_rejected(url: str) -> None:
    message = settings_error(upstreams=[{"url": url, "name": "u"}])
    assert message.startswith("upstreams[0].url: must ")
    assert "word" not in message.replace("password", "")


def test_name_and_kind_of_an_upstream_default_to_those_of_its_host() -> None:
    first, second = Settings(
        upstreams=[{"url": "https://API.anthropic.com/"}, {"url": "http://[::1]:8000/v1/"}]
    ).upstreams
    assert (first.name, first.kind, first.url) == ("api.anthropic.com", "anthropic", "https://API.anthropic.com")
    assert (second.name, second.kind, second.url) == ("::1", "openai", "http://[::1]:8000/v1")
    (lookalike,) = Settings(upstreams=[{"url": "https://notanthropic.com"}]).upstreams
    assert lookalike.kind == "openai"


def test_the_first_upstream_with_a_matching_pattern_is_used_and_case_matters() -> None:
    settings = Settings(
        upstreams=[
            {"name": "a", "url": "http://a", "models": ["gpt-4*", "o[13]"]},
            {"name": "b", "url": "http://b", "models": "gpt-*, claude-?"},
        ]
    )
    for model, name in [("gpt-4o", "a"), ("o1", "a"), ("o3", "a"), ("gpt-5", "b"), ("claude-3", "b")]:
        found = settings.upstream_for(model)
        assert found is not None
        assert found.name == name
    for model in ("o2", "claude-33", "GPT-4o", ""):
        assert settings.upstream_for(model) is None
    assert Settings().upstream_for("") is not None, "* also matches requests without a model"


def test_upstream_names_are_unique() -> None:
    assert settings_error(upstreams=[{"url": "http://h/a"}, {"url": "http://h/b"}]).startswith(
        "upstreams: must have different names: 'h' occurs more than once"
    )


def test_default_upstreams_are_providers_with_a_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
    assert [u.name for u in Settings().upstreams] == ["anthropic"]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    settings = Settings()
    assert [(u.name, u.kind, u.key) for u in settings.upstreams] == [
        ("openai", "openai", "sk-2"),
        ("anthropic", "anthropic", "sk-ant-1"),
    ]
    for model, name in [("gpt-5-mini", "openai"), ("o4-mini", "openai"), ("text-embedding-3-small", "openai")]:
        found = settings.upstream_for(model)
        assert found is not None
        assert found.name == name
    assert settings.upstream_for("llama-3") is None
    assert "sk-" not in repr(settings)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert [u.name for u in Settings(upstreams=[]).upstreams] == ["anthropic"]


def test_a_missing_key_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    line = "upstreams[0].key_env: the environment variable SOME_KEY is not set or is empty"
    assert settings_error(upstreams=[{"url": "http://h", "key_env": "SOME_KEY"}]) == line
    monkeypatch.setenv("SOME_KEY", "")
    assert settings_error(upstreams=[{"url": "http://h", "key_env": "SOME_KEY"}]) == line


@pytest.mark.parametrize("name", ["host", "Content-Length", "x y", "", "x:", "x\n"])
def test_reserved_and_invalid_header_names_are_rejected(name: str) -> None:
    assert "cannot be set" in settings_error(upstreams=[{"url": "http://h", "headers": {name: "secret"}}])


def test_a_header_value_must_be_one_line() -> None:
    message = settings_error(upstreams=[{"url": "http://h", "headers": {"x": "secret\r\nhost: evil"}}])
    assert message == "upstreams[0].headers: the value of x must be printable ASCII on one line"


# Tenants.


def tenant(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "keys": [DIGEST], **fields}


@pytest.mark.parametrize(
    ("tenants", "line"),
    [
        ([tenant(keys=[])], "tenants[0].keys: must be one or more digests"),
        ([tenant(keys=["sk-plain-key"])], "tenants[0].keys: must be one or more digests"),
        ([tenant(keys=[DIGEST.upper()])], "tenants[0].keys: must be one or more digests"),
        ([tenant(name="a b")], "tenants[0].name: must be 1 to 64 letters, digits, or any of . _ @ -, not 'a b'"),
        ([tenant(name="anonymous")], "tenants[0].name: must not be anonymous, everyone or caller-…"),
        ([tenant(name="caller-1")], "tenants[0].name: must not be anonymous, everyone or caller-…"),
        ([tenant(group="")], "tenants[0].group: must be 1 to 64 letters"),
        ([tenant(quota="lots")], "tenants[0].quota: must be a number"),
        ([tenant(qota=1)], "unknown setting tenants[0].qota: did you mean quota?"),
        ([{"keys": [DIGEST]}], "tenants[0].name is missing"),
        ([tenant(), tenant(keys=[OTHER])], "tenants: must have different names: 'a' occurs more than once"),
        ([tenant(), tenant(name="b")], "tenants: must have different keys: 'a' and 'b' have the same key"),
        (
            [tenant(group="g", quota="1MB"), tenant(name="b", keys=[OTHER], group="g", quota="2MB")],
            "tenants: of the group 'g' must have the same quota, because it applies to the group",
        ),
    ],
)
def test_invalid_tenants_are_rejected(tenants: Any, line: str) -> None:
    message = settings_error(tenants=tenants)
    assert message.startswith(line)
    assert "\n" not in message
    assert "plain" not in message


def test_with_tenants_anonymous_requests_are_rejected_by_default() -> None:
    assert not Settings(tenants=[tenant()]).allow_anonymous
    assert Settings(tenants=[tenant()], allow_anonymous=True).allow_anonymous


# Public addresses.


LOOPBACK = ("127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]")
PUBLIC = ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com")


@pytest.mark.parametrize("host", [*LOOPBACK, *PUBLIC])
def test_only_loopback_addresses_need_no_credentials(host: str) -> None:
    settings = Settings(host=host)
    assert settings.loopback == settings.allow_anonymous == settings.metrics_public == (host in LOOPBACK)


def test_a_provider_key_on_a_public_address_needs_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    assert settings_error(host="0.0.0.0") == (
        "host: on 0.0.0.0 every caller could use the API key in OPENAI_API_KEY; "
        "add [[tenants]], or set allow_anonymous = true"
    )
    assert Settings(host="0.0.0.0", allow_anonymous=True).allow_anonymous
    assert Settings(host="0.0.0.0", tenants=[tenant()])
    assert Settings(host="0.0.0.0", upstreams=[{"url": "http://h"}]), "callers send their own keys"


def test_allowed_hosts_include_the_own_host() -> None:
    assert Settings(host="192.0.2.7").allowed_hosts == ("127.0.0.1", "localhost", "[::1]", "192.0.2.7")
    assert Settings(host="2001:db8::1", allowed_hosts=["Cache.example.com"]).allowed_hosts == (
        "cache.example.com",
        "[2001:db8::1]",
    )


# Secrets.


@pytest.mark.parametrize("token", ["short", "with space in it, long", "ünïcödé-and-long-enough"])
def test_errors_do_not_show_rejected_tokens(token: str) -> None:
    message = settings_error(admin_token=token)
    assert message.startswith("admin_token: must be at least 16 printable ASCII characters")
    assert token not in message


def test_no_text_contains_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret-key-of-provider")
    settings = Settings(
        admin_token="s3cret-admin-token",
        upstreams=[{"url": "http://h", "key_env": "SOME_KEY", "headers": {"x-pass": "s3cret"}}],
        tenants=[tenant()],
    )
    for text in (repr(settings), str(settings), settings.model_dump_json(exclude={"upstreams"})):
        assert "s3cret" not in text
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "s3cret-admin-token"
    assert settings.upstreams[0].headers == {"x-pass": "s3cret"}
    assert settings.upstreams[0].key == "s3cret-key-of-provider"
    mistakes: list[dict[str, Any]] = [
        {"upstreams": [{"url": "http://s3cret:s3cret@h"}]},
        {"upstreams": [{"url": "http://h", "key_env": "s3cret-key"}]},
        {"upstreams": '[{"url": "http://h", "headers": {"x": "s3cret"'},
        {"upstreams": [{"headers": {"x": "s3cret"}}]},
        {"upstreams": [{"url": "http://h", "headers": {"x": ["s3cret"]}}]},
        {"upstreams": ["s3cret"]},
        {"tenants": [{"name": "a", "keys": "s3cret"}]},
        {"tenants": [{"name": "a", "keys": ["s3cret"]}]},
        {"otlp_endpoint": "http://me:s3cret@h"},
        {"admin_token": ["s3cret"]},
        {"admin_token": "s3cret"},
    ]
    for values in mistakes:
        assert "s3cret" not in settings_error(**values), values


def test_paths_are_absolute_and_expand_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(path="data").path == tmp_path / "data"
    assert Settings(path="~/data").path == tmp_path / "data"
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert Settings(local_model=str(model)).local_model == model


def test_trusted_proxies_are_addresses_or_networks() -> None:
    settings = Settings(trusted_proxies="10.0.0.7, 172.16.0.0/12, fd00::/8")
    assert settings.trusted_proxies == ("10.0.0.7/32", "172.16.0.0/12", "fd00::/8")
    for wrong in ("*", "proxy.example", "10.0.0.1/8", "10.0.0.0/33"):
        assert "must be IP addresses or networks" in settings_error(trusted_proxies=wrong)


@pytest.mark.parametrize("name", ["*", "**", "", "x y", "x-trace-*\n"])
def test_a_pattern_of_headers_has_a_part_of_a_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="must be names of headers"):
        header_patterns(("x-trace-*", name))
    assert header_patterns(("X-Trace-*", "a")) == ("x-trace-*", "a")
