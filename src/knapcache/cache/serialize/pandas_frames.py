"""DataFrames and Series of pandas, taken apart into columns and index: NumPy arrays, or lists of values.

So they need no other library and no pickle. (Arrow's formats would need pyarrow.) What was taken apart is made again
and compared before it is stored. A frame that differs then is not stored.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from knapcache.cache.serialize.parts import checked, make_zone, take_zone
from knapcache.errors import Unserializable

PLAIN_KINDS = "biufcmM"
"""Kinds of NumPy dtypes whose elements are bytes of fixed size."""


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


# Frames.


def make_labelled(column: Any, index: Any, name: Any = None) -> Any:
    array = make_column(column)
    return importlib.import_module("pandas").Series(array, index=index, dtype=array.dtype, name=name)


def frame_parts(frame: Any) -> list[Any]:
    columns = [take_column(frame.iloc[:, k].array) for k in range(frame.shape[1])]
    return [take_index(frame.columns), take_index(frame.index), columns, dict(frame.attrs)]


def make_frame(parts: Any) -> Any:
    pd = importlib.import_module("pandas")
    labels, rows, columns, attributes = checked(parts, list)
    index = make_index(rows)
    data = {k: make_labelled(column, index) for k, column in enumerate(checked(columns, list))}
    frame = pd.DataFrame(data, index=index)
    frame.columns = make_index(labels)
    frame.attrs.update(checked(attributes, dict))
    return frame


def take_frame(frame: Any) -> list[Any]:
    parts = frame_parts(frame)
    compare(frame, make_frame(parts), "assert_frame_equal", check_column_type="exact")
    return parts


def series_parts(series: Any) -> list[Any]:
    return [take_column(series.array), take_index(series.index), series.name, dict(series.attrs)]


def make_series(parts: Any) -> Any:
    column, rows, name, attributes = checked(parts, list)
    series = make_labelled(column, make_index(rows), name)
    series.attrs.update(checked(attributes, dict))
    return series


def take_series(series: Any) -> list[Any]:
    parts = series_parts(series)
    compare(series, make_series(parts), "assert_series_equal")
    return parts


def compare(value: Any, made: Any, assertion: str, **options: Any) -> None:
    """Raise Unserializable if what was made differs in values, dtypes or index."""
    pd = importlib.import_module("pandas")
    try:
        getattr(pd.testing, assertion)(value, made, check_exact=True, check_index_type="exact", **options)
    except AssertionError as error:
        raise Unserializable(f"pandas data that does not come back exactly: {str(error).splitlines()[0]}") from None
