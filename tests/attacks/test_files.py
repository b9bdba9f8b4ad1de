"""Attacks on the proxy's files by other users of the machine: modes, symbolic links, output that others read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.run import run
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import data_directory
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import chat, exchange
from tests.support.recording_upstream import RecordingUpstream

PRECIOUS = "a file of another program\n"


def refusal(folder: Path) -> str:
    """Start the proxy as `knapcache serve` does, and return why it refuses the start."""
    with pytest.raises(InvalidInput) as refused:
        run(Settings(path=folder, port=0, upstreams=[{"url": "http://127.0.0.1:9/v1"}]))
    return str(refused.value)


def modes_below(folder: Path) -> dict[Path, int]:
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def test_files_are_private_under_umask_000(upstream: RecordingUpstream, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "below" / "data"
    before = os.umask(0)
    try:
        process = ProxyProcess(folder, upstream.openai_url, environment={"KNAPCACHE_ADMIN_TOKEN": ""}, workers=2)
    finally:
        os.umask(before)
    with process:
        exchange(process.url, chat("hello"))
        token = (folder / "admin-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.post(f"{process.url}/admin/v1/snapshot", headers=headers, timeout=60).status_code == 200
        modes = modes_below(tmp_path)
    modes |= modes_below(tmp_path)  # history.json is written at the end
    names = {path.name for path in modes}
    assert {"secret", "admin-token", "cache.sqlite", "history.json", "requests.csv", "owner.sock"} <= names
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_the_admin_token_is_not_printed_to_a_pipe(upstream: RecordingUpstream, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "knapcache", "serve", "--port", "0", "--path", str(tmp_path)]
    command += [
        "--upstream",
        upstream.openai_url,
        "--policy",
        "lru",
        "--set",
        "shadows=lru",
        "--set",
        "log_level=debug",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("dashboard"):
                break
        process.terminate()
        lines += process.stdout.readlines()
    assert (tmp_path / "admin-token").read_text().strip() not in "".join(lines)
    assert f"(the token is in {tmp_path}/admin-token)" in "".join(lines)


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702, 0o1777])
def test_a_data_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert f"other users can write to {tmp_path} (mode {mode:04o}); run chmod go-w" in refusal(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


def test_a_data_directory_that_its_group_can_write_to_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o770)
    assert data_directory(tmp_path) == tmp_path
    assert f"{tmp_path} has mode 0770; run chmod g-w" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_data_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    assert f"{tmp_path} belongs to another user (uid 12345)" in refusal(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["admin-token", "secret", "serve.lock", "cache.sqlite"])
@pytest.mark.parametrize("exists", [True, False], ids=["existing-target", "missing-target"])
def test_symbolic_links_are_not_followed(tmp_path: Path, name: str, exists: bool) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir(mode=0o700)
    if exists:
        target.write_text(PRECIOUS)
        target.chmod(0o644)
    (data / name).symlink_to(target)
    assert "is a symbolic link, which is not followed" in refusal(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", *["target"][:exists]]
    assert exists == target.exists()
    if exists:
        assert target.read_text() == PRECIOUS
        assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert (data / name).is_symlink()


def test_a_symbolic_link_as_request_log_is_not_followed(upstream: RecordingUpstream, tmp_path: Path) -> None:
    target, log = tmp_path / "target", tmp_path / "data" / "requests"
    log.mkdir(parents=True, mode=0o700)
    target.write_text(PRECIOUS)
    target.chmod(0o644)
    (log / "requests.csv").symlink_to(target)
    with ProxyProcess(tmp_path / "data", upstream.openai_url) as process:
        (response,) = exchange(process.url, chat("hello"))
        assert response.status == 200
    assert target.read_text() == PRECIOUS
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["admin-token", "secret"])
def test_a_pipe_in_place_of_a_secret_does_not_hang_the_start(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name, 0o600)
    assert "it is not a regular file" in refusal(tmp_path)
