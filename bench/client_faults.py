"""Faults of upstreams against HTTP clients: our own, aiohttp and httpx.

    python bench/client_faults.py [--out DIR] [--only CLIENT,…] [--fault TEXT]

The proxy has a client of its own because no library handles all of these faults. On the day one does, our client can
go: tests/bench/test_published_numbers.py fails on a committed result in which a library passes everything.

Each fault runs on a new event loop (uvloop), with a new client, for at most 10 seconds; a client that takes longer
fails it. Faults and what is expected are in _faults_*.py, the clients in _fault_clients.py.

Prints a table; writes client_faults.json into DIR. Exit status 1 if our own client fails one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import warnings
from pathlib import Path

from _results import options_for, write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the servers of the tests

import _faults_limits  # noqa: F401 - each of the three registers its faults
import _faults_network  # noqa: F401
import _faults_protocol  # noqa: F401
import uvloop
from _fault_clients import CLIENTS, ClientUnderTest, OwnClient
from _fault_harness import FAULTS, Case, Failure, Fault

from knapcache.cli.output import print_table

LIMIT = 10.0
"""Seconds for one fault."""
PASS = "pass"


def run_fault(client: type[ClientUnderTest], fault: Fault, folder: Path) -> str:
    """Run one fault. Returns "pass", or what the client did instead."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT):
            await fault(Case(client, folder))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)  # a client's abandoned tasks are its own fault
        try:
            runner.run(bounded())
        except Failure as failure:
            return str(failure)
        except TimeoutError:
            return f"hangs for {LIMIT:g} s"
        except Exception as error:  # a client that breaks in another way than expected fails the fault
            return f"raised {type(error).__name__}"
    return PASS


def measure(clients: list[type[ClientUnderTest]], text: str, folder: Path) -> list[dict[str, str]]:
    """A row for each fault whose name contains the text."""
    rows = []
    for name, (group, fault) in FAULTS.items():
        if text in name:
            results = {client.name: run_fault(client, fault, folder) for client in clients}
            rows.append({"group": group, "fault": name, **results})
    return rows


def main() -> int:
    parser = options_for(__doc__, "client_faults.json")
    parser.add_argument("--only", default="", metavar="CLIENT,…", help="only these clients")
    parser.add_argument("--fault", default="", metavar="TEXT", help="only faults whose name contains this")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else [client.name for client in CLIENTS]
    clients = [client for client in CLIENTS if client.name in names and client.installed()]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(clients, args.fault, Path(folder))
    passed = {client.name: sum(row[client.name] == PASS for row in rows) for client in clients}
    totals = {c.name: {"version": c.version(), "passed": passed[c.name], "of": len(rows)} for c in clients}
    print_table(rows, title="what clients do about faults")
    print_table([{"client": name, **total} for name, total in totals.items()])
    write_result(args.out, "client_faults", {"clients": totals, "rows": rows})
    return int(passed.get(OwnClient.name, len(rows)) != len(rows))


if __name__ == "__main__":
    sys.exit(main())
