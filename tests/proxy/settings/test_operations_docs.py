"""The settings reference lists every setting. The files shown in the docs load, and the backup can be restored."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from pydantic import BaseModel

from knapcache import Cache, Reply
from knapcache.cli.main import build_parser
from knapcache.proxy.settings import AdminTokenSettings, RouteSettings, Settings, TenantSettings, UpstreamSettings
from knapcache.proxy.settings.composition import core_of, feature_models
from knapcache.proxy.settings.loading import load, markdown
from knapcache.proxy.settings.routes import RouteUpstreamSettings
from knapcache.proxy.settings.tables import tables_of

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
FEATURES = list(feature_models("settings").values())
OPERATIONS = (ROOT / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "model",
    [
        core_of(Settings),
        *FEATURES,
        UpstreamSettings,
        TenantSettings,
        RouteSettings,
        RouteUpstreamSettings,
        *(table for part in FEATURES for field in part.model_fields.values() for table in tables_of(field)),
        AdminTokenSettings,
    ],
)
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    """`python -c 'from knapcache.proxy.settings.loading import markdown; print(markdown())'` prints the rows."""
    assert markdown(model) in SETTINGS, "docs/reference/settings.md does not have this table"
    for name, field in model.model_fields.items():
        assert field.description, f"{name} has no description"


def test_the_table_of_limits_has_the_defaults() -> None:
    (table,) = re.findall(r"^\| setting \| default \| what it limits .*?\n\n", OPERATIONS, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)`( of an upstream| of a tenant)? \| (?:`(\w+)`|\w[\w ]*) \|", table, re.MULTILINE)
    assert len(rows) == table.count("\n") - 3
    models: dict[str, type[BaseModel]] = {
        "": Settings,
        " of an upstream": UpstreamSettings,
        " of a tenant": TenantSettings,
    }
    for name, owner, default in rows:
        assert name in models[owner].model_fields
        assert not default or f"| `{name}` | `{default}` |" in markdown(models[owner])
    limits = {name for name in Settings.model_fields if name.startswith("max_") or name.endswith("_timeout")}
    assert limits <= {name for name, owner, _ in rows if not owner}


def test_every_option_is_documented() -> None:
    parser = build_parser(["serve"])._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr, index]
    options = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    options.remove("--help")
    assert len(options) > 10
    for option in options:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", SETTINGS), (
            f"docs/reference/settings.md does not mention {option}"
        )


@pytest.mark.features
def test_the_documented_config_files_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    examples = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    assert len(examples) == 6
    config = tmp_path / "proxy.toml"
    config.write_text("\n".join(examples), encoding="utf-8")
    settings = load(config).settings
    assert [upstream.name for upstream in settings.upstreams] == ["openai", "ours", "bedrock"]
    assert [tenant.group for tenant in settings.tenants] == [None, "research", None]
    for name in re.findall(r"KNAPCACHE_([A-Z_]+)=", SETTINGS + OPERATIONS):
        assert name.lower() in Settings.model_fields or name in ("KERNEL_CACHE", "COMPILE")


def test_a_backup_of_a_running_cache_can_be_restored(tmp_path: Path) -> None:
    secret = b"s" * 32
    requests = [{"model": "m", "messages": [f"question {k}"]} for k in range(20)]

    def open_at(path: Path) -> Cache:
        return Cache("2MiB", path=path, cost="seconds", policy="lru", shadows=(), secret=secret)

    live = Settings(path=tmp_path / "data").cache_file
    assert live is not None
    live.parent.mkdir()
    with open_at(live) as cache:
        for request in requests:
            cache.fetch("chat/completions", request, lambda: Reply(b"answer", "m", cost=1.0))
        cache.maintain()
        cache._internal.coordinator.store.flush()
        # The same call as `sqlite3 … ".backup …"`.
        with sqlite3.connect(f"file:{live}?mode=ro", uri=True) as source:
            copy = sqlite3.connect(tmp_path / "backup.sqlite")
            source.backup(copy)
            copy.close()
        source.close()
        cache.check()
    with open_at(tmp_path / "backup.sqlite") as restored:
        found = [restored.get("chat/completions", request) for request in requests]
        assert [answer is not None and answer.payload == b"answer" for answer in found] == [True] * len(requests)
        restored.check()


@pytest.mark.features
def test_security_policy_names_only_existing_settings() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    known = {
        name
        for model in (Settings, UpstreamSettings, TenantSettings, AdminTokenSettings)
        for name in model.model_fields
    }
    mentioned = set(re.findall(r"`([a-z]+(?:_[a-z]+)+|group|quota|ttl)`", text))
    mentioned = {name for name in mentioned if not name.startswith("knapcache_")}  # metrics
    assert len(mentioned) > 8
    assert mentioned <= known
