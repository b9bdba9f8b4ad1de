"""Plain forms of kernels: Python functions that compute the same as the compiled code, and need no compilation.

A live cache decides with them until its kernels are compiled. Both forms work on the same memory and compute the same
results to the bit, so a cache can change from one to the other between two calls. A test changes at random moments,
with every policy (tests/policy/test_every_policy.py).

The Python form of a kernel is a copy of its Python function. The names of other kernels, in its module and in its
closure, stand for the Python forms of those kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np

from knapcache.kernel import Records, borrowed, prefetch

_functions: dict[Any, Callable[..., Any]] = {}
"""Plain forms by kernel."""
_namespaces: dict[int, dict[str, Any]] = {}
"""Copies of modules' namespaces with Python forms instead of kernels, by the id of the namespace."""


@functools.cache
def uncompiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the arguments of a kernel and calls its Python form."""
    function = plain_form(kernel)

    def call(*arguments: Any) -> Any:
        # Machine code computes with wrapping integers and without warnings; NumPy's scalars warn.
        with np.errstate(over="ignore", invalid="ignore"):
            return function(*map(_readable, arguments))

    return call


def plain_form(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python form of a kernel; a function that is not a kernel is returned unchanged."""
    source = getattr(kernel, "py_func", None)
    if source is None:
        return kernel
    if kernel not in _functions:
        namespace = _plain_namespace(source.__globals__)
        cells = tuple(CellType() for _ in source.__closure__ or ())
        function = FunctionType(source.__code__, namespace, source.__name__, None, cells or None)
        _functions[kernel] = function  # before the closure, which may contain the kernel itself
        function.__defaults__ = _plain_value(source.__defaults__)
        for cell, original in zip(cells, source.__closure__ or (), strict=True):
            cell.cell_contents = _plain_value(original.cell_contents)
    return _functions[kernel]


def _plain_namespace(namespace: dict[str, Any]) -> dict[str, Any]:
    if id(namespace) not in _namespaces:
        copy = _namespaces[id(namespace)] = dict(namespace)
        copy |= {name: _plain_value(value) for name, value in list(namespace.items())}
    return _namespaces[id(namespace)]


def _plain_value(value: Any) -> Any:
    if value is borrowed:
        return _same
    if value is prefetch:
        return _nothing
    if type(value) is tuple:
        return tuple(map(_plain_value, value))
    return plain_form(value) if hasattr(value, "py_func") else value


def _same(array: Any) -> Any:
    return array


def _nothing(_array: Any, _i: int) -> None: ...


def _readable(argument: Any) -> Any:
    """Return a record array as Rows, and any other argument unchanged."""
    return Rows(argument) if isinstance(argument, np.ndarray) and argument.dtype.names else argument


class Rows:
    """A record array whose rows have their fields as attributes: `rows[i].misses += 1` changes the array.

    A `recarray` does the same, four times slower.
    """

    __slots__ = ("_columns", "_row", "shape")

    def __init__(self, array: Records) -> None:
        self._row = _row_class(array.dtype)
        self._columns = [array[name] for name in array.dtype.names]
        self.shape = array.shape

    def __getitem__(self, i: int) -> Any:
        return self._row(self._columns, i)

    def __len__(self) -> int:
        return int(self.shape[0])


@functools.cache
def _row_class(dtype: np.dtype[Any]) -> type:
    """Return the class of a row: its columns, its index, and a property for each field."""

    def field(k: int) -> property:
        def read(row: Any) -> Any:
            return row._columns[k][row._i]

        def read_wide(row: Any) -> Any:
            return np.int64(row._columns[k][row._i])

        def write(row: Any, value: Any) -> None:
            row._columns[k][row._i] = value

        # Machine code computes with 64 bits. NumPy would compute with the 32 bits of a narrow field.
        narrow = dtype[k].kind in "iu" and dtype[k].itemsize < 8
        return property(read_wide if narrow else read, write)

    def initialise(row: Any, columns: list[Any], i: int) -> None:
        row._columns, row._i = columns, i

    fields = {name: field(k) for k, name in enumerate(dtype.names or ())}
    return type("Row", (), {"__slots__": ("_columns", "_i"), "__init__": initialise, **fields})
