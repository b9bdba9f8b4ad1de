"""The request log: the lab reads every request, its size is bounded, and it survives a kill."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.lab.traces import ColumnRules, read_trace
from knapcache.proxy.events import request_log
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.request_log import HEADER, MIN_CAPACITY, RequestLog, format_lines
from tests.support import ROOT
from tests.support.events import event, traffic
from tests.support.timing import check_seconds, cpu_seconds, wait_until


def used(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:
            continue
    return total


def log_all(folder: Path, events: list[Event], capacity: int = 1 << 20, batch: int = 100) -> RequestLog:
    log = RequestLog(folder, capacity)
    for k in range(0, len(events), batch):
        log.consume(events[k : k + batch])
    log.close()
    return log


def test_the_lab_reads_what_happened(tmp_path: Path) -> None:
    events = traffic(300)
    log = log_all(tmp_path / "deep" / "log", events)
    for source in (log.path, log.current):
        trace = read_trace(source)
        assert trace.names is not None
        assert trace.times is not None
        assert [trace.names[k] for k in trace.keys] == [e.key for e in events]
        assert trace.sizes.tolist() == [e.size for e in events]
        assert trace.costs.tolist() == [e.cost for e in events]
        assert trace.times.tolist() == [e.time for e in events]
    assert read_trace(log.path, ColumnRules(cost="usd")).total_cost == pytest.approx(sum(e.usd or 0 for e in events))
    assert read_trace(log.path, ColumnRules(cost="seconds")).total_cost == 600.0
    assert log.path.stat().st_mode & 0o777 == 0o700
    assert log.current.stat().st_mode & 0o777 == 0o600


def test_only_requests_that_a_replay_can_use() -> None:
    good = [event(outcome) for outcome in ("hit", "miss", "coalesced", "stale")]
    bad = [event(outcome) for outcome in ("bypass", "passthrough", "failed", "rejected")]
    bad += [event(size=0), event(key=""), event(cost=float("nan")), event(cost=float("inf")), event(cost=-1.0)]
    lines = list(format_lines([*bad, *good, *bad]))
    assert [line.rstrip().rpartition(b",")[2] for line in lines] == [b"hit", b"miss", b"coalesced", b"stale"]
    (line,) = format_lines([event(usd=None, model='a",b\n', tenant="secret,")])
    assert line == b"1700000000.000," + b"ab" * 32 + b",2000,0.5,unknown,2,hit\n"
    assert line.count(b",") == HEADER.count(b",")


def test_the_size_is_never_above_the_capacity_and_the_newest_lines_stay(tmp_path: Path) -> None:
    capacity, events = MIN_CAPACITY * 4, traffic(1000)
    log = RequestLog(tmp_path, capacity)
    stop, most = threading.Event(), 0

    def sample() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, used(tmp_path))

    sampler = threading.Thread(target=sample)
    sampler.start()
    written = 0
    for k in range(60):
        log.consume([e._replace(time=1.7e9 + written + j) for j, e in enumerate(events[: 100 + 15 * k])])
        written += 100 + 15 * k
        time.sleep(0.01)
    log.close()
    stop.set()
    sampler.join()
    assert log.dropped == 0
    assert capacity / 2 < most <= capacity
    trace = read_trace(tmp_path)
    assert trace.times is not None
    times = trace.times.tolist()
    assert times == [1.7e9 + written - len(times) + k for k in range(len(times))], "a suffix, whole and in order"
    assert 3 < len(list(tmp_path.glob("requests-*.csv.gz"))) < written * 100 / (capacity / 8), "some parts went"
    assert not list(tmp_path.glob(".*"))
    log = RequestLog(tmp_path, MIN_CAPACITY)  # a smaller capacity than before
    assert used(tmp_path) <= MIN_CAPACITY
    log.close()
    fewer = read_trace(tmp_path).times
    assert fewer is not None
    assert times[-len(fewer) :] == fewer.tolist()


@pytest.mark.parametrize("end", [b"", b"17", b"1700000000.000,ab", b"1700000000.000,abab,500,0.1,0.1,2,h"])
def test_a_truncated_line_is_removed_at_the_next_start(end: bytes, tmp_path: Path) -> None:
    log = log_all(tmp_path, traffic(10))
    log.current.write_bytes(log.current.read_bytes() + end)
    assert len(read_trace(log.path)) == 10 + end.startswith(b"1700000000.000,abab")
    log_all(tmp_path, traffic(5))
    assert len(read_trace(log.path)) == 15


def test_files_that_a_kill_leaves_are_recovered(tmp_path: Path) -> None:
    lines = HEADER + b"".join(format_lines(traffic(50)))
    (tmp_path / "requests-000001.csv.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "requests-000001.csv").write_bytes(lines)  # compressed, and not yet deleted
    (tmp_path / "requests-000002.csv").write_bytes(lines)  # not yet compressed
    (tmp_path / ".requests-000002.csv.gz.part").write_bytes(b"\x1f\x8bhalf")
    (tmp_path / ".requests.csv.part").write_bytes(HEADER[:9])
    assert len(read_trace(tmp_path)) == 100
    log_all(tmp_path, traffic(7))
    assert len(read_trace(tmp_path)) == 107
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "requests-000001.csv.gz",
        "requests-000002.csv.gz",
        "requests.csv",
    ]


def test_a_file_with_other_columns_becomes_a_part(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_bytes(b"time,key,size,cost\n1,a,2,3\n")
    log_all(tmp_path, traffic(3))
    assert read_trace(tmp_path / "requests-000001.csv.gz").names == ["a"]
    assert len(read_trace(tmp_path)) == 4


KILLED = """
import sys, time
sys.path[:0] = [{root!r}]
from tests.support.events import traffic
from knapcache.proxy.events.request_log import RequestLog
log, events, k = RequestLog({folder!r}, 1 << 16), traffic(2000), 0
while True:
    log.consume([e._replace(time=1.7e9 + (k := k + 1)) for e in events[: 50]])
    print(k, time.monotonic(), flush=True)
    time.sleep(0.002)
"""


@pytest.mark.parametrize("after", [0.02, 0.11, 0.37, 1.4])
def test_kill_9_loses_less_than_a_second_and_leaves_what_the_lab_can_read(after: float, tmp_path: Path) -> None:
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    output = [process.stdout.readline()]
    wait_until(lambda: used(tmp_path) > len(HEADER), "the first requests")
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    output += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    printed = [(int(words[0]), float(words[1])) for words in map(str.split, output) if len(words) == 2]
    old = max((k for k, moment in printed if moment < killed - 1.0), default=1)
    trace = read_trace(tmp_path)
    assert trace.times is not None
    times = (trace.times - 1.7e9).tolist()
    assert times == [times[0] + k for k in range(len(times))]
    assert times[-1] >= old
    assert set(trace.sizes.tolist()) <= {e.size for e in traffic(2000)}
    log_all(tmp_path, traffic(1), capacity=1 << 16)
    assert read_trace(tmp_path).sizes[-1] == traffic(1)[0].size


def test_the_commands_of_the_lab_read_folder_file_and_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = traffic(1500)
    log = log_all(tmp_path, events, capacity=MIN_CAPACITY * 8)
    part = tmp_path / "requests-000001.csv.gz"

    def run_json(*words: object) -> Any:
        assert main([str(word) for word in words]) == 0
        return json.loads(capsys.readouterr().out)

    replay = ("--policy", "lru,gdsf-cost", "--capacity", "10%", "--jobs", 1, "--json", "-")
    whole, last, first = (run_json("replay", source, *replay) for source in (log.path, log.current, part))
    assert whole[0]["requests"] == 1500 == last[0]["requests"] + first[0]["requests"] * 2
    assert whole[0]["total_cost"] == pytest.approx(sum(e.cost for e in events))
    parts = sorted(tmp_path.iterdir())
    assert [{**row, "seconds": 0} for row in run_json("replay", *parts, *replay)] == [
        {**r, "seconds": 0} for r in whole
    ]
    plan = ("--policy", "lru,gdsf-cost", "--capacity", "10%,50%", "--jobs", 1, "--json", "-")
    for source, name, requests in ((log.path, tmp_path.name, 1500), (part, part.name, first[0]["requests"])):
        made = run_json("plan", source, *plan)
        assert (made["log"], made["requests"]) == (name, requests)
    assert run_json("plan", part, log.current, *plan)["log"] == f"{part.name} and 1 more"


def test_a_full_disk_drops_lines_and_nothing_else(tmp_path: Path) -> None:
    """In a subprocess with a limit on the size of files: the write that reaches it is short."""
    code = f"""
import resource, signal, sys, time
sys.path[:0] = [{str(ROOT)!r}]
from tests.support.events import traffic
from knapcache.proxy.events.request_log import RequestLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = RequestLog({str(tmp_path)!r}, 1 << 20)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_001, hard))
for k in range(4):
    log.consume(traffic(100))
while log.dropped < 300:
    time.sleep(0.01)
time.sleep(0.2)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.consume(traffic(10))
log.close()
print(log.dropped)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    dropped = int(done.stdout)
    assert dropped in (300, 400), "lines that are written together are lost together"
    assert len(read_trace(tmp_path)) == 410 - dropped


def test_invalid_arguments_raise_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"cannot write the request log to .*file"):
        RequestLog(tmp_path / "file", 1 << 20)
    with pytest.raises(InvalidInput, match="at least 65536 bytes, not 1000"):
        RequestLog(tmp_path, 1000)
    log = log_all(tmp_path / "new", [])
    with pytest.raises(InvalidInput, match="contains no requests"):
        read_trace(log.path)
    log.consume([event()])
    assert log.dropped == 1, "closed"
    log.close()


def test_requests_that_do_not_fit_the_queue_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_WAITING", 50)
    log = RequestLog(tmp_path, 1 << 20)
    log.consume(traffic(200))
    log.close()
    assert log.dropped == 150
    assert len(read_trace(tmp_path)) == 50


def test_consume_takes_less_than_5_us_an_event(tmp_path: Path) -> None:
    log, batch = RequestLog(tmp_path, 1 << 24), traffic(1000)
    best = min(cpu_seconds(partial(log.consume, batch)) for _ in range(5))
    log.close()
    check_seconds(best / len(batch), 5e-6, "an event")


def test_the_columns_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
    table = page.split("| column |")[1].split("\n\n")[0]
    assert ",".join(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == HEADER.decode().strip()
