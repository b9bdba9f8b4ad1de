"""NumPy arrays and scalars: in the format of `numpy.save`, without pickle.

An array of Python objects is not stored. A stored array whose shape does not match its bytes is refused before memory
for it is allocated.
"""

from __future__ import annotations

import hashlib
import io
import math
from typing import Any

import numpy as np

from knapcache.cache.serialize.parts import checked
from knapcache.errors import Unserializable

VERSION = (2, 0)
"""Of the format. 3.0 is needed only for field names beyond Latin-1."""


def is_array(value: Any) -> bool:
    """Return whether a value is an array. Subclasses, such as masked arrays, have more than their elements."""
    return type(value) is np.ndarray


def is_scalar(value: Any) -> bool:
    """Return whether a value is a NumPy scalar."""
    return isinstance(value, np.generic) and type(value).__module__ == "numpy"


def as_plain_array(value: Any) -> Any:
    """Return an array, or a scalar as one. Unserializable if bytes do not represent its elements."""
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.metadata or not array.dtype.itemsize or array.dtype.kind == "T":
        raise Unserializable(f"a NumPy array with dtype {array.dtype}")
    return array


def take_array(value: Any) -> bytes:
    """Return an array or a scalar in NumPy's format."""
    file = io.BytesIO()
    np.lib.format.write_array(file, as_plain_array(value), VERSION, allow_pickle=False)
    return file.getvalue()


def make_array(data: Any) -> Any:
    """Return an array from NumPy's format."""
    file = io.BytesIO(checked(data, bytes))
    if np.lib.format.read_magic(file) != VERSION:
        raise Unserializable("a stored array has another format")
    shape, column_major, dtype = np.lib.format.read_array_header_2_0(file)
    start, count = file.tell(), math.prod(shape)
    if dtype.hasobject or not dtype.itemsize or count * dtype.itemsize != len(data) - start:
        raise Unserializable("a stored array has a dtype or a shape that does not match its bytes")
    if not count:
        return np.empty(shape, dtype)
    flat = np.frombuffer(data, dtype, count, start)
    return flat.reshape(shape, order="F" if column_major else "C").copy(order="K")


def make_scalar(data: Any) -> Any:
    """Return a scalar from NumPy's format."""
    array = make_array(data)
    if array.shape != ():
        raise Unserializable("a stored scalar is an array")
    return array[()]


def key_of_array(value: Any) -> list[Any]:
    """Return what represents an array in keys: dtype, shape and a digest of the elements in C order."""
    array = as_plain_array(value)
    digest = hashlib.blake2b(array.tobytes(), digest_size=32).hexdigest()
    return [str(np.lib.format.dtype_to_descr(array.dtype)), list(array.shape), digest]
