"""Public logs of token counts: Azure LLM inference and BurstGPT. CSV files that do not say what was asked.

    azure      TIMESTAMP, ContextTokens, GeneratedTokens
    burstgpt   Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type

Without an identity nothing can be a hit, so a rule must say which requests are the same: `--key` names the columns
that do. Equal token counts are not equal requests; whatever rule is given, it is a model and not a measurement. Size is
input and output tokens unless `--size` names a column; cost comes from `--prices`, `--cost` or `--cost-each`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.sim.traces.csv_file import chunks
from knapcache.sim.traces.shape import BrokenLineError, ColumnRules, TraceBuilder, moment, name_of, number, whole
from knapcache.sim.traces.source import TraceSource
from knapcache.sim.traces.table import Columns, field

RULES = frozenset({"time", "no-time", "key", "size", "cost", "cost-each", "prices"})


@dataclass(frozen=True)
class TokenLog:
    """The columns of such a log."""

    name: str
    time: str
    input: str
    output: str

    def read(self, source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
        """Rows into requests."""
        if rules.key is None:
            raise InvalidInput(
                f"{builder.path} is a log of token counts ({self.name}): it does not say which requests are the same, "
                f"so nothing in it can be a hit; name the columns that tell with --key (a model: say so in results)"
            )
        if rules.no_cost:
            raise InvalidInput(
                f"{builder.path} ({self.name}) holds no costs: give --prices IN,OUT per million tokens, --cost COLUMN "
                f"or --cost-each X"
            )
        time = None if rules.no_time else rules.time or self.time
        tokens = (self.input, self.output) if rules.prices or rules.size is None else ()
        needed = Columns(time, (*rules.key, *tokens), rules.size or self.input, rules.cost, 0.0)
        with source.open() as file:
            for values, place in chunks(file, builder, lambda header: needed.find(source.path, header)):
                for k, row in enumerate(zip(*values.values(), strict=True)):
                    try:
                        self.add(builder, rules, rules.key, time, dict(zip(values, row, strict=True)))
                    except BrokenLineError as error:
                        builder.broken(place(k), str(error))

    def add(
        self, builder: TraceBuilder, rules: ColumnRules, key: tuple[str, ...], time: str | None, row: dict[str, Any]
    ) -> None:
        """One row; raises BrokenLineError."""
        if rules.size is not None:
            size = whole(rules.size, field(row, rules.size))
        else:
            size = self.tokens(row, self.input) + self.tokens(row, self.output)
        if rules.prices is not None:
            cost = rules.prices.cost(self.tokens(row, self.input), self.tokens(row, self.output))
        elif rules.cost is not None:
            cost = number(rules.cost, field(row, rules.cost))
        else:
            cost = rules.cost_each or 0.0
        when = None if time is None else moment(time, field(row, time))
        builder.add(name_of([field(row, name) for name in key]), size, cost, when)

    @staticmethod
    def tokens(row: dict[str, Any], name: str) -> int:
        """A count of tokens."""
        count = whole(name, field(row, name))
        if not 0 <= count < 2**62:
            raise BrokenLineError(f"{name} must not be negative, and below 2^62, not {count}")
        return count


AZURE = TokenLog("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = TokenLog("burstgpt", "Timestamp", "Request tokens", "Response tokens")
