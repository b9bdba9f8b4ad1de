"""Benchmark of the policy for the KV cache of an inference server: prompt tokens found, against LRU, ARC and S3-FIFO.

    python bench/kv.py [--out DIR] [--traces LIST] [--quick] [--seed N]
    python bench/kv.py --markdown FILE

Traces, all by default:

    chat         mooncake_conversation_blocks.jsonl.gz in $KNAPCACHE_TRACES (default ../shared/data): an hour of
                 production chat, blocks of 512 tokens
    agents       agent_sessions.csv.gz there: sessions of coding agents, blocks of 1,024 tokens
    synthetic    eight kinds of traffic (_chain_traces.py)

A missing file is reported and skipped. Where `make test-vllm` has built its environment, the trace `chat` is also
replayed through vLLM's own manager, with its policies `lru` and `arc` and with ours. The time of a block is the CPU
time of a whole replay of ours in the lab, lookups and bookkeeping included.

Prints tables; writes kv.json to DIR. --quick has short synthetic traces and few capacities. --markdown prints the
tables of docs/guides/kv.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _chain_traces import KINDS, synthetic
from _results import Row, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.lab.capacity import Capacity
from knapcache.lab.kv import MIN, POLICIES, BlockTrace, read_block_trace
from knapcache.lab.kv.replay import ADAPTIVE, LRU, replay_one
from knapcache.policy.chains.policy import warm_up
from knapcache_experiments.measured import traces_directory

ROOT = Path(__file__).resolve().parents[1]
VLLM = ROOT / ".venv-vllm/bin/python"
FILES = {"chat": ("mooncake_conversation_blocks.jsonl.gz", 512), "agents": ("agent_sessions.csv.gz", 1024)}
CAPACITIES = {"chat": "0.3%,1%,2%,5%,10%,30%", "agents": "1%,2%,5%,10%", "synthetic": "0.3%,1%,5%,20%"}
QUICK = "1%,5%"
REQUESTS, QUICK_REQUESTS = 8000, 300
MANAGER_CAPACITIES = ("1%", "5%")
MANAGER_POLICIES = {LRU: LRU, "arc": None, "AdaptivePolicy": ADAPTIVE}
"""Policies in vLLM's manager, and those of the lab that must give the same numbers."""
MIN_RATIO, MAX_MICROSECONDS = 0.99, 25.0
CHAT_RATIOS = {"1%": 1.8, "5%": 1.05}


def measure(name: str, trace: BlockTrace, capacity: str) -> Row:
    """Return the tokens found and the blocks written by each policy, and the time of a block of ours."""
    units = Capacity.parse(capacity).units(trace.blocks)
    row: Row = {"trace": name, "share": capacity, "blocks": units}
    for policy in (*POLICIES, MIN):
        start = time.process_time()
        found = replay_one(trace, units, policy, lambda _: None)
        if policy == ADAPTIVE:
            row["microseconds"] = 1e6 * (time.process_time() - start) / trace.offered
        row[policy] = found.tokens_found
        row[f"{policy}_written"] = found.blocks_written
    row["ratio"] = row[ADAPTIVE] / row[LRU] if row[LRU] else 1.0
    return row


def measure_manager(row: Row) -> list[Row]:
    """Return what vLLM's manager finds in `chat` at the capacity of a row, and how far the lab is from it."""
    file, block = FILES["chat"]
    command = [
        str(VLLM), "-m", "tests.support.vllm_manager", str(traces_directory() / file), str(block), str(row["blocks"]),
    ]  # fmt: skip
    done = subprocess.run([*command, *MANAGER_POLICIES], capture_output=True, text=True, check=True, cwd=ROOT)
    rows = []
    for one in map(json.loads, done.stdout.splitlines()):
        ours = MANAGER_POLICIES[one["policy"]]
        rows.append(
            {"policy": one["policy"], "share": row["share"], "blocks": row["blocks"]}
            | {"tokens_found": one["tokens_found"], "blocks_written": one["blocks_written"]}
            | {"microseconds": 1e6 * one["seconds"] / one["offered"]}
            | {"written_difference": ours and abs(one["blocks_written"] - row[f"{ours}_written"])}
            | {"found_difference": ours and abs(one["tokens_found"] - row[ours])}
        )
    return rows


def check_targets(record: Row) -> list[Row]:
    """Return the targets of what was measured."""
    targets = []
    for name in dict.fromkeys(row["trace"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["trace"] == name]
        worst = min(row["ratio"] for row in rows)
        targets.append(target(f"{name}: found ÷ LRU's, worst capacity", worst, at_least=MIN_RATIO))
        for row in rows:
            if name == "chat" and row["share"] in CHAT_RATIOS:
                least = CHAT_RATIOS[row["share"]]
                targets.append(target(f"{name}, {row['share']}: found ÷ LRU's", row["ratio"], at_least=least))
    for row in record.get("manager", ()):
        if row["found_difference"] is not None:
            metric = f"{row['policy']} in vLLM's manager, {row['share']}: difference to the lab"
            targets.append(target(metric, max(row["found_difference"], row["written_difference"]), at_most=0.0))
    times = [row["microseconds"] for row in record["rows"]]
    targets.append(
        target("time of a block, slowest run", max(times), at_most=MAX_MICROSECONDS, unit="µs") | {"worst": max(times)}
    )
    return targets


def header(title: str, rows: list[Row]) -> list[str]:
    """Return the first two lines of a table with a column for each capacity."""
    return [
        f"| {title} | {' | '.join(row['share'].replace('%', ' %') for row in rows)} |",
        "|---" * (len(rows) + 1) + "|",
    ]


def markdown(record: Row) -> str:
    """Return the tables of the documentation."""
    text = []
    for name in FILES:
        if rows := [row for row in record["rows"] if row["trace"] == name]:
            text += header(f"{name}: found", rows)
            text += [f"| `{one}` | {' | '.join(f'{row[one]:.3f}' for row in rows)} |" for one in (*POLICIES, MIN)]
            text.append("")
    kinds = [name for name in dict.fromkeys(row["trace"] for row in record["rows"]) if name not in FILES]
    for k, name in enumerate(kinds):
        rows = [row for row in record["rows"] if row["trace"] == name]
        text += header("synthetic: `adaptive` ÷ `lru`", rows) if k == 0 else []
        ratios = " | ".join(f"{row['ratio']:.2f}" for row in rows)
        text.append(f"| {name.removeprefix('synthetic ')} | {ratios} |")
    text.append("")
    if "manager" in record:
        text += ["| in vLLM's manager | capacity | found | blocks written |", "|---|---|---|---|"]
        for row in record["manager"]:
            share = row["share"].replace("%", " %")
            text.append(f"| `{row['policy']}` | {share} | {row['tokens_found']:.4f} | {row['blocks_written']:,} |")
    return "\n".join(text).rstrip()


def run(args: argparse.Namespace) -> None:
    names = args.traces.split(",") if args.traces else list(CAPACITIES)
    for name in names:
        if name not in CAPACITIES:
            raise InvalidInput(f"{name!r} is not one of {', '.join(CAPACITIES)}")
    warm_up()
    traces: list[tuple[str, str, BlockTrace]] = []
    for name in names:
        if name == "synthetic":
            requests = QUICK_REQUESTS if args.quick else REQUESTS
            traces += [(f"synthetic {kind}", name, synthetic(kind, requests, args.seed)) for kind in KINDS]
            continue
        file, block = FILES[name]
        if (path := traces_directory() / file).exists():
            traces.append((name, name, read_block_trace(path, block)))
        else:
            print(f"{name}: skipped, {path} does not exist", file=sys.stderr)
    record: dict[str, Any] = {"seed": args.seed, "quick": args.quick, "rows": []}
    for name, kind, trace in traces:
        rows = [measure(name, trace, one) for one in (QUICK if args.quick else CAPACITIES[kind]).split(",")]
        shown = ("share", "blocks", *POLICIES, MIN, "ratio", "microseconds")
        print_table([{column: row[column] for column in shown} for row in rows], title=name)
        record["rows"] += rows
    chat = [row for row in record["rows"] if row["trace"] == "chat" and row["share"] in MANAGER_CAPACITIES]
    if chat and VLLM.exists():
        record["manager"] = [one for row in chat for one in measure_manager(row)]
        print_table(record["manager"], title="chat in vLLM's manager")
    elif chat:
        print("vLLM's manager: skipped, run `make test-vllm` first", file=sys.stderr)
    record["targets"] = check_targets(record)
    print_targets(record["targets"])
    write_result(args.out, "kv", record)


def main() -> None:
    parser = options_for(__doc__, "kv.json")
    option = parser.add_argument
    option("--traces", metavar="LIST", help=f"traces, of {', '.join(CAPACITIES)} (default: all)")
    option("--quick", action="store_true", help="short traces and few capacities, to see that everything works")
    option("--seed", type=int, metavar="N", default=1, help="seed of the synthetic traces (default: 1)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
