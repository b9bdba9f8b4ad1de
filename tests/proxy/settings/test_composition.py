"""Settings of features are fields of the proxy's settings, also those of other packages."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from knapcache.errors import InvalidInput
from knapcache.proxy.feature_list import FeatureSpec, feature_specs
from knapcache.proxy.settings import RouteSettings, Settings, TenantSettings, UpstreamSettings, composition
from knapcache.proxy.settings.composition import Kind, core_of, feature_models, with_features
from knapcache.proxy.settings.tables import secret_fields, secret_tables

MODELS: dict[Kind, type[BaseModel]] = {
    "settings": Settings,
    "route_settings": RouteSettings,
    "tenant_settings": TenantSettings,
    "upstream_settings": UpstreamSettings,
}
OWN: dict[str, dict[str, Any]] = {
    "limits": {"limits": {"usd_per_day": 1}},
    "content_log": {"content_log": True, "content_log_bytes": "5MB", "content_log_days": 1, "redact": "keys"},
    "prefix": {"prefix": "on"},
    "semantic": {"semantic": "on", "semantic_error": 0.02, "semantic_judge": "m"},
    "webhooks": {"webhook": [{"name": "a", "url": "http://a"}]},
}
"""Settings of each feature."""
INSTALLED = [spec.name for spec in feature_specs() if spec.name in OWN]
PACKAGE = """
from pydantic import BaseModel, Field

from knapcache.proxy.feature_list import FeatureSpec, Flag
from knapcache.proxy.settings.value_types import Seconds


class Greeting(BaseModel):
    greeting: str = Field("hello", description="text before every answer")
    greeting_time: Seconds = Field(1.0, description="time to greet")


class TenantGreeting(BaseModel):
    greeting: str | None = Field(None, description="its own greeting")


SPEC = FeatureSpec(
    name="greeting",
    title="Greeting",
    feature="greeting:Greeting",
    is_on=lambda settings: settings.greeting != "",
    settings=Greeting,
    tenant_settings="greeting:TenantGreeting",
    flags=(Flag("greeting", "TEXT", "text before every answer"),),
)
"""


class Colour(BaseModel):
    """Settings of a feature."""

    colour: str = Field("red", description="colour of the answers")

    @field_validator("colour")
    @classmethod
    def _not_on_this_port(cls, colour: str, info: ValidationInfo) -> str:
        if colour == "blue" and info.data.get("port") == 1234:
            raise InvalidInput("must not be blue on port 1234")
        return colour


def spec(name: str, **models: Any) -> FeatureSpec:
    return FeatureSpec(name=name, title=name, feature="", is_on=lambda _settings: True, **models)


def composed(monkeypatch: pytest.MonkeyPatch, kind: Kind, specs: tuple[FeatureSpec, ...]) -> type[BaseModel]:
    """Return the model of a kind as it is with these features."""
    monkeypatch.setattr(composition, "feature_specs", lambda: specs)
    return with_features(kind)(core_of(MODELS[kind]))


@pytest.mark.features
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_has_the_fields_of_the_core_first_and_then_those_of_features(kind: Kind) -> None:
    model, parts = MODELS[kind], feature_models(kind)
    assert list(model.model_fields) == [
        *core_of(model).model_fields,
        *(name for part in parts.values() for name in part.model_fields),
    ]
    assert parts
    assert all(issubclass(model, part) for part in parts.values())
    assert model.__module__.startswith("knapcache.proxy.settings")
    assert model.__doc__ == core_of(model).__doc__


def test_settings_are_of_the_type_of_each_feature_and_can_be_pickled() -> None:
    settings = Settings()
    assert all(isinstance(settings, part) for part in feature_models("settings").values())
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("name", INSTALLED)
def test_settings_of_a_feature_that_is_removed_are_unknown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = composed(monkeypatch, "settings", tuple(spec for spec in feature_specs() if spec.name != name))
    others = {key: value for other in INSTALLED if other != name for key, value in OWN[other].items()}
    model(**others)
    for key, value in OWN[name].items():
        with pytest.raises(InvalidInput, match=f"^unknown setting {key}[;:]"):
            model(**{key: value})


def test_without_features_there_are_the_settings_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, model in MODELS.items():
        alone = composed(monkeypatch, kind, ())
        assert list(alone.model_fields) == list(core_of(model).model_fields)
    composed(monkeypatch, "settings", ())(port=0)
    upstream = composed(monkeypatch, "upstream_settings", ())(url="https://api.anthropic.com")
    assert upstream.model_dump(include={"name", "kind"}) == {"name": "api.anthropic.com", "kind": "anthropic"}


def test_a_feature_adds_settings_and_its_validators_see_those_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    model = composed(monkeypatch, "settings", (*feature_specs(), spec("colour", settings=Colour)))
    assert model(colour="blue").model_dump()["colour"] == "blue"
    assert model().model_dump()["colour"] == "red"
    with pytest.raises(InvalidInput, match=r"^colour: must not be blue on port 1234, not 'blue'$"):
        model(port=1234, colour="blue")
    with pytest.raises(InvalidInput, match=r"^unknown setting color: did you mean colour"):
        model(color="blue")


def test_two_owners_of_a_setting_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Port(BaseModel):
        port: int = 1

    with pytest.raises(InvalidInput, match=r"^feature harbour: the proxy has a setting port already$"):
        composed(monkeypatch, "settings", (spec("harbour", settings=Port),))
    with pytest.raises(InvalidInput, match=r"^feature second: feature first has a setting colour already$"):
        composed(monkeypatch, "settings", (spec("first", settings=Colour), spec("second", settings=Colour)))


def test_settings_of_a_feature_are_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"^feature odd: settings must be a pydantic model, not "):
        composed(monkeypatch, "settings", (spec("odd", settings="json:dumps"),))


def test_which_values_no_message_repeats() -> None:
    core = core_of(Settings)
    assert secret_fields(core) == {
        "admin_token", "digest", "headers", "key_env", "keys", "otlp_endpoint", "proxy", "secret", "store", "token_env",
        "token_file", "url",
    }  # fmt: skip
    assert secret_tables(core) == {"admin_tokens", "tenants", "upstreams"}
    assert secret_fields(core) <= secret_fields(Settings)


def test_specs_name_settings_that_exist() -> None:
    for one in feature_specs():
        own = feature_models("settings")[one.name].model_fields if one.settings else {}
        assert {*one.reloaded, *(flag.setting for flag in one.flags)} <= own.keys()


def test_an_installed_package_adds_settings(tmp_path: Path) -> None:
    """Its module is imported first, which must not need settings that are not made yet."""
    (tmp_path / "greeting.py").write_text(PACKAGE, encoding="utf-8")
    info = tmp_path / "greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[knapcache.features]\ngreeting = greeting:SPEC\n", encoding="utf-8")
    script = """
import greeting, sys
from knapcache.cli.main import main
main(["serve", "--show-settings", "--json", "--greeting", "good day"])
sys.exit(main(["serve", "--show-settings", "--set", "greeting_time=soon", "--set", "greetings=1"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "KNAPCACHE_GREETING_TIME": "2m"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["greeting"] == {
        "name": "greeting", "value": "good day", "source": "flag", "description": "text before every answer",
    }  # fmt: skip
    assert (rows["greeting_time"]["value"], rows["greeting_time"]["source"]) == (120.0, "environment")
    assert done.returncode == 2
    assert "greeting_time: must be a number of seconds" in done.stderr
    assert "unknown setting greetings: did you mean greeting?" in done.stderr


def test_specs_import_no_settings() -> None:
    """`knapcache --help` needs the specs, and must work without the packages of the proxy."""
    script = """
import sys
from knapcache.proxy.feature_list import feature_specs
print(len(feature_specs()), "pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(feature_specs())), "False"]
