"""Every example runs offline and prints the expected lines. The Python code of the docs runs, too."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.warm_python import WarmPython

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
CODE = {
    str(page.relative_to(ROOT)): found
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (found := re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
}
"""Python code by page."""
RUN = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"
IGNORE = "import warnings; warnings.simplefilter('ignore')\n"
EXPECTED = {
    "anthropic_sdk.py": ["stream - You said: What is a knapsack?", "hit - You said: What is a knapsack?", "1 of 2"],
    "langchain_cache.py": ["A bag.", "A bag.", "1 of 2 from the cache"],
    "openai_sdk.py": [
        "miss - You said: What is a knapsack?",
        "hit - You said: What is a knapsack?",
        "stream - You said: What is a knapsack?",
        "2 of 3",
    ],
    "plain_function.py": ["A knapsack holds what", "A knapsack holds what", "1 of 2 from the cache, 0.2 seconds saved"],
}


def test_every_example_has_expected_output() -> None:
    elsewhere = ["litellm_transport.py"]  # test_litellm.py
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted([*EXPECTED, *elsewhere])


@pytest.fixture(scope="module")
def python(warm: WarmPython) -> WarmPython:
    """A Python that has imported the SDKs, which takes seconds."""
    warm.preload("anthropic", "openai", "langchain_core.language_models", "starlette.applications", "uvicorn")
    return warm


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, python: WarmPython) -> None:
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")} | {"KNAPCACHE_COMPILE": "0"}
    done = python.run("-c", IGNORE + RUN, EXAMPLES / name, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(EXPECTED[name]), done.stdout
    for line, start in zip(lines, EXPECTED[name], strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize("page", CODE)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, python: WarmPython) -> None:
    """Each block has names of its own. Live caches decide the same without compiled kernels, and start faster."""
    scripts = [tmp_path / f"example_{k}.py" for k in range(len(CODE[page]))]
    for script, code in zip(scripts, CODE[page], strict=True):
        script.write_text(code, encoding="utf-8")
    replays = any(name in "".join(CODE[page]) for name in ("knapcache.lab", "knapcache.oracle", "import oracle"))
    done = python.run("-c", RUN, *scripts, cwd=tmp_path, env=os.environ | {"KNAPCACHE_COMPILE": str(int(replays))})
    assert done.returncode == 0, done.stderr
