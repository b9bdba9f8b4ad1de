"""An encrypted file: nothing readable in it, the right key or StoreError, rotation, tampering."""

from __future__ import annotations

import hashlib
import random
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest

from knapcache import Cache, Reply
from knapcache.errors import InvalidInput, StoreError
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.database import ENCRYPTION_ROW, key_ids_in, require_keys
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.rows import COLUMNS, Sealer, _body_seal
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of, run_sql

SIZE_LIMIT = 1 << 20
ONE, TWO, THREE = bytes(32), b"2" * 32, b"3" * 32
CANARY = b"canary-in-the-coal-mine"


def open_store(path: Path, *keys: bytes, own: bool = True, **options: Any) -> SqliteStore:
    return SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0, encryption_keys=keys, **options), own=own)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with ten entries under the key ONE."""
    path = tmp_path / "answers.db"
    with open_store(path, ONE) as store:
        for name in range(10):
            store.apply(entry_of(store, name, 500 * name), snapshot=b"snapshot of the policy")
    return path


def all_found(store: SqliteStore, names: range = range(10)) -> bool:
    return all(store.get(key_of(name)) == entry_of(store, name, 500 * name) for name in names)


def test_one_row_decrypts_with_cryptography_alone(path: Path) -> None:
    """The format of a row, transcribed from its description."""
    codec = Encryption([ONE])
    (name,) = codec.names(key_of(3))
    (row,) = run_sql(
        path,
        "SELECT size, cost, seconds, created, expires, tenant, model, meta, request, payload FROM entries"
        " WHERE key = ?",
        (name,),
    )
    size, cost, seconds, created, expires, tenant, model, meta, request, payload = row
    assert (tenant, model, request, expires) == (b"", b"", b"", None)
    context = struct.pack("<5s32sqdddd", b"entry", name, size, cost, seconds, created, float("inf"))
    names, content = codec.decrypt(context, meta, payload) or (b"", b"")
    assert names[:32] == key_of(3)
    assert struct.unpack("<II", names[32:40]) == (6, 5)
    assert names[40:51] == b"tenantmodel"
    assert orjson.loads(names[51:]) == {"n": 1500, "version": 0}
    (length,) = struct.unpack("<Q", content[:8])
    with open_store(path, ONE) as store:
        entry = entry_of(store, 3, 1500)
        assert (content[8 : 8 + length], content[8 + length :]) == (entry.request, entry.payload)


def test_nothing_readable_is_written(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with open_store(path, ONE) as store, open_store(path, ONE, own=False) as reader:
        secret: dict[str, Any] = {
            "request": CANARY + b"-request",
            "payload": CANARY + b"-answer",
            "meta": {"m": "canary-in-the-coal-mine"},
        }
        for name in range(20):
            entry = entry_of(store, name, tenant="canary-in-the-coal-mine", model="canary-in-the-coal-mine", **secret)
            store.apply(entry, snapshot=CANARY)
        for name in range(2):
            reader.hand_over(entry_of(store, ("spool", name), tenant="canary-in-the-coal-mine", **secret))
        reader.put_counts({key_of(name): 3 for name in range(20)})
        store.flush()
        files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert len(files) == 8
        for file, content in files.items():
            assert b"canary" not in content, file
            for name in range(20):
                assert key_of(name) not in content, f"{file} has a key, with which guesses can be tested"
        assert store.load_snapshot() == CANARY
        assert store.take_counts() == {key_of(name): 3 for name in range(20)}
        assert {entry.request for entry in store.collect()} == {CANARY + b"-request"}
        store.check()


def test_without_the_key_or_with_another_nothing_is_changed(path: Path) -> None:
    before = path.read_bytes()
    for keys, message in (((), "is encrypted, and no key was given"), ((TWO,), "is encrypted with another key")):
        for own in (True, False):
            with pytest.raises(StoreError, match=message) as error:
                open_store(path, *keys, own=own)
            assert Encryption([ONE]).key_ids[0].hex() in str(error.value)
    assert path.read_bytes() == before
    with open_store(path, ONE) as store:
        assert all_found(store)
        assert "damaged" not in store.counters()


def test_a_plain_store_with_a_key_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with open_store(path) as store:
        store.apply(entry_of(store, 0, 0)).result()
    before = path.read_bytes()
    for own in (True, False):
        with pytest.raises(StoreError, match=r"is not encrypted, and a key was given.*knapcache rekey"):
            open_store(path, ONE, own=own)
    assert path.read_bytes() == before
    with open_store(path) as store:
        assert all_found(store, range(1))


def test_a_plain_store_with_only_a_snapshot_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with open_store(path) as store:
        store.apply(snapshot=b"state").result()
    with pytest.raises(StoreError, match="is not encrypted"):
        open_store(path, ONE)


def test_an_empty_plain_store_becomes_an_encrypted_one(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    open_store(path).close()
    open_store(path, ONE).close()
    with pytest.raises(StoreError, match="no key was given"):
        open_store(path)


def test_the_first_key_encrypts_and_all_decrypt(path: Path) -> None:
    with open_store(path, TWO, ONE) as store:
        assert all_found(store)
        store.apply(entry_of(store, 11, 5500))
        store.apply(entry_of(store, 0, 0))  # replaces the one under the old key
        store.apply(evict=[key_of(1)])
        store.flush()
        assert store.totals().entries == 10
        assert len(list(store.scan())) == 10
        assert store.get(key_of(1)) is None
        assert store.load_snapshot() == b"snapshot of the policy"
        store.check()
    with pytest.raises(StoreError, match=f"it needs {Encryption([ONE]).key_ids[0].hex()}, given"):
        open_store(path, TWO)
    with open_store(path, ONE, TWO) as store:
        assert all_found(store, range(2, 10))
        assert all_found(store, range(11, 12))
        store.apply(evict=[info.key for info in store.scan()]).result()
        assert store.totals() == (0, 0)
    with pytest.raises(StoreError, match="another key"):
        open_store(path, THREE)


def test_a_lost_mark_is_restored(path: Path) -> None:
    run_sql(path, "DELETE FROM state WHERE id = ?", (ENCRYPTION_ROW,))
    with open_store(path, ONE) as store:
        assert all_found(store)
    with pytest.raises(StoreError, match="no key was given"):
        open_store(path)


def test_sizes_count_the_encrypted_bytes_and_the_limit_holds(tmp_path: Path) -> None:
    with open_store(tmp_path / "plain.db") as plain, open_store(tmp_path / "encrypted.db", ONE) as store:
        assert entry_of(store, 0, 10).size > entry_of(plain, 0, 10).size
        for name in range(2000):
            if store.apply(entry_of(store, name, 900)).exception():
                break
        assert store.totals().size <= store.capacity
        assert store.disk_bytes() <= SIZE_LIMIT
        snapshot = bytes(store.max_snapshot_size)
        store.apply(snapshot=snapshot).result()
        assert store.load_snapshot() == snapshot
        store.check()


@pytest.mark.parametrize("column", ["seal", "key", "meta", "payload", "size", "cost", "created", "expires", "tenant"])
def test_a_changed_column_is_a_miss(path: Path, column: str) -> None:
    other = {"size": 1, "cost": 9.0, "created": 5.0, "expires": 5e9, "tenant": b"a"}
    rows: list[Any] = run_sql(path, f"SELECT id, {column} FROM entries")
    for number, value in rows:
        changed = other[column] if column in other else value[:-1] + bytes([value[-1] ^ 1])
        run_sql(path, f"UPDATE entries SET {column} = ? WHERE id = ?", (changed, number))
    with open_store(path, ONE) as store:
        assert [store.get(key_of(name)) for name in range(10)] == [None] * 10


def test_a_key_of_another_length_is_damage(tmp_path: Path) -> None:
    for keys in ((), (ONE,)):
        path = tmp_path / f"{len(keys)}.db"
        with open_store(path, *keys) as store:
            store.apply(entry_of(store, 0, 0)).result()
        run_sql(path, "UPDATE entries SET key = CAST(key || x'00' AS BLOB)")
        with open_store(path, *keys) as store:
            assert store.get(key_of(0)) is None
            assert list(store.scan()) == []


def test_with_the_secret_of_the_seals_rows_still_cannot_be_swapped_or_forged(path: Path) -> None:
    """An attacker who reads the data directory has the secret, but not the encryption key."""
    with open_store(path, ONE) as store:
        sealer = store._sealer
    rows: list[tuple[Any, ...]] = run_sql(path, f"SELECT id, {COLUMNS} FROM entries")
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        number, _seal, key, size, cost, seconds, created, _expires, tenant, model, _meta, request, _payload = row
        for change in ({"meta": other[10], "payload": other[12]}, {"expires": 4e9}, {"payload": other[12]}):
            values = {"expires": row[7], "meta": row[10], "payload": row[12]} | change
            numbers = (size, cost, seconds, created, values["expires"])
            header = sealer._header(key, *numbers, tenant, model, values["meta"])
            forged = (key, *numbers, tenant, model, values["meta"], request, values["payload"])
            seal = hashlib.sha256(header).digest()[:16] + _body_seal(header, request, values["payload"])
            assert sealer.entry((seal, *forged)) is None
            if "payload" not in change:
                assert sealer.info((number, seal, *forged[:9])) is None


def test_flipped_bytes_are_misses_and_never_wrong_answers(path: Path, tmp_path: Path) -> None:
    content, rng = path.read_bytes(), random.Random(11)
    for k in range(60):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 20])):
            damaged[rng.randrange(2048, len(damaged))] ^= rng.randrange(1, 256)
        other = tmp_path / f"{k}.db"
        other.write_bytes(damaged)
        with open_store(other, ONE) as store:
            for name in range(10):
                assert store.get(key_of(name)) in (None, entry_of(store, name, 500 * name))


def test_the_cache_takes_a_key(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    options = {"policy": "lru", "cost": "seconds", "shadows": ()}
    request = {"model": "m", "prompt": "canary"}
    for _ in range(2):
        with Cache("2MB", path=path, encryption_key=ONE.hex(), **options) as cache:  # type: ignore[arg-type]
            answer = cache.fetch("completions", request, lambda: Reply(b"canary", model="m"))
            assert answer.payload == b"canary"
    assert answer.outcome == "hit"
    assert b"canary" not in path.read_bytes()
    with pytest.raises(StoreError, match="no key was given"):
        Cache("2MB", path=path, **options)  # type: ignore[arg-type]
    for wrong in ({"encryption_key": ONE}, {"encryption_key": ONE, "path": "memory:"}):
        with pytest.raises(InvalidInput, match="encryption_key needs a path"):
            Cache("2MB", **wrong, **options)  # type: ignore[arg-type]
    with open_store(tmp_path / "other.db") as store, pytest.raises(InvalidInput, match="cannot be combined"):
        Cache(store=store, encryption_key=ONE, **options)  # type: ignore[arg-type]


def test_checking_the_keys_of_a_file_does_not_change_it(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, 1 << 20):
        pass
    require_keys(path, Sealer(encryption=Encryption([ONE])))
    with closing(apsw.Connection(str(path))) as connection:
        assert key_ids_in(connection) == ()
