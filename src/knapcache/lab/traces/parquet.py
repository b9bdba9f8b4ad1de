"""Parquet, by default with the columns `time`, `key`, `size` and `cost`. Read by Polars (`lab` extra)."""

from __future__ import annotations

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.traces.base import ColumnRules, TraceBuilder
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import RULES, Columns, add_chunk

__all__ = ["RULES", "read"]

ROWS = 1 << 16


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the rows of a file to `builder`, in slices."""
    path = source.path
    try:
        import polars
    except ImportError:
        raise MissingExtra(f"{path} is Parquet, which needs Polars: {install_command('lab')}") from None
    builder.units.add(rules.unit)
    try:
        table = polars.scan_parquet(path, glob=False)
        names = table.collect_schema().names()
        columns = Columns.of(rules, names)
        columns.find(path, names)
        total = int(table.select(polars.len()).collect().item())
        for start in range(0, total, ROWS):
            rows = table.select(columns.names).slice(start, ROWS).collect()
            values = {name: rows[name].to_list() for name in columns.names}
            add_chunk(builder, columns, values, lambda k, start=start: f"row {start + k + 1}")  # type: ignore[misc]
            if source.progress:
                source.progress(min(start + ROWS, total), total)
    except polars.exceptions.PolarsError as error:
        raise InvalidInput(f"{path} is damaged: {' '.join(str(error).split())}") from None
