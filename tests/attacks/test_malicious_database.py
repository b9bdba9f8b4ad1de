"""A cache file written by somebody who can write the file but does not know the secret.

Whatever is in it: no answer but those that we wrote, nothing executed, no crash, bounded time and memory, and a store
that works afterwards.
"""

from __future__ import annotations

import itertools
import random
import resource
import shutil
import sqlite3
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.sqlite.change_log import CHANGES_ROW
from knapcache.store.sqlite.database import MIGRATIONS
from knapcache.store.sqlite.files import APPLICATION_ID, FORMAT_ROW
from knapcache.store.sqlite.layout import PAGE
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.snapshot_rows import SNAPSHOT_ROW
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
from tests.support.timing import check_seconds

SIZE_LIMIT = 8 << 20
SECRET = b"the deployment's secret"
NAMES = range(40)
MAX_SECONDS = 20.0
"""Hostile trees would take years; an honest file takes milliseconds."""
MAX_MEMORY = 300 << 20


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "answers.db"
    with open_store(path) as store:
        for name in NAMES:
            store.apply(entry_of(store, name, 3000, expires=4e9 if name % 2 else None), snapshot=b"policy")
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A closed store with NAMES."""
    shutil.copy(original, tmp_path / "answers.db")
    return tmp_path / "answers.db"


def open_store(path: Path, *, own: bool = True, **options: Any) -> SqliteStore:
    return SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=SECRET, memory_tier=0, **options), own=own)


def edit(path: Path, *statements: str, schema: bool = False) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA writable_schema = {int(schema)}")
    for statement in statements:
        connection.execute(statement)
    connection.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def expected(store: SqliteStore, name: int) -> Entry:
    return entry_of(store, name, 3000, expires=4e9 if name % 2 else None)


def use(path: Path, *, quarantined: bool | None = None, own: bool = True) -> int:
    """Open the file, use all of the store, and return how many of our answers were found."""
    started, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_store(path, own=own) as store:
        if quarantined is not None:
            assert store.counters().get("quarantined", 0) == quarantined
        found = 0
        for name in NAMES:
            entry = store.get(key_of(name))
            assert entry is None or entry == expected(store, name), "a wrong answer"
            found += entry is not None
        try:
            assert {info.key for info in store.scan()} <= {key_of(name) for name in NAMES}
        except StoreError:
            assert found < len(NAMES)
        assert store.load_snapshot() in (None, b"policy")
        if own:
            store.expire()
            for name in range(100, 110):
                store.apply(entry_of(store, name), evict=[key_of(name - 100)]).exception()
            store.flush()
            for name in range(100, 110):
                entry = store.get(key_of(name))
                assert entry is None or entry == entry_of(store, name)
    check_seconds(time.monotonic() - started, MAX_SECONDS, "the use of the file")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) << 10
    assert grown < MAX_MEMORY, f"{grown >> 20} MB"
    if own:  # whatever it was, the store works now
        with open_store(path) as store:
            entry = entry_of(store, "after")
            store.apply(entry).result()
            assert store.get(entry.key) == entry
            store.check()
    return found


def test_the_original_is_found_complete(path: Path) -> None:
    assert use(path, quarantined=False, own=False) == len(NAMES)
    assert use(path, quarantined=False) == len(NAMES)


LOOP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
ENTRIES, IDS, INDEX, STATE = MIGRATIONS[0]
HOSTILE_SCHEMAS: dict[str, tuple[str, ...]] = {
    "trigger on insert": (
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN UPDATE entries SET payload = zeroblob(1000000); END",
    ),
    "trigger on delete": (
        f"CREATE TRIGGER t BEFORE DELETE ON entries BEGIN SELECT max(x) FROM ({LOOP} SELECT x FROM c); END",
    ),
    "trigger that keeps rows": ("CREATE TRIGGER t BEFORE DELETE ON entries BEGIN SELECT raise(IGNORE); END",),
    "extra table": ("CREATE TABLE more (x)",),
    "extra index": ("CREATE INDEX more ON entries (hex(payload))",),
    "extra view": (f"CREATE VIEW more AS {LOOP} SELECT x FROM c",),
    "statistics": ("ANALYZE",),
    "endless view for state": (
        "DROP TABLE state",
        f"CREATE VIEW state AS {LOOP} SELECT x AS id, x'00' AS seal, x'00' AS value FROM c",
    ),
    "view for entries": (
        "ALTER TABLE entries RENAME TO real",
        "DROP INDEX expiry",
        "CREATE VIEW entries AS SELECT * FROM real",
    ),
    "endless view for entries": (
        "DROP TABLE entries",
        f"CREATE VIEW entries AS {LOOP} SELECT x AS id, x'00' AS seal, x'00' AS key, 1 AS size, 1.0 AS cost, 1.0 AS"
        " seconds, 1.0 AS created, 1.0 AS expires, x'' AS tenant, x'' AS model, x'' AS meta, x'' AS request,"
        " x'' AS payload FROM c",
    ),
    "extra column": ("ALTER TABLE entries ADD COLUMN more",),
    "generated column": ("ALTER TABLE entries ADD COLUMN more GENERATED ALWAYS AS (zeroblob(900000000)) VIRTUAL",),
    "default that is huge": (
        "DROP TABLE entries",
        ENTRIES.replace("payload BLOB", "payload BLOB DEFAULT (zeroblob(900000000))"),
        IDS,
        INDEX,
    ),
    "virtual table": ("DROP TABLE entries", "CREATE VIRTUAL TABLE entries USING fts5 (id, seal, key, size, payload)"),
    "other types": ("DROP TABLE entries", ENTRIES.replace("size INTEGER", "size TEXT"), IDS, INDEX),
    "without rowid": ("DROP TABLE entries", ENTRIES + " WITHOUT ROWID", IDS, INDEX),
    "index of another column": ("DROP INDEX ids", "CREATE UNIQUE INDEX ids ON entries (key)"),
    "index that is not unique": ("DROP INDEX ids", IDS.replace("UNIQUE ", "")),
}


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
def test_a_hostile_schema_is_set_aside_before_it_is_used(path: Path, name: str) -> None:
    edit(path, *HOSTILE_SCHEMAS[name])
    assert use(path, own=False) == 0
    before = path.read_bytes()
    assert use(path, quarantined=True) == 0
    assert Path(f"{path}.damaged-1").read_bytes()[100:PAGE] == before[100:PAGE]


CORRUPT_SCHEMAS = {
    "check that calls a function": "UPDATE sqlite_master SET sql = replace(sql, 'payload BLOB', 'payload BLOB CHECK"
    " (load_extension(''./x'') OR writefile(''./x'', 1))') WHERE name = 'entries'",
    "column that calls a function": "UPDATE sqlite_master SET sql = replace(sql, 'payload BLOB', 'payload BLOB AS"
    " (zeroblob(900000000))') WHERE name = 'entries'",
    "root page of another table": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE"
    " name = 'state') WHERE name = 'entries'",
    "root page of the schema": "UPDATE sqlite_master SET rootpage = 1 WHERE name = 'entries'",
    "root page beyond the file": "UPDATE sqlite_master SET rootpage = 4000000 WHERE name = 'entries'",
    "root page of the index": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE"
    " name = 'expiry') WHERE name = 'entries'",
    "index on the table's pages": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE"
    " name = 'entries') WHERE name = 'expiry'",
    "index of ids on the table's pages": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE"
    " name = 'entries') WHERE name = 'ids'",
    "index of ids on another index's pages": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master"
    " WHERE name = 'expiry') WHERE name = 'ids'",
    "text that does not parse": "UPDATE sqlite_master SET sql = 'CREATE TABLE entries (((' WHERE name = 'entries'",
    "very long text": "UPDATE sqlite_master SET sql = sql || printf('%*c', 900000, ' ') WHERE name = 'entries'",
    "wrong type": "UPDATE sqlite_master SET type = 'trigger' WHERE name = 'state'",
    "no schema": "DELETE FROM sqlite_master",
    "schema twice": "INSERT INTO sqlite_master SELECT * FROM sqlite_master",
    "thousands of rows": f"INSERT INTO sqlite_master {LOOP} SELECT 'view', 'v' || x, 'v' || x, 0,"
    " 'CREATE VIEW v' || x || ' AS SELECT 1' FROM c LIMIT 5000",
    "blob for a name": "UPDATE sqlite_master SET name = x'ff00ff' WHERE name = 'state'",
}


@pytest.mark.parametrize("name", CORRUPT_SCHEMAS)
def test_a_corrupt_schema_gives_no_wrong_answer(path: Path, name: str) -> None:
    edit(path, CORRUPT_SCHEMAS[name], schema=True)
    use(path, own=False)
    use(path)


HOSTILE_ROWS = {
    "huge values": "UPDATE entries SET payload = zeroblob(100000000) WHERE id = (SELECT min(id) FROM entries)",
    "huge metadata": "UPDATE entries SET meta = zeroblob(50000000) WHERE id = (SELECT min(id) FROM entries)",
    "text": "UPDATE entries SET payload = 'text', tenant = 'text'",
    "text that is not UTF-8": "UPDATE entries SET tenant = CAST(x'ff' AS TEXT) WHERE id % 3",
    "numbers": "UPDATE entries SET seal = 1, key = 2.5, payload = 3, meta = 4",
    "nothing": "UPDATE entries SET seal = NULL, key = NULL, size = NULL, created = NULL, meta = NULL",
    "huge sizes": "UPDATE entries SET size = 9223372036854775807",
    "negative sizes": "UPDATE entries SET size = -9223372036854775807 WHERE id % 2",
    "sizes of other types": "UPDATE entries SET size = x'ff', cost = 'x', expires = 'soon'",
    "infinite costs": "UPDATE entries SET cost = 9e999, seconds = -9e999, created = 9e999",
    "never expires": "UPDATE entries SET expires = NULL, created = created + 1",
    "long past": "UPDATE entries SET expires = 1.0",
    "seals of another row": "UPDATE entries SET seal = (SELECT seal FROM entries LIMIT 1)",
    "answers of another row": "UPDATE entries SET payload = (SELECT payload FROM entries LIMIT 1)",
    "forged without the secret": "UPDATE entries SET seal = randomblob(32)",
    "ids moved": "UPDATE entries SET id = id + 1",
    "ids of another type": "UPDATE entries SET id = CAST(id AS BLOB)",
    "no ids": "UPDATE entries SET id = NULL",
    "a snapshot of ours": f"UPDATE state SET value = x'00' WHERE id = {SNAPSHOT_ROW}",
    "a huge snapshot": f"UPDATE state SET value = zeroblob(100000000) WHERE id = {SNAPSHOT_ROW}",
    "text for a snapshot": f"UPDATE state SET value = CAST(x'ff' AS TEXT) WHERE id = {SNAPSHOT_ROW}",
    "a huge format": f"UPDATE state SET value = zeroblob(100000000) WHERE id = {FORMAT_ROW}",
    "more states": f"INSERT INTO state {LOOP} SELECT x + 100000, zeroblob(16), zeroblob(100) FROM c LIMIT 10000",
    "a snapshot in chunks": f"INSERT INTO state {LOOP} SELECT -x, zeroblob(16), zeroblob(10000) FROM c LIMIT 2000",
    "wrong totals": f"UPDATE state SET value = zeroblob(33) WHERE id = {CHANGES_ROW}",
    "text for totals": f"UPDATE state SET value = CAST(x'ff' AS TEXT) WHERE id = {CHANGES_ROW}",
    "huge totals": f"UPDATE state SET value = zeroblob(100000000) WHERE id = {CHANGES_ROW}",
    "no totals": f"DELETE FROM state WHERE id = {CHANGES_ROW}",
    "more entries": "INSERT INTO entries SELECT NULL, id + 1 + x, seal, key, size, cost, seconds, created, expires,"
    f" tenant, model, meta, request, NULL FROM entries, ({LOOP} SELECT x FROM c LIMIT 25)",
}


@pytest.mark.parametrize("name", HOSTILE_ROWS)
def test_hostile_rows_are_misses(path: Path, name: str) -> None:
    edit(path, HOSTILE_ROWS[name])
    use(path, own=False)
    found = use(path)
    touched = ("UPDATE entries SET" in HOSTILE_ROWS[name] and " WHERE " not in HOSTILE_ROWS[name]) or "format" in name
    assert found == 0 if touched and "another row" not in name else found <= len(NAMES)


@pytest.mark.parametrize(
    "pragma", ["journal_mode = delete", "auto_vacuum = 1", "page_size = 4096", "encoding = 'UTF-16'"]
)
def test_a_file_of_another_kind_is_converted_or_set_aside(path: Path, pragma: str) -> None:
    edit(path, "PRAGMA journal_mode = delete", f"PRAGMA {pragma}", "VACUUM")
    found = use(path)
    assert found == (len(NAMES) if "journal" in pragma or "encoding" in pragma else 0)


def page_bytes(content: bytes, number: int) -> bytes:
    return content[(number - 1) * PAGE : number * PAGE]


def tree_of_shared_pages(content: bytes, root: int, leaf: int, first_free: int, depth: int) -> bytes:
    """Return a file whose tree has `depth` levels of pages in which every pointer leads to one child."""
    pages = [bytearray(page_bytes(content, k + 1)) for k in range(len(content) // PAGE)]
    numbers = [root, *range(first_free, first_free + depth - 1), leaf]
    pages += [bytearray(PAGE) for _ in range(depth - 1)]
    for number, child in itertools.pairwise(numbers):
        cells = 200
        page = bytearray(PAGE)
        start = PAGE - 5 * cells
        page[:12] = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child)
        for k in range(cells):
            struct.pack_into(">H", page, 12 + 2 * k, start + 5 * k)
            struct.pack_into(">IB", page, start + 5 * k, child, 1)
        pages[number - 1] = page
    struct.pack_into(">I", pages[0], 28, len(pages))
    return b"".join(map(bytes, pages))


def endless_tree(path: Path, table: str) -> bytes:
    """Return the file with 200 pointers a page, 12 pages deep: more rows than anybody can count, in a small file."""
    connection = sqlite3.connect(path)
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    connection.close()
    edit(path)
    content = path.read_bytes()
    pages = len(content) // PAGE
    leaf = next(k for k in range(2, pages + 1) if page_bytes(content, k)[0] == 13 and k != root)
    return tree_of_shared_pages(content, root, leaf, pages + 1, 12)


@pytest.mark.parametrize("table", ["entries", "state"])
def test_a_tree_with_endless_rows_does_not_hang_the_store(path: Path, table: str) -> None:
    path.write_bytes(endless_tree(path, table))
    use(path, own=False)
    use(path)


def test_an_oversize_file_with_endless_rows_is_set_aside(path: Path, tmp_path: Path) -> None:
    more = bytearray(endless_tree(path, "entries") + bytes(PAGE * 5000))
    struct.pack_into(">I", more, 28, len(more) // PAGE)
    path.write_bytes(more)
    assert use(path, quarantined=True) == 0
    assert list(tmp_path.glob("*.rebuilt*")) == []


def test_the_log_of_another_database_is_set_aside_with_the_file(path: Path, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    other.execute(f"PRAGMA page_size = {PAGE}")
    other.execute("PRAGMA journal_mode = wal")
    other.execute("CREATE TABLE accounts (x)")
    other.execute(f"INSERT INTO accounts {LOOP} SELECT randomblob(500) FROM c LIMIT 50")
    log = (tmp_path / "other.db-wal").read_bytes()
    other.close()
    Path(f"{path}-wal").write_bytes(log)
    use(path, own=False)
    Path(f"{path}-shm").unlink(missing_ok=True)
    assert use(path, quarantined=True) == 0
    assert Path(f"{path}.damaged-1-wal").read_bytes() == log


def test_the_log_of_another_store_gives_no_wrong_answer(path: Path, tmp_path: Path) -> None:
    other_path = tmp_path / "other" / "answers.db"
    with SqliteStore(other_path, SIZE_LIMIT, SqliteOptions(secret=b"another secret")) as other:
        for name in NAMES:
            other.apply(entry_of(other, name, 3000, version=1))
        other.flush()
        log = Path(f"{other_path}-wal").read_bytes()
    Path(f"{path}-wal").write_bytes(log)
    try:
        use(path)
    except StoreError as error:
        assert "another secret" in str(error)  # noqa: PT017 - either result is right


def test_a_journal_is_not_applied_and_deletes_nothing(path: Path, tmp_path: Path) -> None:
    """A hot journal names a super-journal, which SQLite deletes when it has rolled back."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    name = str(victim).encode()
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 0, 1, 0, 512, PAGE)
    magic = bytes.fromhex("d9d505f920a163d7")
    tail = struct.pack(">I", 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    journal = Path(f"{path}-journal")
    journal.write_bytes(header.ljust(512, b"\0") + tail)
    for own in (True, False):
        with pytest.raises(StoreError, match="-journal is not a file of this store"):
            open_store(path, own=own)
    assert victim.exists()
    assert journal.exists()
    journal.unlink()
    with open_store(path) as store:
        journal.write_bytes(header.ljust(512, b"\0") + tail)
        assert store.get(key_of(0)) is None
        journal.unlink()
        assert store.get(key_of(0)) == expected(store, 0)
    assert victim.exists()


def test_a_schema_that_changes_while_the_store_is_open_is_not_used(path: Path) -> None:
    with open_store(path) as store:
        assert store.get(key_of(1)) == expected(store, 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(HOSTILE_SCHEMAS["trigger on insert"][0])
        other.close()
        entry = entry_of(store, "new")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        for name in NAMES:
            assert store.get(key_of(name)) in (None, expected(store, name))


def test_a_forged_format_row_does_not_disown_or_admit(path: Path) -> None:
    """Anyone can seal a format row, because it needs no secret. It only selects between refusal and damage."""
    seal, value = Sealer().seal(b"format", b"9"), b"9"
    edit(
        path,
        f"UPDATE state SET seal = x'{seal.hex()}', value = x'{value.hex()}' WHERE id = 1",
        "PRAGMA user_version = 9",
    )
    with pytest.raises(StoreError, match="newer version"):
        open_store(path)
    edit(path, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {len(MIGRATIONS)}")
    assert use(path, quarantined=True) == 0


def test_random_pages_give_no_wrong_answer(path: Path) -> None:
    content, rng = path.read_bytes(), random.Random(7)
    for k in range(25):
        pages = [bytearray(page_bytes(content, n + 1)) for n in range(len(content) // PAGE)]
        for _ in range(3):
            number = rng.randrange(1, len(pages))
            pages[number] = bytearray(rng.choice([rng.randbytes(PAGE), bytes(pages[rng.randrange(len(pages))])]))
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(b"".join(map(bytes, pages)))
        use(path, own=bool(k % 4))
