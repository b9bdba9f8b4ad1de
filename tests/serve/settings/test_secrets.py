"""Secrets: made once, by whoever is first, for nobody else to read, and never replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from knapcache import InvalidInput
from knapcache.serve.settings.secrets import SECRET, TOKEN, admin_token, data_directory, digest_of, server_secret


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_made_once(tmp_path: Path) -> None:
    folder = data_directory(tmp_path / "a" / "b")
    assert mode(folder) == 0o700
    secret, token = server_secret(folder), admin_token(folder)
    assert len(secret) == 32
    assert len(token) >= 40
    assert (server_secret(folder), admin_token(folder)) == (secret, token)
    assert sorted(path.name for path in folder.iterdir()) == [TOKEN, SECRET]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert data_directory(folder) == folder


def test_two_folders_have_two_secrets(tmp_path: Path) -> None:
    a, b = (data_directory(tmp_path / name) for name in "ab")
    assert server_secret(a) != server_secret(b)
    assert admin_token(a) != admin_token(b)


def test_a_given_token_wins_and_leaves_no_file(tmp_path: Path) -> None:
    assert admin_token(tmp_path, "given-by-the-settings") == "given-by-the-settings"
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_outlives_the_process() -> None:
    assert server_secret(None) != server_secret(None)
    assert admin_token(None) != admin_token(None)
    assert admin_token(None, "given") == "given"


def test_many_processes_agree(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from knapcache.serve.settings.secrets import server_secret as s; sys.stdin.read(); print(s(Path(sys.argv[1])).hex())"  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    said = set()
    for process in started:
        assert process.stdout is not None
        said.add(process.stdout.read())
        process.stdout.close()
        assert process.wait(30) == 0
    assert said == {server_secret(tmp_path).hex().encode() + b"\n"}
    assert [path.name for path in tmp_path.iterdir()] == [SECRET], "no drafts are left"


def test_a_file_that_others_can_read_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = server_secret(tmp_path)
    (tmp_path / SECRET).chmod(0o644)
    assert server_secret(tmp_path) == secret
    assert mode(tmp_path / SECRET) == 0o600
    assert "could be read by other users" in caplog.text
    assert secret.hex() not in caplog.text


@pytest.mark.parametrize("content", [b"", b"00", b"\xff" * 64, b"g" * 64, b"0" * 65])
def test_a_damaged_secret_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SECRET).write_bytes(content)
    with pytest.raises(InvalidInput, match="must be 64 hex digits: restore it") as error:
        server_secret(tmp_path)
    assert (tmp_path / SECRET).read_bytes() == content
    assert not content or content.decode(errors="replace") not in str(error.value)


def test_a_damaged_token_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / TOKEN).write_text("\n")
    with pytest.raises(InvalidInput, match="16 or more printable characters"):
        admin_token(tmp_path)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match="the data directory cannot be made"):
            data_directory(path)
    (tmp_path / SECRET).mkdir()
    with pytest.raises(InvalidInput, match="cannot be read or made"):
        server_secret(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        data_directory(tmp_path)


def test_digest() -> None:
    assert digest_of("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
