"""Test the package with the other Python versions that pyproject.toml names. `make test-pythons` runs it.

    .venv/bin/python scripts/test_pythons.py [VERSION …]

For each version that is installed on this machine: an environment from the lock files, the installed proxy (start,
miss, hit, SIGTERM), and the tests of TESTS and COMPILED. A version that is not installed is named and left out. So is
the version that runs this script, because `make test` tests it in full.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements-run.lock", "requirements-model.lock", "requirements.lock")
TESTS = [
    "keys",
    "wire",
    "price",
    "exchange",
    "store/sqlite",
    "store/test_contract.py",
    "proxy/settings",
    "proxy/http",
    "integrations/test_anthropic.py",
    "integrations/test_langchain.py",
    "integrations/test_litellm.py",
    "integrations/test_openai.py",
    "integrations/test_transport.py",
    "cli/test_cli_bad_input.py",
    "cli/test_cli_cache.py",
    "cli/test_cli_doctor.py",
    "cli/test_cli_serve.py",
    "cli/test_cli_transfer.py",
]
"""Tests that depend most on the version: argument parser, event loop, types, SQLite, and libraries of others. Kernels
run as Python functions there. Compiling those of all policies would take minutes, and COMPILED tests Numba itself."""
COMPILED = ["test_kernel.py"]


def supported_versions() -> list[str]:
    """Return the versions among the classifiers, such as 3.12."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[1] for line in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", line))]


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version: `python3.12` on the path, or the newest one that pyenv has installed."""
    on_path = [shutil.which(f"python{version}")]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), key=lambda path: path.stat().st_mtime)
    for candidate in filter(None, [*on_path, *map(str, reversed(pyenv))]):
        # A shim of pyenv exists also for a version that is not selected, and fails.
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(candidate)
    return None


def environment(version: str, python: Path) -> Path:
    """Build the environment of a version, unless it has what the locks say. Return its Python."""
    folder = ROOT / f".venv-{version}"
    stamp = folder / ".ready"
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in (*LOCKS, "pyproject.toml"))).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [str(folder / "bin/python"), "scripts/install.py", f"for Python {version}", "five minutes", *LOCKS]
        subprocess.run(install, cwd=ROOT, check=True)
        stamp.write_text(digest, encoding="utf-8")
    return folder / "bin/python"


def test(version: str, python: Path) -> str:
    """Test one version, and return the last lines of pytest. Raises CalledProcessError if something fails."""
    interpreter = environment(version, python)
    variables = os.environ | {"KNAPCACHE_KERNEL_CACHE": str(interpreter.parents[1] / "kernels")}
    subprocess.run([interpreter, "scripts/smoke_test.py"], cwd=ROOT, env=variables, check=True)
    return "; ".join(
        run_pytest(interpreter, tests, variables | {"KNAPCACHE_COMPILE": compiled})
        for tests, compiled in ((TESTS, "0"), (COMPILED, "1"))
    )


def run_pytest(python: Path, tests: list[str], variables: dict[str, str]) -> str:
    """Run tests, print the output, and return its last line. Raises CalledProcessError if a test fails."""
    command = [str(python), "-m", "pytest", "--workers", "2", "-p", "no:cacheprovider"]
    command += [str(Path("tests", name)) for name in tests]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:3])
    return last


def main(chosen: list[str]) -> None:
    """Test the chosen versions, or all but the one that runs this script. Exit code 1 if one fails."""
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    results, failed = [], False
    for version in chosen or [found for found in supported_versions() if found != running]:
        python = find_python(version)
        if python is None:
            results.append(f"Python {version}: not installed, not tested")
            continue
        start = time.monotonic()
        try:
            result = test(version, python)
        except subprocess.CalledProcessError as error:
            result, failed = f"FAILED: {error}", True
        results.append(f"Python {version}: {result} ({time.monotonic() - start:.0f} s with set-up)")
    print("\n".join(results))
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
