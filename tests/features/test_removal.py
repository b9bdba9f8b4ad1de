"""Without the folder of a feature and its line in the list, the rest of the proxy works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


def package_without(name: str, folder: Path) -> Path:
    """Return a folder with a copy of the package without a feature."""
    source = ROOT / "src" / "knapcache"
    removed = source / "features" / name

    def ignored(directory: str, names: list[str]) -> list[str]:
        return [each for each in names if Path(directory) / each == removed or each == "__pycache__"]

    shutil.copytree(source, folder / "knapcache", ignore=ignored)
    listed = folder / "knapcache" / "proxy" / "feature_list.py"
    text = listed.read_text(encoding="utf-8")
    line = f'    "knapcache.features.{name}.spec",\n'
    assert line in text
    listed.write_text(text.replace(line, ""), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_of_the_proxy_works(name: str, tmp_path: Path) -> None:
    path = package_without(name, tmp_path / "package")
    variables = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
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


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_other_tests_pass(name: str, tmp_path: Path) -> None:
    """Tests of the feature are in its folder below tests/features, or have the mark `feature` with its name."""
    path = package_without(name, tmp_path / "package")
    variables = {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command += ["--ignore", f"tests/features/{name}", "--ignore", str(Path(__file__).relative_to(ROOT))]
    command += ["tests/proxy", "tests/features", "tests/attacks", "tests/cli"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **variables})
