"""libCacheSim's oracleGeneral: records of 24 bytes without a header, little-endian.

    uint32 time · uint64 id · uint32 size · int64 next request for this id

Every request costs 1 by default, so cost counts misses; with `--cost size` it counts bytes, with `--cost-each` it is
any other number. The field for the next request is not used.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.traces.base import ColumnRules, TraceBuilder
from knapcache.lab.traces.source import TraceSource

RULES = frozenset({"cost", "cost-each"})
RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
ROWS = 1 << 15


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the records of a file to `builder`."""
    if rules.cost not in (None, "size"):
        raise InvalidInput(
            f"--cost must be `size` for oracleGeneral, not {rules.cost!r}; --cost-each sets another cost"
        )
    builder.units.add("" if rules.cost_each is not None else "bytes" if rules.cost else "misses")
    with source.open(lines=False) as file:
        add_records(file, rules, builder)


def add_records(file: IO[bytes], rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the records of an open file."""
    each = 1.0 if rules.cost_each is None else rules.cost_each
    done = 0
    while block := file.read(ROWS * RECORD.itemsize):
        if len(block) % RECORD.itemsize:
            raise InvalidInput(
                f"{builder.path} is truncated, or not oracleGeneral: {len(block) % RECORD.itemsize} bytes are left "
                f"after record {done + len(block) // RECORD.itemsize}; a record has {RECORD.itemsize}"
            )
        records = np.frombuffer(block, RECORD)
        valid = records["size"] > 0  # every other content is valid
        for k in np.flatnonzero(~valid).tolist():
            builder.broken(f"record {done + k + 1}", "size must be at least 1 and below 2^62, not 0")
        good = records if valid.all() else records[valid]
        sizes = good["size"].astype(np.int64)
        costs = sizes.astype(np.float64) if rules.cost else np.full(len(good), each)
        builder.extend(good["id"].astype(np.uint64), sizes, costs, good["time"].astype(np.float64))
        done += len(records)
