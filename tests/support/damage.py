"""Files of a store with flipped bits, cut off, or with swapped pages, used as a cache uses them.

No answer is wrong, nothing but StoreError is raised, and the store is usable afterwards. A file whose header no longer
names this program may be refused; it is not changed then.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from knapcache.errors import StoreError
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, is_right, key_of, spawn

SIZE_LIMIT = 1 << 20
NAMES = 24

# Like a killed process, it leaves entries both in the file and in the log.
WRITE_AND_DIE = f"""
import os, sys
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of
store = SqliteStore(sys.argv[1], {SIZE_LIMIT})
for name in range({NAMES}):
    ttl = None if name % 2 else 4e9
    store.apply(entry_of(store, name, 300 * name, expires=ttl), snapshot=b"snapshot %d" % name).result()
    if name == {NAMES} // 2:
        store.close()
        store = SqliteStore(sys.argv[1], {SIZE_LIMIT})
os._exit(0)
"""
HEADER = 100
"""Bytes of SQLite's header, with the application's id."""


def write_crashed_file(folder: Path) -> Path:
    """Return a store's file that a killed process left, with its log."""
    path = folder / "answers.db"
    child = spawn(WRITE_AND_DIE, path)
    assert child.communicate()[1] == ""
    assert child.returncode == 0
    return path


def use_like_a_cache(store: SqliteStore, rng: random.Random) -> int:
    """Read and write entries; return how many were found."""
    found = 0
    for name in range(NAMES):
        entry = store.get(key_of(name))
        if entry is not None:
            assert is_right(entry, name), f"a wrong answer for {name}"
            meta = entry.meta
            assert entry == entry_of(store, name, meta["n"], meta["version"], expires=entry.expires)
            found += 1
    try:
        for info in store.scan():
            assert info.key in {key_of(name) for name in range(NAMES)}
            assert info.size < SIZE_LIMIT
    except StoreError:
        pass
    snapshot = store.load_snapshot()
    assert snapshot is None or snapshot in {b"snapshot %d" % name for name in range(NAMES)}
    store.expire()
    names = rng.sample(range(NAMES), 6)
    for name in names:
        store.apply(entry_of(store, name, 700, version=1), evict=[key_of(rng.randrange(NAMES))])
    store.flush()
    for name in range(NAMES):
        entry = store.get(key_of(name))
        assert entry is None or is_right(entry, name), f"a wrong answer for {name}, after writing"
    return found


def damage(content: bytes, rng: random.Random, counts: dict[str, int]) -> bytes:
    """Return the content with flipped bits, cut off, or with two pages swapped."""
    kind = rng.random()
    if kind < 0.75:
        bits = bytearray(content)
        flips = rng.choice([1, 1, 1, 3, 50])
        for _ in range(flips):
            bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
        counts["flipped_bits"] += flips
        return bytes(bits)
    if kind < 0.9:
        counts["truncated"] += 1
        return content[: rng.randrange(len(content))]
    # Each page is valid, but in the wrong place.
    counts["swapped"] += 1
    pages = [content[k : k + 2048] for k in range(0, len(content), 2048)]
    a, b = rng.randrange(len(pages)), rng.randrange(len(pages))
    pages[a], pages[b] = pages[b], pages[a]
    return b"".join(pages)


def damage_and_use(
    crashed_file: Path, parent: Path, rounds: int, seed: int, progress: Callable[[int], object] = lambda _: None
) -> dict[str, int]:
    """Damage a copy of the file, or of its log, and use it twice, as often as asked."""
    rng = random.Random(seed)
    written = {suffix: Path(f"{crashed_file}{suffix}").read_bytes() for suffix in ("", "-wal")}
    end = len(written["-wal"].rstrip(b"\0"))  # the rest is only allocated
    written["-wal"] = written["-wal"][:end]
    counts = dict.fromkeys(("rounds", "flipped_bits", "truncated", "swapped", "refused", "intact", "answers"), 0)
    for k in range(rounds):
        folder = parent / f"round{k}"
        folder.mkdir()
        path = folder / "answers.db"
        damaged = rng.choice(["", "-wal"])
        files = {suffix: damage(text, rng, counts) if suffix == damaged else text for suffix, text in written.items()}
        for suffix, content in files.items():
            Path(f"{path}{suffix}").write_bytes(content)
        try:
            store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=rng.choice([0, None])))
        except StoreError:
            assert files[""][:HEADER] != written[""][:HEADER], "the file is ours and was refused"
            assert {file.name for file in folder.iterdir()} == {"answers.db", "answers.db-wal"}
            for suffix, content in files.items():
                assert Path(f"{path}{suffix}").read_bytes() == content, "a refused file was changed"
            with SqliteStore(path, SIZE_LIMIT, SqliteOptions(exclusive=True)) as store:
                use_like_a_cache(store, rng)
            counts["refused"] += 1
        else:
            found = use_like_a_cache(store, rng)
            store.close()
            counts["intact"] += found == NAMES
            counts["answers"] += found
            with SqliteStore(path, SIZE_LIMIT) as again:
                counts["answers"] += use_like_a_cache(again, rng)
        counts["rounds"] += 1
        shutil.rmtree(folder)
        progress(k + 1)
    return counts
