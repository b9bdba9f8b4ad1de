"""Growth with the number of entries: opening, hits, writes, memory and pauses at 10^4, 10^5 and 10^6 entries.

    python bench/scale.py [--entries 10000,100000,1000000] [--stores file,memory,redis] [--out DIR]
    python bench/scale.py --markdown bench/results/scale.json

An entry is a short chat request and an answer of 1 kB; the policy and the shadows are the default ones. Processes of
their own write the entries and read them again, so that memory and page caches of Python do not carry over.

    import, put      entries a second: of `knapcache import`, and of answers that are stored one by one
    open             seconds until the cache is constructed; first hit: until it has answered one request; ready: until
                     the policy has read all entries
    hit              microseconds of a request whose entry is in memory; small hit: in turns with it, in a second cache
                     with 10,000 entries; far hit: on disk or in the server
    read             microseconds in which the store reads an entry that is not in memory: a file in turns with SQLite
    count            microseconds in which the owner counts a hit that another process reports
    collection       milliseconds of a full garbage collection, which stops the process, before the store is opened and
                     when all its entries are known
    bytes an entry   resident memory above that of an empty cache, before the first hit: beside the memory tier
    stored bytes     of the files, or in the server, for each entry
    page, search     seconds for a page of all entries, and of those that contain a text; stats; snapshot; purge of all;
                     inspect: all entries, from another process
    pause            milliseconds: the slowest of the hits that another thread has asked for at the same time

Peers in the same run: SQLite with the same rows and their index (transactions of 1000), diskcache with the same bytes
(the same), and Redis with the same bytes (pipelines of 1000). Prints tables; writes scale.json and scale.png to DIR.
Rows of an earlier run about stores that are not in --stores are kept. --markdown prints the tables of
docs/guides/sizing.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import _scale_steps as steps
from _results import Row, commit, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.lab.figures import new_figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a server of the tests
from tests.support.redis_servers import RedisProcess, find_engine

STEPS: dict[str, Callable[[str, str, int], Row]] = {
    "write": lambda _, place, count: steps.write(place, count),
    "inspect": lambda _, place, count: steps.inspect(place, count),
    "read": steps.read,
    "administer": steps.administer,
    "write_plain": lambda _, place, count: steps.write_plain(place, count),
    "disk_cache": lambda _, place, count: steps.disk_cache(place, count),
    "plain_redis": lambda _, place, count: steps.plain_redis(place, count),
}
STEPS_OF = {
    "file": ("write", "write_plain", "disk_cache", "inspect", "read", "administer"),
    "memory": ("read", "administer"),
    "redis": ("plain_redis", "write", "inspect", "read", "administer"),
}
TABLES = {
    "store": (
        "import_per_s", "put_per_s", "open_s", "first_hit_s", "ready_s", "close_s", "bytes_an_entry", "stored_bytes",
    ),
    "requests": (
        "hit_p50_us", "hit_p99_us", "small_hit_p50_us", "far_hit_p50_us", "far_hit_p99_us", "read_p50_us",
        "read_p99_us", "count_us", "collection_before_ms", "collection_ms",
    ),
    "administration, seconds": ("page_s", "search_s", "stats_s", "snapshot_s", "purge_s", "inspect_s"),
    "pauses, ms": ("page_pause_ms", "search_pause_ms", "stats_pause_ms", "snapshot_pause_ms", "purge_pause_ms"),
    "peers": (
        "sqlite_write_per_s", "sqlite_read_p50_us", "diskcache_write_per_s", "diskcache_read_p50_us",
        "redis_write_per_s", "redis_read_p50_us", "redis_bytes_a_key",
    ),
}  # fmt: skip
MAX_PAUSE = 50.0
SHOWN = {
    "open_s": ("open, s", ".2f"), "ready_s": ("ready, s", ".1f"), "hit_p50_us": ("hit in memory, µs", ".0f"),
    "far_hit_p50_us": ("other hit, µs", ".0f"), "put_per_s": ("stored a second", ",.0f"),
    "import_per_s": ("imported a second", ",.0f"), "bytes_an_entry": ("memory, B an entry", ",.0f"),
    "stored_bytes": ("stored, B an entry", ",.0f"),
}  # fmt: skip
"""Columns of the page, and their format."""
KEYS, HITS, MISSES = 10**9, 10**5, 10**3
"""The large example of the page: keys, and hits and misses a second of all proxies."""
CONTENT = 1200
"""Bytes of a request and its answer."""
REPORT = 40
"""Bytes of a reported hit: the key and its count."""


def run_step(step: str, kind: str, place: str, count: int) -> Row:
    command = [sys.executable, __file__, "--step", step, kind, place, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {"KNAPCACHE_COMPILE": "1"})
    found: Row = json.loads(done.stdout)
    return found


def measure(kind: str, count: int) -> Row:
    """Return the numbers of one kind of store with so many entries."""
    row: Row = {"store": kind, "entries": count, "commit": commit()}
    folder = Path(tempfile.mkdtemp(prefix="knapcache-scale-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        server = stack.enter_context(RedisProcess(folder)) if kind == "redis" else None
        place = str(folder / "answers.db") if server is None else server.url
        for step in STEPS_OF[kind]:
            before = stored_bytes(folder, server)
            row |= run_step(step, kind, place, count)
            if step == "write":
                row["stored_bytes"] = (stored_bytes(folder, server) - before) / count
            print(f"{kind}, {count:,} entries: {step} done", file=sys.stderr)
    return row


def stored_bytes(folder: Path, server: RedisProcess | None) -> int:
    """Return the bytes of the files, or in the server."""
    if server is None:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


def other_rows(path: Path | None, kinds: list[str]) -> list[Row]:
    """Return the rows of an earlier run about stores that this one does not measure."""
    if path is None or not path.exists():
        return []
    return [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["store"] not in kinds]


def check_targets(rows: list[Row]) -> list[Row]:
    """Return the targets on the least and the most entries of a file."""
    found = [row for row in rows if row["store"] == "file"]
    if not found:
        return []
    few, many = min(found, key=lambda row: row["entries"]), max(found, key=lambda row: row["entries"])
    at = f"{many['entries']:,} entries"
    pauses = max(many[name] for name in TABLES["pauses, ms"])
    return [
        target(f"open: {at} − {few['entries']:,}", many["open_s"] - few["open_s"], at_most=3, unit="s"),
        target(f"resident memory, {at}", many["bytes_an_entry"], at_most=300, unit="B an entry"),
        target("full collection, growth", many["collection_ms"] - many["collection_before_ms"], at_most=20, unit="ms"),
        target("import ÷ SQLite's inserts", many["import_per_s"] / many["sqlite_write_per_s"], at_least=0.5, unit="×"),
        target("memory hit ÷ small hit", many["hit_p50_us"] / many["small_hit_p50_us"], at_most=1.2, unit="×"),
        target("disk read ÷ SQLite's", many["read_p50_us"] / many["sqlite_read_p50_us"], at_most=1.5, unit="×"),
        target("longest pause of a hit, administration", pauses, at_most=MAX_PAUSE, unit="ms"),
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Plot opening, hits, memory and collections over the number of entries."""
    figure, axes = new_figure(4, width=3.6)
    panels: tuple[tuple[str, str, dict[str, tuple[str, str]]], ...] = (
        ("seconds until ready", "ready_s", {}),
        ("hit in memory, p50, µs", "hit_p50_us", {}),
        ("read from the store, p50, µs", "read_p50_us", {"file": ("SQLite alone", "sqlite_read_p50_us")}),
        ("resident bytes an entry (memory: with it)", "bytes_an_entry", {}),
    )
    colours = {"file": "#0072B2", "memory": "#E69F00", "redis": "#009E73"}
    for axis, (title, name, peers) in zip(axes, panels, strict=True):
        for kind, colour in colours.items():
            for label, column, style in ((kind, name, "-"), *((*peer, "--") for peer in [peers.get(kind)] if peer)):
                points = [(row["entries"], row[column]) for row in rows if row["store"] == kind and column in row]
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=4, label=label)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("entries of 1 kB")
        axis.set_title(title)
        axis.legend()
    figure.savefig(path, dpi=140)


def tables(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield titles and rows of the tables."""
    for title, names in TABLES.items():
        shown = [name for name in names if any(name in row for row in rows)]
        kept = [row for row in rows if any(name in row for name in shown)]
        yield title, [{name: row.get(name) for name in ("store", "entries", *shown)} for row in kept]


def large_example(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """Yield what the large example needs, how that is computed, and the result."""
    largest = {row["store"]: row for row in sorted(rows, key=lambda row: row["entries"])}
    file, redis = largest["file"], largest["redis"]
    memory, stored, count = file["bytes_an_entry"], redis["stored_bytes"], redis["count_us"]
    yield "memory of the servers", f"10^9 × {stored:,.0f} B × 1.3", f"{KEYS * stored * 1.3 / 1e12:.1f} TB"
    yield "memory of the owners", f"10^9 × {memory:,.0f} B", f"{KEYS * memory / 1e9:,.0f} GB"
    yield "owners' CPU for hits", f"10^5/s × {count:.1f} µs", f"{HITS * count / 1e6:.2f} cores"
    put = redis["put_per_s"]
    yield "owners' CPU and waits for misses", f"10^3/s ÷ {put:,.0f}/s", f"{MISSES / put:.2f} cores"
    yield "servers to proxies, no near cache", f"10^5/s × {CONTENT:,} B", f"{8 * HITS * CONTENT / 1e9:.1f} Gbit/s"
    yield "proxies to owners, reported hits", f"10^5/s × {REPORT} B", f"{8 * HITS * REPORT / 1e6:.0f} Mbit/s"


def markdown(record: Row) -> str:
    """Return the tables of docs/guides/sizing.md."""
    names = ["store", "entries", *(title for title, _ in SHOWN.values())]
    lines = [names, ["---"] * len(names)]
    for row in record["rows"]:
        shown = [format(row[name], form) if name in row else "" for name, (_, form) in SHOWN.items()]
        lines.append([row["store"], f"{row['entries']:,}", *shown])
    example = [("what", "computed", "result"), ("---",) * 3, *large_example(record["rows"])]
    return "\n\n".join("\n".join(f"| {' | '.join(cells)} |" for cells in table) for table in (lines, example))


def main() -> None:
    parser = options_for(__doc__, "scale.json and scale.png")
    parser.add_argument("--entries", default="10000,100000,1000000", help="numbers of entries, separated by commas")
    parser.add_argument("--stores", default="file,memory,redis", help="some of file, memory and redis (default: all)")
    parser.add_argument("--step", nargs=4, help="one measurement, for the processes that this one starts")
    run_or_show(parser, run, markdown)


def run(args: argparse.Namespace) -> None:
    if args.step:
        step, kind, place, count = args.step
        print(json.dumps(STEPS[step](kind, place, int(count))))
        return
    kinds = args.stores.split(",")
    if "redis" in kinds and not find_engine("redis"):
        print("redis: skipped, there is no redis-server", file=sys.stderr)
        kinds.remove("redis")
    measured = [measure(kind, int(count)) for kind in kinds for count in args.entries.split(",")]
    rows = [*other_rows(args.out / "scale.json" if args.out else None, kinds), *measured]
    rows.sort(key=lambda row: (list(STEPS_OF).index(row["store"]), row["entries"]))
    for title, shown in tables(rows):
        print_table(shown, title=title)
    targets = check_targets(rows)
    print_targets(targets)
    write_result(args.out, "scale", {"rows": rows, "targets": targets})
    if args.out:
        draw(rows, args.out / "scale.png")


if __name__ == "__main__":
    main()
