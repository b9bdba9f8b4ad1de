"""A plan in pictures: a page to open in a browser, and a figure.

The page carries its own copy of plotly.js and loads nothing, which its Content-Security-Policy also tells the browser:
a log's numbers stay on the machine they were made on.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knapcache.errors import MissingExtra
from knapcache.sim.figures import as_png, new_figure, style
from knapcache.sim.plan import Plan
from knapcache.sim.summary import cost, number, price_unit, record, sentences, table

DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
ORACLE = "Oracle's price"
NOTHING_FROM_ELSEWHERE = (
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
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
</body></html>
"""


@dataclass(frozen=True)
class Line:
    """y over the budgets."""

    name: str
    y: Sequence[float | None]
    errors: Sequence[float] | None = None

    @property
    def look(self) -> dict[str, Any]:
        """As Matplotlib has it."""
        return {"color": "#000000", "linestyle": ":"} if self.name == ORACLE else style(self.name)


@dataclass(frozen=True)
class Panel:
    """What is drawn, whatever draws it."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False
    level: float | None = None
    """A line across: the most there can be."""


def panels(plan: Plan) -> list[Panel]:
    """Cost, saving and price over the budgets."""
    facts, (factor, unit) = plan.facts, price_unit(plan)
    where = range(len(plan.budgets))
    costs, saved, prices = [], [], []
    for curve in plan.curves:
        ratios, errors = zip(*(cost(plan, curve.policy, k) for k in where), strict=True)
        costs.append(Line(curve.policy, ratios, errors if curve.errors else None))
        saved.append(Line(curve.policy, curve.saved, curve.errors))
        # A logarithm has no place for what is 0, nor for what a policy loses by having more room.
        prices.append(Line(curve.policy, [p * factor if p is not None and p > 0 else None for p in curve.prices]))
    prices.append(Line(ORACLE, [p * factor if p > 0 else None for p in plan.oracle_prices]))
    return [
        Panel("cost with a cache / cost without", costs),
        Panel(f"saved per {facts.per}", saved, level=facts.rate(facts.largest)),
        Panel(f"price: what one more {unit} saves per {facts.per}", prices, logarithmic=True),
    ]


def files(plan: Plan, log: str) -> dict[str, bytes]:
    """plan.html, plan.png and plan.json."""
    return {
        "plan.html": page(plan, log).encode(),
        "plan.png": picture(plan, log),
        "plan.json": record(plan, log).encode(),
    }


def require_drawing() -> None:
    """Refuse before the work, not after it."""
    try:
        import matplotlib  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        raise MissingExtra("reports are drawn with Matplotlib and Plotly: pip install 'knapcache[lab]'") from None


def picture(plan: Plan, log: str) -> bytes:
    """The panels side by side, as PNG."""
    factor, unit = price_unit(plan)
    drawn = panels(plan)
    figure, all_axes = new_figure(len(drawn), width=5.0)
    x = [budget / factor for budget in plan.budgets]
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
            axes.annotate("room for everything", (x[0], panel.level), color="#777777", va="bottom", fontsize=8)
        if plan.advice:
            axes.axvline(plan.advice.budget / factor, color="#D55E00", linewidth=1.0, linestyle=":")
        axes.set_title(panel.title)
        axes.set_xlabel(f"room, {unit}")
    all_axes[0].legend()
    all_axes[-1].legend()
    figure.suptitle(f"{log}: {sentences(plan)[-1]}".replace("$", r"\$"), fontsize=10)
    return as_png(figure)


def page(plan: Plan, log: str) -> str:
    """One HTML file with everything in it."""
    from plotly.offline import get_plotlyjs

    factor, unit = price_unit(plan)
    rows = table(plan)
    return PAGE.format(
        title=html.escape(f"knapcache plan: {log}"),
        policy=NOTHING_FROM_ELSEWHERE,
        library=get_plotlyjs(),
        text="\n".join(f"<p>{html.escape(text)}</p>" for text in sentences(plan)),
        plots="\n".join(plot(plan, panel, f"plot-{k}", factor, unit) for k, panel in enumerate(panels(plan))),
        head="".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in rows[0]),
        body="\n".join(f"<tr>{''.join(map(cell, row.values()))}</tr>" for row in rows),
    )


def cell(value: Any) -> str:
    """Of the table."""
    text = "" if value is None else number(value) if isinstance(value, float) else str(value)
    return f"<td>{html.escape(text)}</td>"


def plot(plan: Plan, panel: Panel, name: str, factor: int, unit: str) -> str:
    """A panel as a piece of HTML that expects plotly.js to be there."""
    import plotly.graph_objects as go
    import plotly.io

    figure = go.Figure()
    for line in panel.lines:
        dash = line.look["linestyle"]
        figure.add_scatter(
            x=[budget / factor for budget in plan.budgets],
            y=list(line.y),
            error_y={"type": "data", "array": list(line.errors)} if line.errors else None,
            name=line.name,
            mode="lines+markers",
            line={"color": line.look["color"], "dash": DASHES.get(dash, "dot") if isinstance(dash, str) else "dot"},
        )
    if panel.level:
        figure.add_hline(panel.level, line_color="#BBBBBB", annotation_text="room for everything")
    if plan.advice:
        figure.add_vline(plan.advice.budget / factor, line_color="#D55E00", line_dash="dot")
    figure.update_layout(title=panel.title, template="plotly_white", hovermode="x unified")
    figure.update_xaxes(type="log", title=f"room, {unit}")
    figure.update_yaxes(type="log" if panel.logarithmic else "linear", rangemode="tozero")
    # Without the maker's logo, which is a link, and with names that are the same in every run.
    part = plotly.io.to_html(
        figure, config={"displaylogo": False}, include_plotlyjs=False, full_html=False, div_id=name
    )
    return f'<div class="plot">{part}</div>'
