"""DataFrames and Series, by the names of their classes. pandas and polars are imported only to make one of theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from knapcache.cache.serialize import pandas_frames, polars_frames


class FrameKind(NamedTuple):
    """How frames of one class are taken apart and made, and what represents them in keys."""

    take: Callable[[Any], Any]
    make: Callable[[Any], Any]
    key: Callable[[Any], Any]


KINDS = {
    "pandas.DataFrame": FrameKind(pandas_frames.take_frame, pandas_frames.make_frame, pandas_frames.frame_parts),
    "pandas.Series": FrameKind(pandas_frames.take_series, pandas_frames.make_series, pandas_frames.series_parts),
    "polars.DataFrame": FrameKind(polars_frames.take_frame, polars_frames.make_frame, polars_frames.frame_parts),
    "polars.Series": FrameKind(polars_frames.take_series, polars_frames.make_series, polars_frames.series_parts),
}


def frame_name(cls: type) -> str:
    """Return the name of a class in KINDS; empty if it has none."""
    package = cls.__module__.partition(".")[0]
    name = f"{package}.{cls.__name__}"
    return name if name in KINDS and getattr(sys.modules.get(package), cls.__name__, None) is cls else ""
