"""A sweep on a real cluster of two processes equals a local one, and a cluster that fails gives an error of one
line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import knapcache
from knapcache.cli.main import main
from knapcache.errors import ClusterFailed, InvalidInput, MissingExtra, install_command
from knapcache.lab.cluster import DaskExecutor
from knapcache.lab.executors import sweep
from knapcache.lab.grid import replay_grid
from knapcache.lab.synthetic import Workload
from tests.support import commands
from tests.support.front_proxies import accepts
from tests.support.programs import find_module
from tests.support.timing import DEADLINE, wait_until, within

distributed = find_module("distributed", "the extra cluster")

_, TRACE = Workload(queries=30, rounds=400).draw(np.random.default_rng(5))
COMMAND = [sys.executable, "-W", "error", *commands.COMMAND[1:]]


@contextmanager
def dask(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a command of Dask, and kill it at the end."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    process = subprocess.Popen([sys.executable, "-m", "dask", *arguments], env=env, **quiet)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def started_scheduler() -> Iterator[str]:
    """Start `dask scheduler`; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    with dask("scheduler", "--host", address, "--no-dashboard"):
        wait_until(lambda: accepts(port), "the scheduler")
        yield address


@contextmanager
def started_workers(address: str, count: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Start as many `dask worker` for a scheduler that has none."""
    with ExitStack() as stack:
        for _ in range(count):
            options = ["--nthreads", "1", "--no-dashboard", "--no-nanny"]
            stack.enter_context(dask("worker", address, *options, environment=environment))
        with distributed.Client(address, timeout=DEADLINE) as client, within(DEADLINE, "the workers"):
            client.wait_for_workers(count, timeout=DEADLINE)
        yield


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started_scheduler() as scheduler, started_workers(scheduler, 2):
        yield scheduler


@pytest.fixture(scope="module")
def other_scheduler() -> Iterator[str]:
    with started_scheduler() as found:
        yield found


@pytest.fixture
def scheduler(other_scheduler: str) -> str:
    """A scheduler without workers: those of the last test are gone."""
    with distributed.Client(other_scheduler, timeout=DEADLINE) as client:
        wait_until(lambda: not client.scheduler_info()["workers"], "the end of the workers")
    return other_scheduler


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def describe(arrays: list[np.ndarray[Any, Any]], k: int) -> tuple[int, int, int, bool]:
    time.sleep(0.05)
    return k, os.getpid(), id(arrays[0]), arrays[0].flags.writeable


def fails_on_3(k: int) -> int:
    if k == 3:
        raise InvalidInput("cannot use 3")
    return k


def lost_file(k: int) -> int:
    raise FileNotFoundError(f"no file {k}")


def dies_once(folder: Path, k: int) -> int:
    if k == 2 and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)
    return k


def note(folder: Path, k: int) -> None:
    (folder / str(k)).touch()
    time.sleep(0.5)


def test_rows_equal_those_of_this_machine(address: str) -> None:
    with DaskExecutor(address) as cluster:
        there = [replay_grid(TRACE, ["lru", "gdsf-cost"], ["10%", 60, "50%"], jobs=cluster) for _ in range(2)]
    here = replay_grid(TRACE, ["lru", "gdsf-cost"], ["10%", 60, "50%"], jobs=1)
    assert without_seconds(there[0]) == without_seconds(there[1]) == without_seconds(here)


def test_shared_values_are_sent_once_to_each_worker(address: str) -> None:
    with DaskExecutor(address) as cluster:
        assert sweep(abs, [], jobs=cluster) == []
        found = sweep(describe, range(12), shared=([np.arange(1_000_000)],), jobs=cluster)
    assert [k for k, *_ in found] == list(range(12))
    workers = {pid for _, pid, _, _ in found}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert len({(pid, place) for _, pid, place, _ in found}) == 2
    assert all(writable for *_, writable in found)  # kernels are compiled for such arrays


def test_an_exception_of_an_item_reaches_the_caller(address: str) -> None:
    with DaskExecutor(address) as cluster:
        with pytest.raises(InvalidInput, match="cannot use 3"):
            sweep(fails_on_3, range(6), jobs=cluster)
        with pytest.raises(FileNotFoundError, match="no file 0"):
            sweep(lost_file, range(2), jobs=cluster)
        assert sweep(fails_on_3, range(3), jobs=cluster) == [0, 1, 2]  # the cluster is still usable


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore Python's SIGINT handler: in the background of a script SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_no_item_starts_after_an_interrupt(address: str, tmp_path: Path) -> None:
    with DaskExecutor(address) as cluster:
        timer = threading.Timer(0.6, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            sweep(note, range(40), shared=(tmp_path,), jobs=cluster)
        timer.join()
        time.sleep(0.7)  # running items finish
        begun = len(list(tmp_path.iterdir()))
        time.sleep(0.6)
        assert len(list(tmp_path.iterdir())) == begun < 20


def test_the_command(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    columns = (TRACE.keys.tolist(), TRACE.sizes.tolist(), TRACE.costs.tolist())
    lines = ["key,size,cost", *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    arguments = ["replay", str(path), "--no-time", "--policy", "lru", "--capacity", "10%,30%", "--json", "-"]
    there = subprocess.run([*COMMAND, *arguments, "--scheduler", address], capture_output=True, text=True, check=False)
    assert (there.returncode, there.stderr) == (0, "")
    assert main([*arguments, "--jobs", "1"]) == 0
    assert without_seconds(json.loads(there.stdout)) == without_seconds(json.loads(capsys.readouterr().out))


def test_plan_and_experiment_take_a_scheduler(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("key,size,cost\n" + "a,5,1\nb,6,2\n" * 20)
    plan = ["plan", str(path), "--no-time", "--policy", "lru", "--capacity", "5,11", "--json", "-"]
    texts = []
    for options in (["--scheduler", address], ["--jobs", "1"]):
        assert main([*plan, *options]) == 0
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1]
    small = ["--quick", "--rounds", "60", "--repeats", "2", "--queries", "10", "--policy", "lru"]
    for name, options in (("there", ["--scheduler", address]), ("here", ["--jobs", "1"])):
        assert main(["experiment", "figure-1", *small, *options, "--out", str(tmp_path / name)]) == 0
    one, two = ((tmp_path / name / "figure-1.json").read_bytes() for name in ("there", "here"))
    assert one == two


@pytest.mark.long
def test_a_worker_that_dies_is_replaced_by_the_other_until_there_is_none(scheduler: str, tmp_path: Path) -> None:
    with started_workers(scheduler, 2), DaskExecutor(scheduler) as cluster:
        assert sweep(dies_once, range(8), shared=(tmp_path,), jobs=cluster) == list(range(8))
        assert (tmp_path / "died").exists()
        with pytest.raises(ClusterFailed, match=r"died, and so did|lost the work"):
            sweep(os._exit, [1], jobs=cluster)


@pytest.mark.long
def test_the_command_is_interrupted(scheduler: str, tmp_path: Path) -> None:
    arguments = ["experiment", "long-run", "--rounds", "10000000", "--out", str(tmp_path / "out")]
    with started_workers(scheduler, 1), DaskExecutor(scheduler) as watching:
        run = subprocess.Popen(
            [*COMMAND, *arguments, "--scheduler", scheduler],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=commands.allow_interrupts,
        )
        wait_until(lambda: any(watching._client.processing().values()), "the first work")
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=60) == ("", "knapcache: interrupted\n")
        assert run.returncode == 130
    assert not (tmp_path / "out").exists()


def write_changed_copy(package: Path) -> None:
    shutil.copytree(Path(knapcache.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "model.py").open("a") as file:
        file.write("# changed\n")


def write_empty_package(package: Path) -> None:
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.0.1'")


@pytest.mark.parametrize(
    ("write_package", "message"),
    [
        (write_changed_copy, "runs knapcache .*, this process .*: install the same version$"),
        (write_empty_package, "cannot run this knapcache: ModuleNotFoundError"),
    ],
)
def test_a_worker_with_different_code(
    write_package: Callable[[Path], None], message: str, scheduler: str, tmp_path: Path
) -> None:
    write_package(tmp_path / "knapcache")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with (
        started_workers(scheduler, 1, {"PYTHONPATH": path}),
        DaskExecutor(scheduler) as cluster,
        pytest.raises(ClusterFailed, match=f"^worker tcp://.* {message}"),
    ):
        replay_grid(TRACE, ["lru"], [5, 6], jobs=cluster)


@pytest.mark.long
def test_a_cluster_that_stops(tmp_path: Path) -> None:
    with started_scheduler() as scheduler, started_workers(scheduler, 1):
        cluster = DaskExecutor(scheduler)
        work = threading.Thread(target=lambda: seen.append(failure(cluster, tmp_path)))
        seen: list[str] = []
        work.start()
        wait_until(lambda: list(tmp_path.iterdir()), "the first item")
    work.join(60)
    cluster.close()
    assert seen == [f"the cluster at {scheduler} lost the work: its scheduler, or all workers that had it, stopped"]


def failure(cluster: DaskExecutor, folder: Path) -> str:
    with pytest.raises(ClusterFailed) as caught:
        sweep(note, range(40), shared=(folder,), jobs=cluster)
    return str(caught.value)


def test_a_scheduler_without_workers(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.lab.cluster.TIMEOUT", 1.0)
    with pytest.raises(ClusterFailed, match=f"^the scheduler at {scheduler} has no workers: start"):
        DaskExecutor(scheduler)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "cannot reach a Dask scheduler at .*: no reply"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\nthis server does not speak Dask's protocol", "is not a Dask scheduler"),
    ],
)
def test_another_server_at_the_address(reply: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.lab.cluster.TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        calls: list[socket.socket] = []

        def answer() -> None:
            while True:
                try:
                    calls.append(server.accept()[0])
                    calls[-1].sendall(reply)
                except ConnectionError:  # the first connection only probes the port
                    continue
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        with within(20, "the error"), pytest.raises(ClusterFailed, match=message):
            DaskExecutor(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        for call in calls:
            call.close()


def test_no_server_at_the_address() -> None:
    """The command prints one line soon, and none of Dask's logs."""
    arguments = ["replay", "nowhere.csv", "--policy", "lru", "--capacity", "5", "--scheduler", "tcp://127.0.0.1:1"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "knapcache: error: cannot reach a Dask scheduler at tcp://127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize("address", ["", "nonsense", "foo://host:1", "tcp://", "tcp://host:99999", "tcp://host:0"])
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(InvalidInput, match="is not the address of a Dask scheduler; it must look like tcp://host:8786"):
        DaskExecutor(address)


def test_jobs_and_scheduler_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["replay", "x", "--policy", "lru", "--capacity", "5", "--jobs", "2", "--scheduler", "tcp://host:1"])
    assert "argument --scheduler: not allowed with argument --jobs" in capsys.readouterr().err


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("cluster"))):
        DaskExecutor("tcp://127.0.0.1:1")
