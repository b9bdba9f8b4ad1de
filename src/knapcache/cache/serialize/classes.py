"""Classes that stored values may name: dataclasses, named tuples, enums and pydantic models.

A stored value names the class of each such object. A name is looked up among classes that this process has already, in
this order, and is otherwise unknown:

    1. classes given to TypedSerializer(types=…), and those of values that were stored by this process
    2. return annotations of the cached functions, and classes in the global names of their modules
    3. classes in modules of SDK_PACKAGES that are loaded

The first and second include the classes of their fields. Nothing is imported, and no other kind of class qualifies. No
code of the class runs when an object is made: neither `__new__`, `__init__` and `__post_init__` nor validators.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import sys
import typing
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

SDK_PACKAGES = ("anthropic", "cohere", "google.genai", "langchain_core", "litellm", "mistralai", "openai")
"""Packages whose classes are found if they are loaded, because functions often return them without an annotation."""
MAX_CLASSES = 10_000
"""Classes that are reachable from one source."""
MAIN = ("__main__", "__mp_main__")
"""Names of a script's module, in its process and in those that multiprocessing spawns."""
HINT_ERRORS = (NameError, TypeError, AttributeError, SyntaxError, ValueError, RecursionError)
"""Raised for annotations that cannot be evaluated."""


def module_prefix(thing: Any) -> str:
    """Return `module.` of a function or class, `script.py:` for one of a script, or `__main__.` for one typed in."""
    module = str(thing.__module__)
    if module not in MAIN:
        return f"{module}."
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"{spec.name}."
    return f"{Path(file).name}:" if isinstance(file, str) else "__main__."


def class_name(cls: type) -> str:
    """Return the name of a class in stored values and keys: `package.module:Outer.Inner`."""
    return f"{module_prefix(cls)[:-1]}:{cls.__qualname__}"


def model_base() -> Any:
    """Return pydantic's BaseModel; None if pydantic 2 is not loaded."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base if hasattr(base, "model_fields") else None


def is_model(cls: type) -> bool:
    """Return whether a class is a pydantic model."""
    base = model_base()
    return base is not None and issubclass(cls, base)


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is a named tuple."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def has_fields(thing: Any) -> bool:
    """Return whether stored values may name a class."""
    if not issubclass(type(thing), type):  # not isinstance, which asks a proxy object for its class
        return False
    return issubclass(thing, enum.Enum) or is_named_tuple(thing) or is_model(thing) or dataclasses.is_dataclass(thing)


def field_annotations(cls: type) -> Iterable[Any]:
    """Return the annotations of the fields of a class."""
    if is_model(cls):
        return [field.annotation for field in cls.model_fields.values()]  # type: ignore[attr-defined]
    if issubclass(cls, enum.Enum):
        return ()
    try:
        return typing.get_type_hints(cls).values()
    except HINT_ERRORS:
        return ()


def reachable(sources: Iterable[Any]) -> dict[str, type]:
    """Return the classes in annotations, and in those of their fields, by name."""
    found: dict[str, type] = {}
    pending = list(sources)
    while pending and len(found) < MAX_CLASSES:
        item = pending.pop()
        if has_fields(item):
            name = class_name(item)
            if name not in found:
                found[name] = item
                pending.extend(field_annotations(item))
        elif item is not None:
            pending.extend(typing.get_args(item))
            pending.append(getattr(item, "__value__", None))  # of a `type` statement
    return found


def function_classes(function: Callable[..., Any]) -> dict[str, type]:
    """Return the classes of a function's return annotation, and those in the global names of its module."""
    function = inspect.unwrap(function)
    try:
        returned = typing.get_type_hints(function).get("return")
    except HINT_ERRORS:
        returned = getattr(function, "__annotations__", {}).get("return")
    names = getattr(function, "__globals__", {})
    return reachable([returned, *(value for value in list(names.values()) if has_fields(value))])


def sdk_class(name: str) -> type | None:
    """Return a class of a loaded module of SDK_PACKAGES; None if there is none."""
    module, _, path = name.partition(":")
    if not any(module == package or module.startswith(f"{package}.") for package in SDK_PACKAGES):
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
    return found if has_fields(found) and class_name(found) == name else None


class KnownClasses:
    """The classes that stored values may name."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._classes = reachable(types)
        self._functions: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()

    def add(self, cls: type) -> str:
        """Add a class, and return its name."""
        name = class_name(cls)
        self._classes[name] = cls
        return name

    def add_function(self, function: Callable[..., Any]) -> None:
        """Add the classes of a function. They are searched when a name is unknown."""
        with contextlib.suppress(TypeError):  # a callable object that is not hashable, or without weak references
            self._functions.add(getattr(function, "__func__", function))

    def find(self, name: str) -> type | None:
        """Return the class with a name, or None."""
        found = self._classes.get(name)
        if found is None:
            for function in list(self._functions):
                found = function_classes(function).get(name, found)
            found = found or sdk_class(name)
            if found is not None:
                self._classes[name] = found
        return found
