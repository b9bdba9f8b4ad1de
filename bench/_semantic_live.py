"""Part `live` of bench/semantic.py: throughput of exact hits with the semantic tier off and in shadow.

Two proxies run on the same core, with the same 100 short questions, warm; they are measured in turns. The tier runs
after an exact miss only, so the two should not differ.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import _semantic_questions
from _results import Row
from _server_processes import UPSTREAM_CORE, ServerProcess, baseline_server, knapcache

from proxy import CHAT, HEADERS, PROMPTS, HitServer, hit_round, send_all, zipf_order

ROUNDS, SECONDS = 9, 2.0
MODES = ("off", "shadow")


def hit_throughput() -> Row:
    """Return hits a second and CPU time of a hit in both modes, and their ratios.

    It needs a quiet machine: with other work on both cores, two proxies with the tier off differed by 4 % in CPU time.
    """
    texts = [question.text for question in _semantic_questions.each_once(1)[:PROMPTS]]
    requests = [(CHAT, HEADERS, json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}))
                for text in texts]  # fmt: skip
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        upstream = stack.enter_context(baseline_server("upstream", folder / "upstream", 0.0, core=UPSTREAM_CORE))
        subjects = {}
        for mode in MODES:
            server: ServerProcess = knapcache(folder / mode, upstream.port, "--semantic", mode)
            subjects[mode] = HitServer(stack.enter_context(server), requests, "x-knapcache: hit")
            send_all(subjects[mode], 3)
        order = zipf_order()
        for number in range(ROUNDS):
            for mode in MODES if number % 2 else reversed(MODES):
                done, cpu_us = hit_round(subjects[mode], order, SECONDS)
                assert done["bad"] == 0, f"{mode}: {done['bad']} of {done['requests']} answers are not hits"
                rates[mode].append(done["requests"] / done["seconds"])
                cpu[mode].append(cpu_us)
    ratios = [shadow / off for off, shadow in zip(*rates.values(), strict=True)]
    return {
        "hits_per_second_off": max(rates["off"]), "hits_per_second_shadow": max(rates["shadow"]), "rounds": ROUNDS,
        "ratio": statistics.median(ratios), "worst_ratio": min(ratios), "cpu_us_off": min(cpu["off"]),
        "cpu_us_shadow": min(cpu["shadow"]), "cpu_ratio": min(cpu["off"]) / min(cpu["shadow"]),
    }  # fmt: skip
