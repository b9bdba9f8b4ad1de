"""Common style of all figures."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from knapcache.errors import MissingExtra, install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito). A policy has the same colour and line style in every figure.
STYLES: dict[str, tuple[str, str]] = {
    "adaptive": ("#C1121F", "-"),
    "vsocb": ("#0072B2", "-"),
    "vsocb-lazy": ("#009E73", "-"),
    "vsocb-apx": ("#56B4E9", "-."),
    "vsocb-as-printed": ("#D55E00", ":"),
    "berkeley": ("#CC79A7", "--"),
    "berkeley-multi": ("#8B4789", "-."),
    "offline": ("#000000", ":"),
    "lru": ("#999999", "--"),
    "lfu": ("#777777", "-."),
    "arc": ("#0072B2", "--"),
    "s3-fifo": ("#009E73", "-."),
    "gdsf": ("#F0E442", "--"),
    "gdsf-cost": ("#E69F00", "--"),
    "static": ("#444444", (0, (1, 1))),  # type: ignore[dict-item]  # Matplotlib takes dash patterns too
}


def new_figure(
    columns: int = 1, *, rows: int = 1, width: float = 6.4, height: float = 4.2
) -> tuple[Figure, list[Axes]]:
    """Create a figure with `rows` × `columns` panels. Width and height are those of a panel, in inches."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(f"figures need Matplotlib: {install_command('lab')}") from None
    mpl.rcParams.update(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "font.size": 10,
            "axes.titlesize": 10.5,
            "legend.frameon": False,
            "legend.fontsize": 9,
        }
    )
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(rows * columns)]
    return figure, axes


def style(policy: str) -> dict[str, Any]:
    """Return the colour and line style of a policy as Matplotlib arguments."""
    colour, dash = STYLES.get(policy, ("#666666", "-"))
    return {"color": colour, "linestyle": dash}


def as_png(figure: Figure) -> bytes:
    png = io.BytesIO()
    # Without Matplotlib's version in the metadata, equal numbers give equal files.
    figure.savefig(png, dpi=150, format="png", metadata={"Software": None})
    return png.getvalue()
