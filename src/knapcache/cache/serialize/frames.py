"""DataFrames and Series of pandas and polars.

A pandas frame is taken apart into its columns and its index: NumPy arrays, or lists of values. So it needs no other
library and no pickle. A polars frame is in Arrow's IPC format, written by polars. What was taken apart is made again
and compared before it is stored. A frame that differs then, such as one of periods, is not stored.

pandas and polars are imported only to make a frame of theirs.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from knapcache.cache.serialize.parts import checked, make_zone, take_zone
from knapcache.errors import Unserializable

PLAIN_KINDS = "biufcmM"
"""Kinds of NumPy dtypes whose elements are bytes of fixed size."""


class FrameKind(NamedTuple):
    """How frames of one class are taken apart and made, and what represents them in keys."""

    take: Callable[[Any], Any]
    make: Callable[[Any], Any]
    key: Callable[[Any], Any]


def frame_name(cls: type) -> str:
    """Return the name of a class in KINDS; empty if it has none."""
    package = cls.__module__.partition(".")[0]
    name = f"{package}.{cls.__name__}"
    return name if name in KINDS and getattr(sys.modules.get(package), cls.__name__, None) is cls else ""


# pandas: columns.


def take_column(array: Any) -> list[Any]:
    """Return the elements of a pandas array, and how to make it."""
    pd = importlib.import_module("pandas")
    dtype = array.dtype
    if type(array) is pd.arrays.NumpyExtensionArray:
        dtype = dtype.numpy_dtype
    if isinstance(dtype, np.dtype):
        elements = np.asarray(array)
        if dtype.kind in PLAIN_KINDS:
            return ["numpy", elements]
        if dtype.kind == "O" and elements.ndim == 1:
            return ["object", list(elements)]
    elif isinstance(dtype, pd.CategoricalDtype):
        return ["category", np.asarray(array.codes), take_index(dtype.categories), bool(dtype.ordered)]
    elif isinstance(dtype, pd.DatetimeTZDtype):
        moments = pd.DatetimeIndex(array).tz_convert("UTC").tz_localize(None)
        return ["moments", np.asarray(moments), take_zone(dtype.tz)]
    elif isinstance(dtype, pd.StringDtype):
        texts = [None if missing else str(text) for text, missing in zip(array, array.isna(), strict=True)]
        return ["string", texts, dtype.storage, dtype.na_value is pd.NA]
    elif getattr(dtype, "numpy_dtype", None) is not None and type(array) in masked_arrays(pd):
        elements = array.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
        return ["masked", elements, np.asarray(array.isna())]
    raise Unserializable(f"a pandas array with dtype {dtype}")


def masked_arrays(pd: Any) -> dict[Any, str]:
    """Return the classes of arrays with a mask, and the kinds of their elements."""
    return {pd.arrays.IntegerArray: "iu", pd.arrays.FloatingArray: "f", pd.arrays.BooleanArray: "b"}


def make_column(parts: Any) -> Any:
    """Return a pandas or NumPy array that `take_column` took apart."""
    pd = importlib.import_module("pandas")
    how, elements, *more = checked(parts, list)
    if how == "numpy":
        if checked(elements, np.ndarray).dtype.kind not in PLAIN_KINDS:
            raise Unserializable("a stored column has a dtype that pandas does not have")
        return elements
    if how == "object":
        column = np.empty(len(checked(elements, list)), object)
        column[:] = elements
        return column
    if how == "category":
        categories, ordered = more
        return pd.Categorical.from_codes(elements, categories=make_index(categories), ordered=ordered)
    if how == "moments":
        return pd.DatetimeIndex(checked(elements, np.ndarray)).tz_localize("UTC").tz_convert(make_zone(more[0])).array
    if how == "string":
        storage, nullable = more
        return pd.array(elements, dtype=pd.StringDtype(storage, na_value=pd.NA if nullable else np.nan))
    if how == "masked":
        for cls, kinds in masked_arrays(pd).items():
            if checked(elements, np.ndarray).dtype.kind in kinds:
                return cls(elements, checked(more[0], np.ndarray))
    raise Unserializable(f"a stored column of the unknown form {how!s:.40}")


def take_index(index: Any) -> list[Any]:
    """Return the labels of a pandas index, and how to make it."""
    pd = importlib.import_module("pandas")
    if type(index) is pd.RangeIndex:
        return ["range", index.start, index.stop, index.step, index.name]
    if type(index) is pd.MultiIndex:
        levels = [take_index(level) for level in index.levels]
        return ["levels", levels, [np.asarray(codes) for codes in index.codes], list(index.names)]
    return ["labels", take_column(index.array), index.name, getattr(index, "freqstr", None)]


def make_index(parts: Any) -> Any:
    """Return a pandas index that `take_index` took apart."""
    pd = importlib.import_module("pandas")
    how, *more = checked(parts, list)
    if how == "range":
        start, stop, step, name = more
        return pd.RangeIndex(start, stop, step, name=name)
    if how == "levels":
        levels, codes, names = more
        return pd.MultiIndex(levels=[make_index(level) for level in levels], codes=codes, names=names)
    if how == "labels":
        labels, name, frequency = more
        column = make_column(labels)
        index = pd.Index(column, dtype=column.dtype, name=name)
        if frequency is not None:
            index.freq = checked(frequency, str)
        return index
    raise Unserializable(f"a stored index of the unknown form {how!s:.40}")


# pandas: frames.


def make_series(column: Any, index: Any, name: Any = None) -> Any:
    array = make_column(column)
    return importlib.import_module("pandas").Series(array, index=index, dtype=array.dtype, name=name)


def pandas_frame_parts(frame: Any) -> list[Any]:
    columns = [take_column(frame.iloc[:, k].array) for k in range(frame.shape[1])]
    return [take_index(frame.columns), take_index(frame.index), columns, dict(frame.attrs)]


def make_pandas_frame(parts: Any) -> Any:
    pd = importlib.import_module("pandas")
    labels, rows, columns, attributes = checked(parts, list)
    index = make_index(rows)
    data = {k: make_series(column, index) for k, column in enumerate(checked(columns, list))}
    frame = pd.DataFrame(data, index=index)
    frame.columns = make_index(labels)
    frame.attrs.update(checked(attributes, dict))
    return frame


def take_pandas_frame(frame: Any) -> list[Any]:
    parts = pandas_frame_parts(frame)
    compare_pandas(frame, make_pandas_frame(parts), "assert_frame_equal", check_column_type="exact")
    return parts


def pandas_series_parts(series: Any) -> list[Any]:
    return [take_column(series.array), take_index(series.index), series.name, dict(series.attrs)]


def make_pandas_series(parts: Any) -> Any:
    column, rows, name, attributes = checked(parts, list)
    series = make_series(column, make_index(rows), name)
    series.attrs.update(checked(attributes, dict))
    return series


def take_pandas_series(series: Any) -> list[Any]:
    parts = pandas_series_parts(series)
    compare_pandas(series, make_pandas_series(parts), "assert_series_equal")
    return parts


def compare_pandas(value: Any, made: Any, compare: str, **options: Any) -> None:
    """Raise Unserializable if what was made differs in values, dtypes, index or attributes."""
    pd = importlib.import_module("pandas")
    try:
        getattr(pd.testing, compare)(value, made, check_exact=True, check_index_type="exact", **options)
    except AssertionError as error:
        raise Unserializable(f"pandas data that does not come back exactly: {str(error).splitlines()[0]}") from None


# polars.


def polars() -> Any:
    return importlib.import_module("polars")


def take_polars_frame(frame: Any) -> bytes:
    file = io.BytesIO()
    try:
        frame.write_ipc(file, compression="uncompressed")
        made = make_polars_frame(file.getvalue())
    except (polars().exceptions.PolarsError, polars().exceptions.PanicException) as error:
        raise Unserializable(f"polars cannot write it: {error}") from None
    if made.schema != frame.schema or not made.equals(frame):
        raise Unserializable("polars data that does not come back exactly")
    return file.getvalue()


def make_polars_frame(data: Any) -> Any:
    try:
        return polars().read_ipc(io.BytesIO(checked(data, bytes)))
    except polars().exceptions.PanicException as error:  # derived from BaseException
        raise Unserializable(f"polars cannot read a stored frame: {error}") from None


def make_polars_series(parts: Any) -> Any:
    name, data = checked(parts, list)
    return make_polars_frame(data).to_series(0).alias(checked(name, str))


def polars_columns(frame: Any) -> list[Any]:
    """Return what represents a polars frame in keys."""
    return [[column.name, str(column.dtype), column_elements(column)] for column in frame.get_columns()]


def column_elements(column: Any) -> Any:
    numeric = column.dtype.is_numeric() and not column.dtype.is_decimal() and column.null_count() == 0
    return np.ascontiguousarray(column.to_numpy()) if numeric else column.to_list()


KINDS = {
    "pandas.DataFrame": FrameKind(take_pandas_frame, make_pandas_frame, pandas_frame_parts),
    "pandas.Series": FrameKind(take_pandas_series, make_pandas_series, pandas_series_parts),
    "polars.DataFrame": FrameKind(take_polars_frame, make_polars_frame, polars_columns),
    "polars.Series": FrameKind(
        lambda series: [series.name, take_polars_frame(series.to_frame())],
        make_polars_series,
        lambda series: polars_columns(series.to_frame()),
    ),
}
