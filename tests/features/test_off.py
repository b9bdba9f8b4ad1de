"""A feature that is off costs nothing: it is not imported, and has no route, no metric and no panel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.settings import Settings
from tests.support import ROOT

SERVE = """
import json, sys
from pathlib import Path
import httpx
from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy

with FakeUpstream() as upstream, RunningProxy(Path(sys.argv[1]), upstream.openai_url) as proxy:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(3):
        httpx.post(f"{proxy.url}/v1/chat/completions", json=body).raise_for_status()
    print(json.dumps({
        "modules": [name for name in sys.modules if name.startswith("knapcache.features.")],
        "metrics": proxy.metrics(),
        "paths": list(proxy.admin("/openapi.json")["paths"]),
        "panels": {row["name"]: row["on"] for row in proxy.admin("/panels")["rows"]},
    }))
"""
SPECS = {spec.name: spec for spec in feature_specs() if not spec.is_on(Settings())}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a proxy with default settings has, after some requests."""
    folder: Path = tmp_path_factory.mktemp("off")
    variables = {"PYTHONPATH": str(ROOT), "KNAPCACHE_COMPILE": "0"}
    command = [sys.executable, "-c", SERVE, str(folder)]
    run = subprocess.run(command, check=True, capture_output=True, env={**os.environ, **variables}, cwd=ROOT)
    return json.loads(run.stdout)


def test_swap_is_off_by_default() -> None:
    assert "swap" in SPECS


@pytest.mark.parametrize("name", SPECS)
def test_off_it_costs_nothing(name: str, served: Any) -> None:
    assert SPECS[name].feature.partition(":")[0] not in served["modules"]
    assert f"knapcache_{name}_" not in served["metrics"]
    assert [path for path in served["paths"] if path.startswith(f"/admin/v1/{name}")] == []
    assert served["panels"].get(name, False) is False
