"""bench/client_faults.py: it tells good clients from bad ones, and its committed result justifies our own client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from _fault_clients import OwnClient  # noqa: E402 - after the path it is found by
from _fault_harness import FAULTS, Case  # noqa: E402
from client_faults import PASS, run_fault  # noqa: E402


def test_the_committed_result() -> None:
    """The proxy's client passes all faults, and no library does. Where one does, our client is no longer needed."""
    record = json.loads((BENCH / "results" / "client_faults.json").read_text(encoding="utf-8"))
    assert [row["fault"] for row in record["rows"]] == list(FAULTS), "run bench/client_faults.py --out bench/results"
    assert len(FAULTS) >= 40
    for name, client in record["clients"].items():
        passed = sum(row[name] == PASS for row in record["rows"])
        assert (client["passed"], client["of"]) == (passed, len(FAULTS))
        assert (passed == len(FAULTS)) == (name == OwnClient.name), f"{name} passes {passed} of {len(FAULTS)}"


@pytest.mark.parametrize("name", ["bare LF as line end", "client closed before the head", "1xx responses without end"])
def test_our_client_passes(name: str, tmp_path: Path) -> None:
    assert run_fault(OwnClient, FAULTS[name][1], tmp_path) == PASS


def test_what_a_client_did_instead_is_reported(tmp_path: Path) -> None:
    async def accept_anything(case: Case) -> None:
        from tests.support.scripted_server import OK, respond_always

        async with case.serve(respond_always(OK)) as harness:
            await harness.must_fail()

    assert run_fault(OwnClient, accept_anything, tmp_path) == "accepted: status 200, body b'hi'"


def test_from_the_command_line_to_a_file(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "client_faults.py"), "--fault", "content-length", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "client_faults.json").read_text(encoding="utf-8"))
    assert record["clients"][OwnClient.name]["passed"] == len(record["rows"]) == 4
