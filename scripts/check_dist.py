"""Checks the wheel and the sdist in a folder: metadata, files, a second build, the program. `make dist` runs it.

    python scripts/check_dist.py dist

The wheel is installed into an empty virtual environment and used as a user would: the command line, the library, and
with the extra `serve` the proxy. The sdist is installed into another one. pip gets the dependencies from where it is
configured to get them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
SMOKE_TEST = ROOT / "scripts" / "smoke_test.py"
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
SDIST_FILES = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "requirements.lock", "Makefile"}
"""Files that an sdist must have, besides the packages: it must be possible to build and test it."""
ROUND_TRIP = """
from knapcache import Cache
calls = []
with Cache("2MB", path="answers.db", cost="seconds") as cache:
    @cache.cached
    def shout(text: str) -> str:
        calls.append(text)
        return text.upper()
    assert [shout("knapsack"), shout("knapsack")] == ["KNAPSACK", "KNAPSACK"]
    assert calls == ["knapsack"], calls
    print(cache.stats().hits, "hit,", cache.stats().entries, "entry")
"""
INSTALLED_FILES = """
from importlib.metadata import files
print(*(str(file) for file in files("knapcache") if file.parts[0].startswith("knapcache")), sep="\\n")
"""
TRACE = "time,key,size,cost\n" + "".join(f"{k},{k * k % 7},100,1\n" for k in range(50))


def project() -> tuple[str, str]:
    """Return the name and the version in pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table["name"], table["version"]


def packaged_files() -> set[str]:
    """Return the files that the wheel must have, as git knows them: the sources, their data, and py.typed."""
    found = set()
    for folder, package in (("src", "knapcache"), ("experiments", "knapcache_experiments")):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", f"{folder}/{package}"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found |= {name.removeprefix(f"{folder}/") for name in listed.split("\0") if name and (ROOT / name).is_file()}
    return found


def wheel_problems(names: set[str], expected: set[str]) -> list[str]:
    """Compare the files of a wheel with those that it must have. `names` may not have other files."""
    name, version = project()
    expected = expected | {f"{name}-{version}.dist-info/{file}" for file in DIST_INFO}
    return [f"missing: {file}" for file in sorted(expected - names)] + [
        f"unexpected: {file}" for file in sorted(names - expected)
    ]


def metadata_problems(raw: bytes) -> list[str]:
    """Validate metadata with the rules that package indexes apply."""
    name, version = project()
    try:
        found = Metadata.from_email(raw, validate=True)
    except ExceptionGroup as errors:
        return [str(error) for error in errors.exceptions]
    problems = []
    if (found.name, found.version) != (name, Version(version)):
        problems.append(f"metadata are of {found.name} {found.version}, pyproject.toml is of {name} {version}")
    if not (found.description and found.description_content_type == "text/markdown"):
        problems.append("the description must be the README, as text/markdown")
    if (found.license_expression, found.license_files) != ("Apache-2.0", ["LICENSE"]):
        problems.append(f"licence {found.license_expression} with files {found.license_files}")
    return problems


def report(title: str, problems: list[str]) -> None:
    """Print a check that passed, or end the program with the problems."""
    if problems:
        raise SystemExit("\n".join([f"failed: {title}", *(f"  {problem}" for problem in problems)]))
    print(f"passed: {title}")


def expect(text: str, output: str, title: str) -> None:
    """Check that a program printed a text."""
    report(title, [] if text in output else [f"{text!r} is not in its output: {output}"])


def only(folder: Path, pattern: str) -> Path:
    """Return the only file of a folder with this pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} must have one file {pattern}, not {len(found)}; `make dist` builds it")
    return found[0]


class FreshEnvironment:
    """An empty virtual environment, with a working directory of its own. The checkout is not importable in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        venv.create(folder / "venv", with_pip=True)
        dropped = ("PYTHON", "KNAPCACHE_", "VIRTUAL_ENV")
        self._variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self._variables["KNAPCACHE_KERNEL_CACHE"] = str(folder / "kernels")  # nothing stays behind in the user's cache
        self._variables["PATH"] = os.pathsep.join((str(self._bin), self._variables.get("PATH", "")))

    def run(self, program: str, *arguments: str, expected_code: int = 0, activated: bool = True) -> str:
        """Run a program of the environment, print the command, and return its output.

        activated   whether the path leads to the environment's programs
        """
        shown = " ".join(argument if "\n" not in argument else "'…'" for argument in arguments)
        print(f"$ {program} {shown}", flush=True)
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd=self.folder,
            env=self._variables | ({} if activated else {"PATH": os.defpath}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != expected_code:
            raise SystemExit(f"exit code {done.returncode}, expected {expected_code}:\n{done.stdout}")
        return done.stdout

    def install(self, *requirements: str) -> None:
        """Install packages with pip."""
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)


def check_files(wheel: Path, sdist: Path) -> None:
    """Check metadata and file lists, without installing anything."""
    name, version = project()
    prefix = f"{name}-{version}"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        report(f"{wheel.name}: {len(names)} files, those of the packages", wheel_problems(names, packaged_files()))
        report(f"{wheel.name}: metadata", metadata_problems(archive.read(f"{prefix}.dist-info/METADATA")))
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(member).relative_to(prefix)) for member in archive.getnames() if "/" in member}
        required = SDIST_FILES | {f"src/{file}" for file in packaged_files() if file.startswith("knapcache/")}
        report(f"{sdist.name}: {len(names)} files", [f"missing: {file}" for file in sorted(required - names)])
        member = archive.extractfile(f"{prefix}/PKG-INFO")
        assert member is not None
        report(f"{sdist.name}: metadata", metadata_problems(member.read()))


def check_reproducible(files: list[Path], folder: Path) -> None:
    """Build again, with another time zone and other file modes, and compare the digests."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    variables = os.environ | {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "1"}
    subprocess.run(command, cwd=ROOT, env=variables, umask=0o077, capture_output=True, check=True)
    for file in files:
        first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, folder / file.name))
        report(f"{file.name}: two builds are equal, SHA-256 {first}", [] if first == second else [f"not {second}"])


def check_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel, and use the command line, the library and the proxy."""
    name, version = project()
    environment = FreshEnvironment(folder)
    environment.install(str(wheel))
    expect(f"{name} {version}\n", environment.run("knapcache", "--version"), "the command has this version")
    expect("serve", environment.run("knapcache", "--help"), "--help lists the commands")
    expect("adaptive", environment.run("knapcache", "policies"), "the default policy is listed")
    (environment.folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    replayed = environment.run("knapcache", "replay", "trace.csv", "--policy", "lru", "--capacity", "300")
    expect("lru", replayed, "the lab replays a log")
    expect("1 hit", environment.run("python", "-c", ROUND_TRIP), "the library returns a stored answer")
    for activated in (True, False):
        refused = environment.run("knapcache", "serve", expected_code=2, activated=activated)
        hint = refused.partition("proxy needs ")[2].partition(": ")[2].strip()
        expect("knapcache[serve]", hint, "the proxy names the extra that is missing")
        arguments = shlex.split(hint)
        report(f"the hint is {hint}", [] if (arguments[0] == "pip") == activated else ["it is for another environment"])
    # Of the installed package: pip finds it satisfied and adds what the extra needs.
    environment.run(*arguments, "--quiet", "--disable-pip-version-check")
    print(environment.run("python", str(SMOKE_TEST)).rstrip())
    print("passed: the proxy serves a miss and a hit")


def check_sdist(sdist: Path, folder: Path) -> None:
    """Install the sdist, run the command, and compare the installed files with those of the wheel."""
    name, version = project()
    environment = FreshEnvironment(folder)
    environment.install(str(sdist))
    expect(
        f"{name} {version}\n", environment.run("knapcache", "--version"), "the command from the sdist has this version"
    )
    installed = set(environment.run("python", "-c", INSTALLED_FILES).split())
    missing = packaged_files() - installed
    report("the sdist installs the same files as the wheel", [f"missing: {file}" for file in sorted(missing)])


def main() -> None:
    """Check the files of the folder that is named on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/check_dist.py FOLDER")
    folder = Path(sys.argv[1]).resolve()
    wheel, sdist = only(folder, "*.whl"), only(folder, "*.tar.gz")
    check_files(wheel, sdist)
    # A process that compiles kernels may still write there.
    with tempfile.TemporaryDirectory(prefix="knapcache-dist-", ignore_cleanup_errors=True) as place:
        check_reproducible([wheel, sdist], Path(place, "again"))
        check_wheel(wheel, Path(place, "wheel"))
        check_sdist(sdist, Path(place, "sdist"))
    print(f"\n{wheel.name} and {sdist.name} work.")


if __name__ == "__main__":
    main()
