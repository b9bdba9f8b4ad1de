"""`knapcache kv TRACE`: compare policies for the KV cache of an inference server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knapcache.cli import options, trace_options
from knapcache.cli.output import print_table, print_text, progress_bar
from knapcache.units import counted

if TYPE_CHECKING:
    from knapcache.lab.kv import BlockTrace, KvRow

HELP = "compare policies for the KV cache of an inference server"
DESCRIPTION = """Replay a trace of prompts against a KV cache in host memory, such as that of vLLM's offloading
connector, and report what each policy would have found. The cache holds blocks of equal size. A block is found only if
all blocks before it are resident.

Prints one row per capacity and policy: the share of the tokens in full blocks that was found, and the blocks written.
--json has the exact numbers. The policies:

  lru        the least recently used block; vLLM's default
  arc        ARC, which knows no chains
  s3-fifo    S3-FIFO, which knows no chains
  adaptive   knapcache.integrations.vllm: a tournament of rules over chains
  min        Belady's rule, which knows the future: the bound; always shown"""
EXAMPLES = r"""examples:
  knapcache kv conversation_trace.jsonl
  knapcache kv agent_sessions.csv.gz --block 1024 --capacity 1%,2%,5% \
      --policy lru,adaptive --json found.json --plot found.png

"""


def add_options(parser: argparse.ArgumentParser) -> None:
    from knapcache.lab.kv import POLICIES
    from knapcache.lab.kv.read import FORMATS

    parser.description = DESCRIPTION
    trace_options.add_trace_files(parser, EXAMPLES, FORMATS)
    option = parser.add_argument
    option("--block", type=int, metavar="N", default=512, help="tokens of a block (default: 512)")
    option(
        "--capacity",
        metavar="LIST",
        default="1%,5%",
        help="comma-separated capacities in blocks, or in %% of the distinct blocks of the trace (default: 1%%,5%%)",
    )
    policies = ",".join(POLICIES)
    option("--policy", metavar="LIST", default=policies, help=f"comma-separated policies (default: {policies})")
    options.add_json_file(parser)
    options.add_plot(parser, "a chart of the shares")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.lab.capacity import Capacity
    from knapcache.lab.kv import read_block_trace, replay_kv
    from knapcache.lab.kv.replay import check_policies

    # Everything that can be rejected is rejected before the trace is read.
    policies = trace_options.split_list(args.policy)
    check_policies(policies)
    capacities = [Capacity.parse(text) for text in trace_options.split_list(args.capacity)]
    out = options.ResultOutput(args)
    name = trace_options.trace_name(args.trace)
    with progress_bar() as bar:
        task = bar.add_task(f"reading {name}", total=None)
        trace = read_block_trace(
            args.trace, args.block, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
        bar.remove_task(task)
        requests = len(trace.chains)
        total = requests * len(capacities) * (len(policies) + 1)
        task = bar.add_task(f"replaying {requests:,} requests", total=total)
        found = replay_kv(trace, capacities, policies, progress=lambda done: bar.advance(task, done))
    rows = [row._asdict() for row in found]
    paths = out.write(rows, lambda: figure_png(found, trace.blocks, name))
    if paths is None:
        return
    print_text(facts(trace))
    print_table(rows)
    for path in paths:
        print(path)


def facts(trace: BlockTrace) -> str:
    """Return a sentence about the trace."""
    return (
        f"{counted(len(trace.chains), 'request')} with {counted(trace.offered, 'full block')} of "
        f"{counted(trace.block, 'token')}, of which {trace.blocks:,} are distinct."
    )


def figure_png(rows: Sequence[KvRow], blocks: int, title: str) -> bytes:
    """Return a chart of the shares by capacity, one line for each policy."""
    from knapcache.lab.figures import as_png, new_figure, style
    from knapcache.lab.kv import MIN

    figure, (axes,) = new_figure()
    for policy in dict.fromkeys(row.policy for row in rows):
        points = [(100.0 * row.capacity / blocks, row.tokens_found) for row in rows if row.policy == policy]
        look = style("offline" if policy == MIN else policy)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=policy, **look)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("capacity, % of distinct blocks")
    axes.set_ylabel("share of prompt tokens found")
    axes.set_title(title)
    axes.legend()
    return as_png(figure)
