"""Azure's public logs of LLM inference: CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.

Nothing identifies equal requests, so `--key-fields` must name columns to use as an identity. Equal token counts do not
mean equal requests: any such rule is a model, not a measurement. Size is the sum of input and output tokens unless
`--size` names a column. Cost comes from `--prices`, `--cost` or `--cost-each`.
"""

from __future__ import annotations

from typing import Any

from knapcache.errors import InvalidInput
from knapcache.lab.traces.base import (
    AUTO,
    BrokenLineError,
    ColumnRules,
    Prices,
    TraceBuilder,
    key_of,
    number,
    seconds_of,
    whole,
)
from knapcache.lab.traces.csv_file import chunks
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import Columns, field

TIME, INPUT, OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the requests of a file to `builder`."""
    if rules.key is None:
        raise InvalidInput(
            f"{builder.path} is a log of token counts (azure): nothing in it identifies equal requests; "
            "name columns to use as an identity with --key-fields (a model, not a measurement)"
        )
    if rules.no_cost:
        raise InvalidInput(
            f"{builder.path} (azure) contains no costs: use --prices IN,OUT per million tokens, --cost COLUMN or "
            "--cost-each X"
        )
    if rules.prices == AUTO:
        raise InvalidInput(
            f"--prices auto needs the model of each call, and {builder.path} (azure) has none: use --prices IN,OUT"
        )
    builder.units.add(rules.unit)
    time = None if rules.no_time else rules.time or TIME
    tokens = (INPUT, OUTPUT) if rules.prices or rules.size is None else ()
    needed = Columns(time, (*rules.key, *tokens), rules.size or INPUT, rules.cost, 0.0)
    with source.open() as file:
        for values, place in chunks(file, builder, lambda header: needed.find(source.path, header)):
            for k, row in enumerate(zip(*values.values(), strict=True)):
                try:
                    add(builder, rules, rules.key, time, dict(zip(values, row, strict=True)))
                except BrokenLineError as error:
                    builder.broken(place(k), str(error))


def add(builder: TraceBuilder, rules: ColumnRules, key: tuple[str, ...], time: str | None, row: dict[str, Any]) -> None:
    """Add one row; raises BrokenLineError."""
    if rules.size is not None:
        size = whole(rules.size, field(row, rules.size))
    else:
        size = token_count(row, INPUT) + token_count(row, OUTPUT)
    if isinstance(rules.prices, Prices):
        cost = rules.prices.cost(token_count(row, INPUT), token_count(row, OUTPUT))
    elif rules.cost is not None:
        cost = number(rules.cost, field(row, rules.cost))
    else:
        cost = rules.cost_each or 0.0
    when = None if time is None else seconds_of(time, field(row, time))
    builder.add(key_of([field(row, name) for name in key]), size, cost, when)


def token_count(row: dict[str, Any], name: str) -> int:
    """Return the tokens in a column; raises BrokenLineError."""
    count = whole(name, field(row, name))
    if not 0 <= count < 2**62:
        raise BrokenLineError(f"{name} must be at least 0 and below 2^62, not {count}")
    return count
