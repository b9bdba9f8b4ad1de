"""SQLite files of the proxy beside its store: links in their place, and files of another program."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from knapcache.errors import StoreError
from knapcache.features.content_log.file import ContentFile, LogFilter
from knapcache.features.limits.core import CallAmounts
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.store.sqlite.rows import Sealer
from tests.support.timing import within

PRECIOUS = "a file of another program\n"
SUFFIXES = ("", "-wal", "-shm", "-journal", ".lock")


def use_limits(path: Path) -> None:
    with closing(SqliteCounts(path, "this process")) as counts:
        counts.beat({"tenant": CallAmounts(1, 0.5, 10.0)}, 1e9)
        counts.check()


def use_semantic(path: Path) -> None:
    with closing(SqliteLog(path, Sealer(b"secret"), 400)) as log:
        log.read_questions()
        log.read_labels()
        log.append([], [])
        log.check()


def use_content(path: Path) -> None:
    with closing(ContentFile(path, 1 << 20, 1e9)) as file:
        file.expire()
        file.search(LogFilter(text="x"), 10)
        file.count(LogFilter())


USES: dict[str, Callable[[Path], None]] = {
    "limits.sqlite": use_limits,
    "semantic.sqlite": use_semantic,
    "content.sqlite": use_content,
}


@pytest.mark.parametrize("exists", [True, False], ids=["existing-target", "missing-target"])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", USES)
def test_symbolic_links_are_not_followed(tmp_path: Path, name: str, suffix: str, exists: bool) -> None:
    path, target = tmp_path / "data" / name, tmp_path / "target"
    path.parent.mkdir()
    link = Path(f"{path}{suffix}")
    if exists:
        target.write_text(PRECIOUS)
        target.chmod(0o644)
    link.symlink_to(target)
    with pytest.raises(StoreError, match="is a symbolic link, which is not followed") as refused:
        USES[name](path)
    assert str(link) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert exists == target.exists()
    assert link.is_symlink()
    if exists:
        assert target.read_text() == PRECIOUS
        assert stat.S_IMODE(target.stat().st_mode) == 0o644
    link.unlink()
    USES[name](path)
    assert {oct(stat.S_IMODE(each.stat().st_mode)) for each in path.parent.iterdir()} == {"0o600"}


TABLES = {"limits.sqlite": "used", "semantic.sqlite": "labels", "content.sqlite": "calls"}
LOOP = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
HOSTILE_SQL: dict[str, str | dict[str, str]] = {
    "a trigger": "CREATE TRIGGER t AFTER DELETE ON {table} BEGIN DELETE FROM {table}; END",
    "a view instead of a table": f"DROP TABLE {{table}}; CREATE VIEW {{table}} AS {LOOP}",
    "a generated column": "ALTER TABLE {table} ADD COLUMN g AS (hex(zeroblob(100000000)))",
    "other types": {
        "limits.sqlite": "INSERT INTO used (scope, kind, slot, amount) VALUES ('tenant', 'day', 11574, 'many')",
        "semantic.sqlite": "INSERT OR REPLACE INTO meta VALUES ('mark', 7), ('epoch', x'ff00'), ('key', 'x')",
        "content.sqlite": "PRAGMA user_version = 1",
    },
    "huge values": {
        "limits.sqlite": "INSERT INTO used (scope, kind, slot, amount) VALUES (zeroblob(30000000), 'day', 1, 1.0)",
        "semantic.sqlite": "INSERT INTO labels (record) VALUES (zeroblob(30000000))",
        "content.sqlite": "INSERT INTO calls "
        "SELECT 5, 4e9, 't', 'm', 'e', 'r', 'o', 1, 0, 'k', 'u', 0, 0, 0, 0, 0, 0, 0, zeroblob(30000000), "
        "x''; INSERT INTO texts (rowid, prompt, answer) VALUES (5, 'x', hex(zeroblob(4000000)))",
    },
    "the name of another program": "PRAGMA application_id = 7",
}
JOURNAL = bytes.fromhex("d9d505f920a163d7") + bytes(4096)
"""A rollback journal, which SQLite would apply, and which names a file to delete."""


def make_hostile(path: Path, attack: str) -> None:
    if attack == "a journal":
        Path(f"{path}-journal").write_bytes(JOURNAL)
    elif attack == "damaged pages":
        content = bytearray(path.read_bytes())
        content[200:] = Random(1).randbytes(len(content) - 200)
        path.write_bytes(content)
    else:
        found = HOSTILE_SQL[attack]
        text = found if isinstance(found, str) else found[path.name]
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = 1")
            connection.executescript(text.format(table=TABLES[path.name]))


@pytest.mark.parametrize("attack", [*HOSTILE_SQL, "damaged pages", "a journal"])
@pytest.mark.parametrize("name", USES)
def test_a_hostile_file_gives_one_clear_error_or_a_new_file(tmp_path: Path, name: str, attack: str) -> None:
    path = tmp_path / name
    USES[name](path)
    make_hostile(path, attack)
    with within(20.0, "the use of a hostile file"):
        for _ in range(2):  # the first use may find the damage, and replace the file
            try:
                USES[name](path)
            except StoreError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert str(path) in str(error)  # noqa: PT017
                refusal = str(error)
            else:
                refusal = ""
    # A content log is not replaced for another program's file, or for one line that is too long.
    assert not refusal or (name == "content.sqlite" and ("another program" in refusal or "too big" in refusal)), refusal
