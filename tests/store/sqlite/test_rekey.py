"""`rekey`: encrypts, rotates and decrypts; refuses while the file is open; kill -9 loses nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from knapcache.cli.main import main
from knapcache.errors import NotOwner, StoreError
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.rekey import rekey
from knapcache.store.sqlite.store import SqliteStore
from tests.support.faulty_disk import DiskFaults, FaultyVFS
from tests.support.stores import entry_of, key_of, run_sql, spawn

SIZE_LIMIT = 2 << 20
ONE, TWO = b"1" * 32, b"2" * 32
NAMES = range(300)
CANARY = b"canary-in-the-coal-mine"


def open_store(path: Path, *keys: bytes, own: bool = True) -> SqliteStore:
    return SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0, encryption_keys=keys, secret=b"secret"), own=own)


def fill(path: Path, *keys: bytes, names: range = NAMES) -> None:
    with open_store(path, *keys) as store:
        for name in names:
            store.apply(entry_of(store, name, 700, request=CANARY + b"%d" % name), snapshot=b"the state")


def complete(path: Path, *keys: bytes, names: range = NAMES) -> bool:
    """Whether the store opens with these keys and has every entry."""
    with open_store(path, *keys) as store:
        store.check()
        assert store.load_snapshot() == b"the state"
        assert store.totals().entries == len(names)
        for name in names:
            assert store.get(key_of(name)) == entry_of(store, name, 700, request=CANARY + b"%d" % name)
    return True


def test_a_store_is_encrypted_rotated_and_decrypted(tmp_path: Path, path: Path) -> None:
    fill(path)
    assert CANARY in path.read_bytes()
    steps: list[int] = []
    result = rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret", progress=lambda done, _rows: steps.append(done))
    assert result == (len(NAMES), 0)
    assert steps[-1] == len(NAMES)
    assert sorted(steps) == steps
    assert {file.name for file in tmp_path.iterdir()} == {"answers.db", "answers.db.lock"}
    assert CANARY not in path.read_bytes(), "the new file has pages of the old one"
    assert complete(path, ONE)
    rekey(path, old_keys=[ONE], new_keys=[TWO], secret=b"secret")
    assert complete(path, TWO)
    with pytest.raises(StoreError, match="another key"):
        open_store(path, ONE)
    rekey(path, old_keys=[TWO], new_keys=(), secret=b"secret")
    assert complete(path)
    assert CANARY in path.read_bytes()


def test_a_store_under_two_keys_is_brought_under_one(path: Path) -> None:
    fill(path, ONE, names=range(50))
    with open_store(path, TWO, ONE) as store:
        for name in range(50, 100):
            store.apply(entry_of(store, name, 700, request=CANARY + b"%d" % name))
    rekey(path, old_keys=[ONE], new_keys=[TWO], secret=b"secret")
    assert complete(path, TWO, names=range(100))
    rekey(path, old_keys=[ONE], new_keys=[TWO], secret=b"secret")  # again: nothing changes
    assert complete(path, TWO, names=range(100))


def test_a_wrong_key_or_secret_changes_nothing(tmp_path: Path, path: Path) -> None:
    fill(path, ONE, names=range(5))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another key"):
        rekey(path, old_keys=[TWO], new_keys=[b"3" * 32], secret=b"secret")
    with pytest.raises(StoreError, match="another secret"):
        rekey(path, old_keys=[ONE], new_keys=[TWO], secret=b"other")
    with pytest.raises(StoreError, match="no such file"):
        rekey(tmp_path / "missing", old_keys=(), new_keys=[ONE])
    (tmp_path / "notes.md").write_text("notes")
    with pytest.raises(StoreError, match="not recognisable"):
        rekey(tmp_path / "notes.md", old_keys=(), new_keys=[ONE])
    assert path.read_bytes() == before
    assert list(tmp_path.glob("*.rekeyed*")) == []


def test_a_file_of_another_program_with_the_name_of_the_copy_stays(tmp_path: Path, path: Path) -> None:
    fill(path, names=range(5))
    (tmp_path / "answers.db.rekeyed").write_text("my notes")
    with pytest.raises(StoreError, match="is not recognisable"):
        rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
    assert (tmp_path / "answers.db.rekeyed").read_text() == "my notes"
    assert complete(path, names=range(5))


def test_it_is_refused_while_an_owner_or_a_reader_has_the_file(path: Path) -> None:
    fill(path, names=range(5))
    with open_store(path), pytest.raises(NotOwner, match="already open in this process"):
        rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
    for own in (True, False):
        code = f"""
            import sys
            from knapcache.store.sqlite.recovery import SqliteOptions
            from knapcache.store.sqlite.store import SqliteStore
            store = SqliteStore(sys.argv[1], {SIZE_LIMIT}, SqliteOptions(secret=b"secret"), own={own})
            assert len(list(store.scan())) == 5
            print("open", flush=True)
            sys.stdin.read()
        """
        child = spawn(code, path)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(NotOwner, match=r"open in another process|owned by process"):
            rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
        child.communicate()
    rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
    assert complete(path, ONE, names=range(5))


def test_entries_in_the_spool_are_encrypted_too(tmp_path: Path, path: Path) -> None:
    with open_store(path) as store:
        store.apply(snapshot=b"the state").result()
        with open_store(path, own=False) as reader:
            reader.hand_over(entry_of(reader, 0, 700, request=CANARY))
            reader.put_counts({key_of(0): 1})
    rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or CANARY not in file.read_bytes(), file
    with open_store(path, ONE) as store:
        (entry,) = store.collect()
        assert entry == entry_of(store, 0, 700, request=CANARY)


def test_damaged_rows_are_counted_and_left_out(path: Path) -> None:
    fill(path, names=range(5))
    run_sql(path, "UPDATE entries SET payload = x'00' WHERE key = ?", (key_of(2),))
    run_sql(path, "UPDATE entries SET tenant = CAST(x'ff' AS TEXT) WHERE key = ?", (key_of(3),))
    assert rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret") == (3, 2)


REKEY = """
import sys
from knapcache.store.sqlite.rekey import rekey
old, new = ([bytes.fromhex(text)] if text else [] for text in sys.argv[2:4])
print("started", flush=True)
rekey(sys.argv[1], old_keys=old, new_keys=new, secret=b"secret")
print("done", flush=True)
"""


def kill_at_random_points(path: Path, rounds: int, seed: int) -> int:
    """Kill rekey by signal at random times, and let it stop at random system calls; return how often it was killed."""
    rng, killed = random.Random(seed), 0
    keys: list[tuple[bytes, ...]] = [(), (ONE,), (TWO,)]
    now = 0
    fill(path)
    for _ in range(rounds):
        then = rng.choice([k for k in range(3) if k != now])
        old, new = ("".join(key.hex() for key in keys[k]) for k in (now, then))
        child = spawn(REKEY, path, old, new)
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        timer = threading.Timer(rng.random() ** 2 * 0.25, os.kill, (child.pid, signal.SIGKILL))
        timer.start()
        out, _ = child.communicate()
        timer.cancel()
        killed += "done" not in out
        try:
            assert complete(path, *keys[then])
            now = then
        except StoreError:
            assert "done" not in out
            assert complete(path, *keys[now])
    rekey(path, old_keys=keys[now], new_keys=[ONE], secret=b"secret")
    assert complete(path, ONE)
    for file in path.parent.rglob("*"):
        assert file.is_dir() or CANARY not in file.read_bytes(), f"{file} has plain text"
    return killed


@pytest.mark.parametrize(
    ("rounds", "seed", "least"), [(8, 1, 0), *(pytest.param(60, k, 5, marks=pytest.mark.long) for k in range(2, 6))]
)
def test_kill_at_random_points_loses_nothing(path: Path, rounds: int, seed: int, least: int) -> None:
    assert kill_at_random_points(path, rounds, seed) > least


@pytest.mark.parametrize(
    "function",
    ["os.rename", "os.link", *(pytest.param(name, marks=pytest.mark.long) for name in ("os.fsync", "os.unlink"))],
)
def test_a_stop_at_each_step_on_files_loses_nothing(tmp_path: Path, path: Path, function: str) -> None:
    """The process ends at the n-th call of a function that changes files, for every n."""
    code = f"""
        import os, sys
        name, left = sys.argv[4].split(".")[1], [int(sys.argv[5])]
        real = getattr(os, name)
        def stop(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return real(*arguments, **options)
        setattr(os, name, stop)
        {REKEY.replace(chr(10), chr(10) + "        ")}
    """
    for n in range(20):
        for file in tmp_path.glob("answers.db*"):
            file.unlink()
        fill(path, names=range(20))
        child = spawn(code, path, "", ONE.hex(), function, n)
        out, err = child.communicate()
        if "done" in out:
            assert complete(path, ONE, names=range(20))
            assert n > 0
            return
        assert child.returncode == 9, err
        rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
        assert complete(path, ONE, names=range(20))
    pytest.fail(f"{function} is called without end")


class CountedFaults(DiskFaults):
    """The disk is full after a number of writes."""

    writes = 0

    def inject(self, *, writing: bool) -> None:
        self.writes -= writing
        self.full = self.writes < 0
        super().inject(writing=writing)


def test_a_disk_that_is_full_from_some_write_on_loses_nothing(path: Path) -> None:
    fill(path, names=range(20))
    faults = CountedFaults()
    disk = FaultyVFS(faults, default=True)
    try:
        for n in range(100):
            faults.writes = n
            try:
                rekey(path, old_keys=(), new_keys=[ONE], secret=b"secret")
                break
            except StoreError:
                faults.writes = 1 << 20
                assert complete(path, names=range(20))
    finally:
        disk.unregister()
    assert n > 10
    assert complete(path, ONE, names=range(20))


def test_the_command_encrypts_rotates_and_decrypts(
    tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, 0, 700)).result()
    (tmp_path / "key").write_text(ONE.hex())
    monkeypatch.setenv("NEW_KEY", TWO.hex())
    assert main(["rekey", str(path)]) == 2
    assert "or --decrypt" in capsys.readouterr().err
    assert main(["rekey", str(path), "--new-key-file", str(tmp_path / "key")]) == 0
    assert capsys.readouterr().out == "1 entry encrypted\n"
    rotate = ["--old-key-file", str(tmp_path / "key"), "--new-key-env", "NEW_KEY"]
    assert main(["rekey", str(path), *rotate]) == 0
    capsys.readouterr()
    assert main(["inspect", str(path)]) == 2
    assert "is encrypted, and no key was given" in capsys.readouterr().err
    assert main(["inspect", str(path), "--encryption-key-env", "NEW_KEY"]) == 0
    assert "1 entry" in capsys.readouterr().out
    assert main(["purge", str(path), "--all", "--encryption-key-file", str(tmp_path / "key")]) == 2
    assert "another key" in capsys.readouterr().err
    assert main(["rekey", str(path), "--old-key-env", "NEW_KEY", "--decrypt"]) == 0
    assert capsys.readouterr().out == "1 entry decrypted\n"
    assert main(["purge", str(path), "--all"]) == 0
    assert capsys.readouterr().out == "1 entry removed\n"
