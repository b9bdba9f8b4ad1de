"""Files of compiled kernels: unused ones are deleted, others stay; the directory is one that can be written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from knapcache import kernel_files
from knapcache.kernel_files import LOCK, MAX_DRAFT_AGE, MAX_UNUSED, RENEW_AFTER, cache_directory, read, sweep, write

DIGEST = 32 * "a"
INSTALLATION = 12 * "b"


@pytest.fixture(autouse=True)
def _uncached_directory() -> Iterator[None]:
    kernel_files._sweep_once.cache_clear()
    cache_directory.cache_clear()
    yield
    cache_directory.cache_clear()


def age(file: Path, seconds: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, (time.time() - seconds,) * 2)
    return file


def test_a_sweep_deletes_what_was_not_used_for_long(tmp_path: Path) -> None:
    old = age(tmp_path / INSTALLATION / f"arrive-{DIGEST}", MAX_UNUSED + 60)
    used = age(tmp_path / INSTALLATION / f"settle-{DIGEST}", MAX_UNUSED - 60)
    draft = age(tmp_path / INSTALLATION / f"settle-{DIGEST}.{16 * 'c'}", MAX_DRAFT_AGE + 60)
    being_written = age(tmp_path / INSTALLATION / f"settle-{DIGEST}.{16 * 'd'}", 60)
    gone = age(tmp_path / ("c" * 12) / f"arrive-{DIGEST}", MAX_UNUSED + 60)
    age(gone.with_name(LOCK), MAX_UNUSED + 60)
    assert sweep(tmp_path, time.time()) == 4
    assert not any(path.exists() for path in (old, draft, gone, gone.parent))
    assert used.exists()
    assert being_written.exists()


def test_a_sweep_deletes_nothing_else(tmp_path: Path) -> None:
    kept = [
        age(tmp_path / name, 10 * MAX_UNUSED)
        for name in (
            f"arrive-{DIGEST}",
            f"photos/arrive-{DIGEST}",
            f"{INSTALLATION}/notes.txt",
            f"{INSTALLATION}/arrive-{DIGEST}.txt",
            f"{INSTALLATION}/deeper/arrive-{DIGEST}",
        )
    ]
    elsewhere = age(tmp_path / "elsewhere" / f"arrive-{DIGEST}", 10 * MAX_UNUSED)
    (tmp_path / (12 * "d")).symlink_to(elsewhere.parent)
    assert sweep(tmp_path, time.time()) == 0
    assert all(path.exists() for path in (*kept, elsewhere))
    assert sweep(tmp_path / "missing", time.time()) == 0


def test_a_sweep_examines_a_limited_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(10):
        age(tmp_path / INSTALLATION / f"kernel{k}-{DIGEST}", 2 * MAX_UNUSED)
    monkeypatch.setattr(kernel_files, "MAX_EXAMINED", 4)
    assert sweep(tmp_path, time.time()) == 4


def test_reading_a_kernel_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / INSTALLATION / f"arrive-{DIGEST}"
    write(file, 32 * b"s", b"code")
    age(file, MAX_UNUSED + 60)
    assert read(file, 32 * b"s") == b"code"
    assert read(file, 32 * b"t") is None
    assert sweep(tmp_path, time.time()) == 0
    age(file, RENEW_AFTER / 2)
    before = file.stat().st_mtime
    read(file, 32 * b"s")
    assert file.stat().st_mtime == before  # renewed once a day, not at every start


def test_a_process_that_writes_a_kernel_sweeps_once(tmp_path: Path) -> None:
    old = age(tmp_path / INSTALLATION / f"arrive-{DIGEST}", MAX_UNUSED + 60)
    write(tmp_path / INSTALLATION / f"settle-{DIGEST}", 32 * b"s", b"code")
    assert not old.exists()
    age(old, MAX_UNUSED + 60)
    write(tmp_path / INSTALLATION / f"settle-{DIGEST}", 32 * b"s", b"code")
    assert old.exists()


def test_a_directory_that_cannot_be_written_is_replaced_by_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("KNAPCACHE_KERNEL_CACHE", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private = tmp_path / f"knapcache-kernels-{os.getuid()}"
    assert cache_directory().parent == private
    assert private.stat().st_mode & 0o777 == 0o700
    # One that others can write is refused: machine code is loaded from it.
    private.chmod(0o777)
    cache_directory.cache_clear()
    assert cache_directory().parent == tmp_path / "file" / "kernels"
    private.rmdir()
    private.symlink_to(tmp_path)
    cache_directory.cache_clear()
    assert cache_directory().parent == tmp_path / "file" / "kernels"


def test_the_configured_directory_is_not_created_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNAPCACHE_KERNEL_CACHE", str(tmp_path / "a" / "kernels"))
    assert cache_directory().parent == tmp_path / "a" / "kernels"
    assert list(tmp_path.iterdir()) == []
