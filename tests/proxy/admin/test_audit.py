"""The audit log: its files, their bounds, and several writers."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from knapcache.proxy.admin.audit import ACTIONS, REFUSED, AuditLog, new_record

CAPACITY = 1 << 16


def record(action: str = "purge", **fields: Any) -> dict[str, Any]:
    who = {"name": "admin", "role": "operator", "address": "127.0.0.1", "session": ""}
    return new_record(action, **(who | {"parameters": {}, "status": 200} | fields))


def test_records_are_lines_of_json_and_newest_come_first(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, CAPACITY)
    for k in range(5):
        log.append({**record(parameters={"model": f"line\nbreak {k}"}), "time": f"2026-01-01T00:00:0{k}.000Z"})
    lines = (tmp_path / ACTIONS).read_text().splitlines()
    assert [json.loads(line)["parameters"]["model"] for line in lines] == [f"line\nbreak {k}" for k in range(5)]
    assert [row["parameters"]["model"] for row in log.newest(2)] == ["line\nbreak 4", "line\nbreak 3"]
    assert (tmp_path / ACTIONS).stat().st_mode & 0o777 == 0o600


def test_the_two_lines_of_a_change_are_one_record(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, CAPACITY)
    begun = record(status=None)
    log.append(begun)
    assert [row["status"] for row in log.newest(10)] == [None]
    log.append({**begun, "status": 200, "result": {"purged": 3}})
    assert [(row["status"], row["result"]) for row in log.newest(10)] == [(200, {"purged": 3})]


def test_the_files_stay_within_their_capacity(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, CAPACITY)
    for k in range(1000):
        log.append(record(parameters={"key": f"{k:064}"}))
        if k % 50 == 0:
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= CAPACITY
    assert sorted(path.name for path in tmp_path.iterdir()) == [ACTIONS, f"{ACTIONS}.1"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= CAPACITY // 4
    keys = [int(row["parameters"]["key"]) for row in log.newest(60)]
    assert set(keys) <= set(range(900, 1000))


def test_a_flood_of_refused_requests_displaces_no_action(tmp_path: Path) -> None:
    now = [0.0]
    log = AuditLog(tmp_path, CAPACITY, lambda: now[0])
    log.append(record("purge"))
    written = 0
    for minute in range(30):
        now[0] = 60.0 * minute
        for k in range(500):
            if log.allow_refused(f"10.0.{k % 250}.1"):
                log.append_refused(record("login", status=401))
                written += 1
    assert written == 30 * 60
    assert "purge" in (tmp_path / ACTIONS).read_text()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= CAPACITY
    parts = [(tmp_path / name).read_text() for name in (f"{REFUSED}.1", REFUSED)]
    refused = [json.loads(line) for part in parts for line in part.splitlines()]
    assert {row["skipped"] for row in refused} == {0, 440}


def test_one_address_cannot_use_up_the_records_of_others(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, CAPACITY, lambda: 0.0)
    assert sum(log.allow_refused("10.0.0.1") for _ in range(100)) == 10
    assert log.allow_refused("10.0.0.2")


def test_a_line_that_was_cut_does_not_damage_the_next(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, CAPACITY)
    log.append(record("first"))
    with (tmp_path / ACTIONS).open("ab") as file:
        file.write(b'{"id": "cut')
    log.append(record("second"))
    assert {row["action"] for row in log.newest(10)} == {"first", "second"}


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ACTIONS).symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        AuditLog(tmp_path / "data", CAPACITY).append(record())
    assert target.read_text() == "precious"


def _write(folder: Path, number: int) -> None:
    log = AuditLog(folder, 1 << 18)
    for k in range(100):
        log.append(record(parameters={"writer": number, "k": k, "text": "x" * 200}))


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write, args=(tmp_path, number)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines = [line for name in (f"{ACTIONS}.1", ACTIONS) for line in (tmp_path / name).read_text().splitlines()]
    found = [(row["parameters"]["writer"], row["parameters"]["k"]) for row in map(json.loads, lines)]
    assert sorted(found) == [(number, k) for number in range(2) for k in range(100)]


def test_without_a_directory_the_newest_records_are_in_memory() -> None:
    log = AuditLog(None, CAPACITY)
    for k in range(1200):
        log.append(record(parameters={"k": k}))
    assert len(log.newest(500)) == 500
    assert len(log._memory[ACTIONS]) == 1000
