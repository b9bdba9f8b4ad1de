"""A comparison of designs as tables for people, JSON, CSV and a figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from knapcache.sim.figures import as_png, new_figure
from knapcache.sim.sharing.compare import Row, mean_extra_costs
from knapcache.sim.sharing.designs import REFERENCE, find_design
from knapcache.units import format_size

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
LINEAR_BELOW = 0.01
"""Extra costs up to 1 % have a linear axis, larger ones a logarithmic one."""


def legend(rows: Sequence[Row]) -> list[str]:
    """Return what each column of the tables means, one line each."""
    lines = [f"{REFERENCE.name}: {REFERENCE.summary}, as cost with the cache / cost without"]
    for name in design_names(rows):
        late = next(row for row in rows if row["design"] == name)
        details = []
        if late["hits_late"] is not None:
            details.append(f"hits {late['hits_late']:,} requests late, misses {late['settles_late']:,}")
        if late["nursery"] is not None:
            details.append(f"nursery of {100 * late['nursery']:g} % of the capacity")
        lines.append(f"{name}: {find_design(name).summary}" + (f" ({'; '.join(details)})" if details else ""))
    return lines


def design_names(rows: Sequence[Row]) -> list[str]:
    """Return the designs in the rows, without the reference, in their order."""
    return [name for name in dict.fromkeys(row["design"] for row in rows) if name != REFERENCE.name]


def proxy_counts(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of proxies in the rows; [0] if no design depends on it."""
    return list(dict.fromkeys(row["proxies"] for row in rows if row["proxies"] is not None)) or [0]


def table(rows: Sequence[Row], proxies: int) -> list[dict[str, Any]]:
    """Return the extra costs for one number of proxies: a row per trace, capacity and policy, and the means.

    The first column identifies the row, because a table that is too wide is printed in parts that repeat only this one.
    """
    traces, policies = (len({row[name] for row in rows}) > 1 for name in ("trace", "policy"))
    first = ", ".join(["trace"] * traces + ["capacity"] + ["policy"] * policies)
    shown = [row for row in rows if row["proxies"] in (None, proxies)]
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in shown:
        place = (row["trace"], row["capacity_text"], row["policy"])
        if row["design"] == REFERENCE.name:
            label = [row["trace"]] * traces + [capacity_label(row)] + [row["policy"]] * policies
            ratio = row["cost_ratio"]
            lines[place] = {first: ", ".join(label), REFERENCE.name: None if ratio is None else f"{ratio:.4f}"}
        else:
            lines[place][row["design"]] = signed_percent(row["extra_cost"])
    found = list(lines.values())
    means: dict[str, dict[str, Any]] = {}
    for mean in mean_extra_costs(shown):
        line = means.setdefault(mean["policy"], {first: ", ".join(["mean"] + [mean["policy"]] * policies)})
        line[mean["design"]] = signed_percent(mean["mean_extra_cost"])
    return found + list(means.values()) if len(found) > len(means) else found


def capacity_label(row: Row) -> str:
    text: str = row["capacity_text"]
    return f"{text.removesuffix('%')} %" if text.endswith("%") else format_size(row["capacity"])


def signed_percent(share: float | None) -> str | None:
    return None if share is None else f"{100.0 * share:+.2f} %"


def to_json(rows: Sequence[Row]) -> str:
    return json.dumps(list(rows), indent=1, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def figure_png(rows: Sequence[Row], title: str) -> bytes:
    """Return a panel per policy: the mean extra cost of each design as a bar, single traces and capacities as dots."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    designs, counts = design_names(rows), proxy_counts(rows)
    figure, panels = new_figure(len(policies), width=6.4, height=1.6 + 0.28 * len(designs) * max(2, len(counts)))
    thickness = 0.8 / len(counts)
    means = {(m["policy"], m["design"], m["proxies"]): m["mean_extra_cost"] for m in mean_extra_costs(rows)}
    for axes, policy in zip(panels, policies, strict=True):
        for place, design in enumerate(designs):
            bars = [n for n in (*counts, None) if (policy, design, n) in means]
            for k, n in enumerate(bars):
                y = place + thickness * (k - (len(bars) - 1) / 2)
                colour = "#444444" if n is None else COLOURS[counts.index(n) % len(COLOURS)]
                mean = means[policy, design, n]
                axes.barh(y, mean, 0.9 * thickness, color=colour, alpha=0.75)
                cells = [
                    row["extra_cost"]
                    for row in rows
                    if (row["policy"], row["design"], row["proxies"]) == (policy, design, n)
                    and row["extra_cost"] is not None
                ]
                axes.plot(cells, [y] * len(cells), ".", color="#000000", markersize=3, alpha=0.5)
                right = max(mean, *cells)
                axes.annotate(
                    f"mean {100 * mean:+.1f} %", (right, y), (4, 0), textcoords="offset points", va="center", fontsize=8
                )
        axes.set_yticks(range(len(designs)), designs)
        axes.invert_yaxis()
        axes.set_xscale("symlog", linthresh=LINEAR_BELOW)
        axes.set_xlim(right=3.0 * max((abs(row["extra_cost"] or 0.0) for row in rows), default=1.0) + LINEAR_BELOW)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:+g} %" if x else "0")
        axes.set_xlabel("cost above one shared cache with instant statistics")
        axes.set_title(policy)
        for k, n in enumerate(counts):
            if n:
                axes.barh(0, 0, color=COLOURS[k % len(COLOURS)], alpha=0.75, label=f"{n} proxies")
        if any(row["proxies"] is None and row["design"] != REFERENCE.name for row in rows):
            axes.barh(0, 0, color="#444444", alpha=0.75, label="any number")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(title, fontsize=10)
    return as_png(figure)
