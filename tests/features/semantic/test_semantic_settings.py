"""The settings of the semantic tier."""

from __future__ import annotations

import pytest

from knapcache import InvalidInput
from knapcache.cli.serve import flags
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.features.semantic.spec import SPEC
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import unknown_variables

TENANT = {"name": "a", "keys": ["sha256:" + "0" * 64]}


def test_tenants_and_routes_have_their_own_mode_and_error() -> None:
    settings = Settings(
        tenants=[{**TENANT, "semantic": "on"}], route=[{"name": "r", "semantic": "shadow", "semantic_error": 0.1}]
    )
    assert isinstance(settings, SemanticSettings)
    assert (settings.semantic, settings.tenants[0].semantic, settings.route[0].semantic) == ("off", "on", "shadow")
    assert (settings.tenants[0].semantic_error, settings.route[0].semantic_error) == (None, 0.1)
    assert SPEC.is_on(settings)
    assert not SPEC.is_on(Settings(semantic="on", tenants=[{**TENANT, "semantic": "off"}]))
    assert "semantic" in flags()


@pytest.mark.parametrize("name", ["semantic_embeddings", "semantic_embeddings_key_env"])
def test_errors_repeat_no_password(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}: ") as raised:
        Settings(**{name: ["https://user:password@api.example.com"]})
    assert "password" not in str(raised.value)
    with pytest.raises(InvalidInput, match=r"^semantic_embeddings: must not contain a user or a password") as raised:
        Settings(semantic_embeddings="https://user:secret@api.example.com")
    assert "secret" not in str(raised.value)


def test_a_misspelled_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_SEMANTIC_JUDGE", "m")
    monkeypatch.setenv("KNAPCACHE_SEMANTIC_JUGDE", "m")
    assert unknown_variables() == ["unknown setting KNAPCACHE_SEMANTIC_JUGDE: did you mean semantic_judge?"]
