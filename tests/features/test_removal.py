"""Without the folders of features and their lines in the list, the rest of the proxy works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from knapcache.proxy.feature_list import FEATURES
from knapcache.testing import FakeUpstream
from tests.support import ROOT
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess

NAMES = [module.split(".")[2] for module in FEATURES]
IMPORT_ALL = """
import importlib, pkgutil, knapcache
for module in pkgutil.walk_packages(knapcache.__path__, "knapcache."):
    if not module.name.endswith(("__main__", "compile_kernels")) and ".integrations." not in module.name:
        importlib.import_module(module.name)
"""


def package_without(names: Sequence[str], folder: Path) -> Path:
    """Return a folder with a copy of the package without some features. Stored bytecode stays valid."""
    source = ROOT / "src" / "knapcache"
    removed = [source / "features" / name for name in names]

    def ignored(directory: str, found: list[str]) -> list[str]:
        return [each for each in found if Path(directory) / each in removed]

    shutil.copytree(source, folder / "package" / "knapcache", ignore=ignored)
    listed = folder / "package" / "knapcache" / "proxy" / "feature_list.py"
    text = listed.read_text(encoding="utf-8")
    for name in names:
        line = f'    "knapcache.features.{name}.spec",\n'
        assert line in text
        text = text.replace(line, "")
    listed.write_text(text, encoding="utf-8")
    return folder / "package"


@pytest.mark.parametrize("names", [NAMES, *(pytest.param([name], marks=pytest.mark.long, id=name) for name in NAMES)])
def test_the_rest_of_the_proxy_works(names: list[str], tmp_path: Path) -> None:
    """Without one feature only, it could fail for another one that imports it: `lint-imports` would notice that."""
    variables = {"PYTHONPATH": str(package_without(names, tmp_path)), "KNAPCACHE_COMPILE": "0"}
    subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, env={**os.environ, **variables})
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    with (
        FakeUpstream() as upstream,
        ProxyProcess(tmp_path / "data", upstream.openai_url, variables) as proxy,
        httpx.Client(base_url=proxy.url, headers=headers) as client,
    ):
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
        outcomes = [client.post("/v1/chat/completions", json=body).headers["x-knapcache"] for _ in range(3)]
        assert outcomes == ["miss", "hit", "hit"]
        for page in ("/metrics", "/admin/v1/summary", "/admin/v1/openapi.json", "/admin/v1/requests", "/dashboard"):
            response = client.get(page)
            assert response.status_code == 200, page
        assert proxy.problems() == []


def run_tests(package: Path, paths: list[str], ignored: list[str]) -> None:
    """Run tests with another package. Those of the dashboard do not work: their server has all features."""
    variables = {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "--workers", "2", "-p", "no:cacheprovider"]
    command += ["-m", "not long and not features", *(f"--ignore-glob={path}" for path in ignored), *paths]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **variables})


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_tests_of_other_features_pass(name: str, tmp_path: Path) -> None:
    others = [f"tests/features/{other}" for other in NAMES if other != name]
    run_tests(package_without([name], tmp_path), others, ["*/test_dashboard*.py"])


@pytest.mark.long
def test_the_tests_of_the_core_pass_without_any_feature(tmp_path: Path) -> None:
    paths = ["tests/proxy", "tests/attacks", "tests/cli"]
    run_tests(package_without(NAMES, tmp_path), paths, ["*/attacks/features", "*/proxy/dashboard"])
