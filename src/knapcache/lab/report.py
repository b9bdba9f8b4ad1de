"""A capacity plan as files: an HTML page with interactive plots, a PNG figure and JSON.

The page embeds its own copy of plotly.js. It makes no network request, and its Content-Security-Policy forbids any.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knapcache.errors import MissingExtra, install_command
from knapcache.lab.figures import as_png, new_figure, style
from knapcache.lab.plan import CapacityPlan
from knapcache.lab.summary import cost, facts, legend, price_unit, recommendation, table, to_json, unit_name
from knapcache.units import number

DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
ORACLE = "Oracle"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd }}
.plot {{ height: 26rem; margin: 1.5rem 0 }}
</style>
<script>{library}</script></head>
<body><h1>{title}</h1>
{text}
{plots}
<p>{legend}</p>
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
</body></html>
"""


@dataclass(frozen=True)
class PlotLine:
    """One curve: a y value per capacity, None where there is no point."""

    name: str
    y: Sequence[float | None]
    errors: Sequence[float] | None = None

    @property
    def look(self) -> dict[str, Any]:
        """Colour and line style as Matplotlib arguments."""
        return {"color": "#000000", "linestyle": ":"} if self.name == ORACLE else style(self.name)


@dataclass(frozen=True)
class Panel:
    """One plot, independent of the plotting library."""

    title: str
    lines: Sequence[PlotLine]
    logarithmic: bool = False
    level: float | None = None
    """Height of a horizontal line: the largest possible saving."""


def panels(plan: CapacityPlan) -> list[Panel]:
    """Return the plots of cost ratio, saving and price over capacity."""
    stats, (factor, unit) = plan.stats, price_unit(plan)
    where, money = range(len(plan.capacities)), unit_name(stats.unit)
    costs, saved, prices = [], [], []
    for curve in plan.curves:
        ratios, errors = zip(*(cost(plan, curve.policy, k) for k in where), strict=True)
        costs.append(PlotLine(curve.policy, ratios, errors if curve.errors else None))
        saved.append(PlotLine(curve.policy, curve.saved, curve.errors))
        # A log axis cannot show zero, or the negative price of a policy that saves less with more capacity.
        prices.append(PlotLine(curve.policy, [p * factor if p is not None and p > 0 else None for p in curve.prices]))
    prices.append(PlotLine(ORACLE, [p * factor if p > 0 else None for p in plan.oracle_prices]))
    return [
        Panel("cost ratio: cost with a cache / cost without", costs),
        Panel(f"saving over the log, {money}", saved, level=stats.largest_saving),
        Panel(f"price: saving of one more {unit} over the log, {money}", prices, logarithmic=True),
    ]


def files(plan: CapacityPlan, log: str) -> dict[str, bytes]:
    """Return the contents of plan.html, plan.png and plan.json by file name."""
    return {
        "plan.html": page(plan, log).encode(),
        "plan.png": figure_png(plan, log),
        "plan.json": to_json(plan, log).encode(),
    }


def require_plotting() -> None:
    """Raise MissingExtra without Matplotlib or Plotly, so that a command fails before its long replay."""
    try:
        import matplotlib  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        raise MissingExtra(f"reports need Matplotlib and Plotly: {install_command('lab')}") from None


def figure_png(plan: CapacityPlan, log: str) -> bytes:
    """Return the panels side by side, as PNG."""
    factor, unit = price_unit(plan)
    drawn = panels(plan)
    figure, all_axes = new_figure(len(drawn), width=5.0)
    x = [capacity / factor for capacity in plan.capacities]
    for axes, panel in zip(all_axes, drawn, strict=True):
        for line in panel.lines:
            y = [float("nan") if value is None else value for value in line.y]
            axes.errorbar(x, y, yerr=line.errors, label=line.name, linewidth=1.8, capsize=2.5, marker=".", **line.look)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        if panel.logarithmic and any(value is not None for line in panel.lines for value in line.y):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0.0)
        if panel.level:
            axes.axhline(panel.level, color="#BBBBBB", linewidth=1.0)
            axes.annotate("largest possible saving", (x[0], panel.level), color="#777777", va="bottom", fontsize=8)
        if plan.recommendation:
            axes.axvline(plan.recommendation.capacity / factor, color="#D55E00", linewidth=1.0, linestyle=":")
        axes.set_title(panel.title)
        axes.set_xlabel(f"capacity, {unit}")
    all_axes[0].legend()
    all_axes[-1].legend()
    title = textwrap.fill(f"{log}: {recommendation(plan)}", 150)
    figure.suptitle(title.replace("$", r"\$"), fontsize=10)
    return as_png(figure)


def page(plan: CapacityPlan, log: str) -> str:
    """Return one self-contained HTML file."""
    from plotly.offline import get_plotlyjs

    factor, unit = price_unit(plan)
    rows = table(plan, oracle=True)
    return PAGE.format(
        title=html.escape(f"knapcache plan: {log}"),
        policy=CONTENT_SECURITY_POLICY,
        library=get_plotlyjs(),
        text="\n".join(f"<p>{html.escape(text)}</p>" for text in (facts(plan), recommendation(plan))),
        legend=html.escape(legend(plan)),
        plots="\n".join(plot(plan, panel, f"plot-{k}", factor, unit) for k, panel in enumerate(panels(plan))),
        head="".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in rows[0]),
        body="\n".join(f"<tr>{''.join(map(table_cell, row.values()))}</tr>" for row in rows),
    )


def table_cell(value: Any) -> str:
    text = "" if value is None else number(value) if isinstance(value, float) else str(value)
    return f"<td>{html.escape(text)}</td>"


def plot(plan: CapacityPlan, panel: Panel, name: str, factor: int, unit: str) -> str:
    """Return a panel as an HTML fragment for a page that already loads plotly.js."""
    import plotly.graph_objects as go
    import plotly.io

    figure = go.Figure()
    for line in panel.lines:
        dash = line.look["linestyle"]
        figure.add_scatter(
            x=[capacity / factor for capacity in plan.capacities],
            y=list(line.y),
            error_y={"type": "data", "array": list(line.errors)} if line.errors else None,
            name=line.name,
            mode="lines+markers",
            line={"color": line.look["color"], "dash": DASHES.get(dash, "dot") if isinstance(dash, str) else "dot"},
        )
    if panel.level:
        figure.add_hline(panel.level, line_color="#BBBBBB", annotation_text="largest possible saving")
    if plan.recommendation:
        figure.add_vline(plan.recommendation.capacity / factor, line_color="#D55E00", line_dash="dot")
    figure.update_layout(title=panel.title, template="plotly_white", hovermode="x unified")
    figure.update_xaxes(type="log", title=f"capacity, {unit}")
    figure.update_yaxes(type="log" if panel.logarithmic else "linear", rangemode="tozero")
    # No Plotly logo, which links to another site. A fixed id keeps the file equal between runs.
    part = plotly.io.to_html(
        figure, config={"displaylogo": False}, include_plotlyjs=False, full_html=False, div_id=name
    )
    return f'<div class="plot">{part}</div>'
