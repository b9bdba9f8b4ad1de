"""DataFrames and Series of polars, taken apart into columns: NumPy arrays with the places of nulls, or lists of values.

Rejected: Arrow's IPC format, which polars writes itself. Reading a damaged file in that format can abort the process.
What was taken apart is made again and compared before it is stored. A frame that differs then is not stored.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from knapcache.cache.serialize.parts import checked
from knapcache.errors import Unserializable

SIMPLE_DTYPES = frozenset(
    [
        "Boolean",
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt16",
        "UInt32",
        "UInt64",
        "Float32",
        "Float64",
        "String",
        "Binary",
        "Date",
        "Time",
        "Null",
        "Categorical",
    ]
)
"""Data types without parameters."""
PARAMETERS = {
    "Datetime": ("time_unit", "time_zone"),
    "Duration": ("time_unit",),
    "Decimal": ("precision", "scale"),
}
"""Attributes of other data types, which are also their parameters."""


def polars() -> Any:
    return importlib.import_module("polars")


@contextlib.contextmanager
def polars_errors() -> Iterator[None]:
    """Raise Unserializable for the errors of polars. A panic is not an Exception."""
    pl = polars()
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise Unserializable(f"polars: {error}") from None


def take_dtype(dtype: Any) -> list[Any]:
    """Return a data type as its name and parameters."""
    name = dtype.base_type().__name__
    if name in SIMPLE_DTYPES:
        return [name]
    if name in PARAMETERS:
        return [name, *(getattr(dtype, parameter) for parameter in PARAMETERS[name])]
    if name == "List":
        return [name, take_dtype(dtype.inner)]
    if name == "Array":
        return [name, take_dtype(dtype.inner), dtype.size]
    if name == "Struct":
        return [name, [[field.name, take_dtype(field.dtype)] for field in dtype.fields]]
    if name == "Enum":
        return [name, dtype.categories.to_list()]
    raise Unserializable(f"a polars column with dtype {dtype}")


def make_dtype(parts: Any) -> Any:
    """Return a data type that `take_dtype` took apart."""
    pl = polars()
    name, *parameters = checked(parts, list)
    if name in SIMPLE_DTYPES:
        return getattr(pl, name)()
    if name in PARAMETERS or name == "Enum":
        return getattr(pl, name)(*parameters)
    if name in ("List", "Array"):
        inner, *size = parameters
        return getattr(pl, name)(make_dtype(inner), *size)
    if name == "Struct":
        return pl.Struct([pl.Field(field, make_dtype(dtype)) for field, dtype in checked(parameters[0], list)])
    raise Unserializable(f"a stored column has the unknown dtype {name!s:.40}")


def series_parts(series: Any) -> list[Any]:
    """Return name, data type, elements and places of nulls; None: there are none, or they are in a list."""
    dtype = series.dtype
    parts = [series.name, take_dtype(dtype)]
    if dtype.is_temporal():
        series = series.to_physical()
    if series.dtype.is_temporal() or not (series.dtype.is_integer() or series.dtype.is_float()):
        return [*parts, series.to_list(), None]
    nulls = series.is_null().to_numpy() if series.null_count() else None
    return [*parts, np.ascontiguousarray(series.fill_null(0).to_numpy()), nulls]


def make_series(parts: Any) -> Any:
    """Return a series that `series_parts` took apart."""
    pl = polars()
    name, dtype, elements, nulls = checked(parts, list)
    with polars_errors():
        if type(elements) is list:
            return pl.Series(checked(name, str), elements, dtype=make_dtype(dtype), strict=True)
        series = pl.Series(checked(name, str), checked(elements, np.ndarray)).cast(make_dtype(dtype))
        if nulls is None:
            return series
        frame = pl.DataFrame({"elements": series, "nulls": checked(nulls, np.ndarray)})
        return frame.select(pl.when(~pl.col("nulls")).then(pl.col("elements"))).to_series().alias(name)


def take_series(series: Any) -> list[Any]:
    with polars_errors():
        parts = series_parts(series)
        made = make_series(parts)
        if made.dtype != series.dtype or not made.equals(series, check_dtypes=True):
            raise Unserializable("polars data that does not come back exactly")
    return parts


def frame_parts(frame: Any) -> list[Any]:
    return [series_parts(series) for series in frame.get_columns()]


def make_frame(parts: Any) -> Any:
    columns = [make_series(column) for column in checked(parts, list)]
    with polars_errors():
        return polars().DataFrame(columns)


def take_frame(frame: Any) -> list[Any]:
    parts = [take_series(series) for series in frame.get_columns()]
    if not make_frame(parts).equals(frame):
        raise Unserializable("polars data that does not come back exactly")
    return parts
