"""Generated secrets: created once, readable only by the owner, never replaced."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from knapcache import InvalidInput
from knapcache.proxy.settings.secrets import (
    ID,
    SECRET,
    TOKEN,
    admin_token,
    append_all,
    check_data_directory,
    data_directory,
    digest_of,
    open_private,
    proxy_id,
    replace_token,
    server_secret,
    write_token,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_created_once_with_restricted_modes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = data_directory(tmp_path / "a" / "b")
    assert mode(folder) == 0o700
    secret, token = server_secret(folder), admin_token(folder)
    assert len(secret) == 32
    assert len(token) >= 40
    assert (server_secret(folder), admin_token(folder)) == (secret, token)
    assert sorted(path.name for path in folder.iterdir()) == [TOKEN, SECRET]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert caplog.text == "", "no other user could read them, not even at first"
    assert data_directory(folder) == folder


def test_each_directory_has_its_own_secrets(tmp_path: Path) -> None:
    a, b = (data_directory(tmp_path / name) for name in "ab")
    assert server_secret(a) != server_secret(b)
    assert admin_token(a) != admin_token(b)


def test_a_configured_token_is_used_and_not_stored(tmp_path: Path) -> None:
    assert admin_token(tmp_path, "token-of-the-settings") == "token-of-the-settings"
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_secrets_are_new() -> None:
    assert server_secret(None) != server_secret(None)
    assert admin_token(None) != admin_token(None)
    assert admin_token(None, "configured") == "configured"


def test_concurrent_processes_use_one_secret(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from knapcache.proxy.settings.secrets import server_secret as s; "
        "sys.stdin.read(); print(s(Path(sys.argv[1])).hex())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    outputs = set()
    for process in processes:
        assert process.stdout is not None
        outputs.add(process.stdout.read())
        process.stdout.close()
        assert process.wait(30) == 0
    assert outputs == {server_secret(tmp_path).hex().encode() + b"\n"}
    assert [path.name for path in tmp_path.iterdir()] == [SECRET], "temporary files are left"


def test_permissions_of_a_readable_secret_are_restricted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = server_secret(tmp_path)
    (tmp_path / SECRET).chmod(0o644)
    assert server_secret(tmp_path) == secret
    assert mode(tmp_path / SECRET) == 0o600
    assert "could be read by other users" in caplog.text
    assert secret.hex() not in caplog.text


@pytest.mark.parametrize("content", [b"", b"00", b"\xff" * 64, b"g" * 64, b"0" * 65])
def test_a_damaged_secret_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SECRET).write_bytes(content)
    with pytest.raises(InvalidInput, match="must be 64 hex digits; restore it") as error:
        server_secret(tmp_path)
    assert (tmp_path / SECRET).read_bytes() == content
    message = str(error.value).replace(str(tmp_path), "")  # whose name may contain the same digits
    assert not content or content.decode(errors="replace") not in message


def test_a_damaged_token_is_rejected(tmp_path: Path) -> None:
    (tmp_path / TOKEN).write_text("\n")
    with pytest.raises(InvalidInput, match="at least 16 printable ASCII characters"):
        admin_token(tmp_path)


def test_an_unusable_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match="file is a file; the data directory must be a directory"):
            data_directory(path)
    (tmp_path / SECRET).mkdir()
    with pytest.raises(InvalidInput, match="cannot read or create"):
        server_secret(tmp_path)


@pytest.mark.parametrize(("bits", "logged"), [(0o770, True), (0o755, False)])
def test_a_directory_that_a_group_may_write_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bits: int, logged: bool
) -> None:
    tmp_path.chmod(bits)
    assert data_directory(tmp_path) == tmp_path
    assert ("writable by its group" in caplog.text) is logged


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="this user cannot write to"):
        data_directory(tmp_path)


def test_a_secret_that_cannot_be_created_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(InvalidInput, match="No space left on device"):
        server_secret(tmp_path)


def test_a_missing_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read the data directory .*: No such file"):
        check_data_directory(tmp_path / "missing")


def test_the_id_of_a_proxy_is_created_once_and_never_repaired(tmp_path: Path) -> None:
    found = proxy_id(tmp_path)
    assert len(found) == 16
    assert proxy_id(tmp_path) == found
    (tmp_path / ID).write_text("no id\n")
    with pytest.raises(InvalidInput, match="must be 16 hex digits; delete it"):
        proxy_id(tmp_path)


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / TOKEN).mkdir()
    with pytest.raises(IsADirectoryError):
        replace_token(tmp_path / TOKEN)
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN], "temporary files are left"
    with pytest.raises(InvalidInput, match="cannot read or create"):
        write_token(tmp_path, "a-token")
    (tmp_path / TOKEN).rmdir()
    for token in ("a-token", "a-token", "another-token"):
        write_token(tmp_path, token)
        assert (tmp_path / TOKEN).read_text() == f"{token}\n"


def test_data_is_appended_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "file", os.write
    descriptor, sizes = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), [3, 4]

    def write_some(file: int, data: bytes) -> int:
        if not sizes:
            raise OSError(errno.ENOSPC, "full")
        return write(file, data[: sizes.pop()])

    monkeypatch.setattr(os, "write", write_some)
    append_all(descriptor, b"1234567", 0)
    sizes.append(2)
    with pytest.raises(OSError, match="full"):
        append_all(descriptor, b"890", 7)
    os.close(descriptor)
    assert path.read_bytes() == b"1234567"


def test_a_digest_is_the_sha256_of_the_key() -> None:
    assert digest_of("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
