"""The image itself, built by buildah on a Debian from debootstrap: no daemon and no registry is needed, but root is.

The containers run in a chroot, with the network of this machine.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_containers import ask, is_ready
from tests.support.front_proxies import free_port
from tests.support.programs import find_program, skip_without
from tests.support.timing import wait_until

pytestmark = [pytest.mark.tools, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
TAG = "knapcache:test"
QUESTION = {"model": "smollm2-135m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello?"}]}


def pip_volumes(folder: Path) -> list[str]:
    """Return options of `buildah build` that give pip in the image the configuration of this machine's pip."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        values[name.rpartition(".")[2]] = ast.literal_eval(value)
    config = folder / "pip.conf"
    config.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    words = [word for value in values.values() for word in value.split()]
    places = {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file://")}
    places |= {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    return [f"--volume={config}:/etc/pip.conf:ro", *(f"--volume={place}:{place}:ro" for place in sorted(places))]


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The name of the image, in a storage of its own."""
    for program in ("buildah", "debootstrap"):
        find_program(program, f"Debian's package {program}")
    if os.geteuid() != 0:
        skip_without("root", "debootstrap and chroot")
    place = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="knapcache-image-")
    with place as name, pytest.MonkeyPatch.context() as patched:
        folder = Path(name)
        places = f'runroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
        (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{places}')
        patched.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patched.setenv("BUILDAH_ISOLATION", "chroot")
        script = str(ROOT / "scripts" / "build_image.py")
        subprocess.run([sys.executable, script, "--debian", "--tag", TAG, *pip_volumes(folder)], check=True)
        yield TAG


@pytest.fixture
def container(image: str) -> Iterator[str]:
    """A container of the image."""
    name = buildah("from", "--pull-never", image)
    yield name
    buildah("rm", name)


def buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_the_image_serves_a_miss_and_a_hit_without_root(container: str, tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", TAG))["Docker"]["config"]
    assert config["User"] == "10001:10001"
    assert [*config["Entrypoint"], *config["Cmd"]] == ["knapcache", "serve"]
    check = config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    port, log = free_port(), tmp_path / "log.txt"
    variables = [f"--env=KNAPCACHE_PORT={port}", "--env=KNAPCACHE_ALLOW_ANONYMOUS=true"]
    with log.open("w") as file:
        command = [str(shutil.which("buildah")), "run", *variables, container, "--", "knapcache", "serve"]
        process = subprocess.Popen(command, stderr=file, start_new_session=True)
    try:
        wait_until(lambda: is_ready(port, process), "readiness", seconds=120)
        assert b"Uid:\t10001\t10001\t10001\t10001\n" in status_of_listener(port)
        buildah("run", *variables, container, "--", *check[1:])
        answers = [ask(port, "POST", "/v1/chat/completions", QUESTION) for _ in range(2)]
        assert [(one.status_code, one.headers.get("x-knapcache")) for one in answers] == [(200, "miss"), (200, "hit")]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    text = log.read_text(encoding="utf-8")
    assert "uncompiled kernels" not in text, "the image does not have all kernels"
    assert "Z error " not in text, text


def status_of_listener(port: int) -> bytes:
    """Return what the kernel says of the process that listens on a port."""
    listed = subprocess.run(["ss", "-ltnpH", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return Path("/proc", listed.partition("pid=")[2].partition(",")[0], "status").read_bytes()
