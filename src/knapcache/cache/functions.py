"""Plain functions as requests: arguments become a key, results become JSON.

Arguments are typed: 1, 1.0, True and "1" are four arguments, (1, 2) and [1, 2] are two, for a function can tell them
apart. How they are passed does not matter: f(1, b=2) and f(b=2, a=1) are one call, and defaults are filled in. What
cannot be part of a key raises Uncacheable: a function that is silently never cached helps nobody.

A function is known by module and name. The module of a script is `__main__`, whatever the script: there its file's
name counts in the module's place, and with `python -m` the name that it would be imported by. Not the whole path: the
same script elsewhere, in a container or on another machine, is the same.

What these do not tell apart has to be told: lambdas and methods of objects need a name of the caller's, and data that
an inner function closes over is part of the key, as it is when the function is decorated. (Clients and the like are
not data, and do not count, as globals do not.)

A result is kept when JSON gives it back exactly, types included; otherwise the caller gets it as it is, and the log
says once why it is not kept. Every hit is a fresh copy.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import orjson

from knapcache.cache.engine import FetchOptions, RequestEngine
from knapcache.cache.values import Reply
from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys import Keyer
from knapcache.keys.request import KeyedRequest

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("knapcache.cache")

MODEL = "function"
"""Stands for the model in the ledger, with the function's name behind it."""
MAIN = ("__main__", "__mp_main__")
"""What the module of a script is called, by Python and by multiprocessing in a process that it spawned."""


def typed(value: Any) -> Any:
    """A value as JSON that has its types in it: JSON's own as they are, all others in an object with one name."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is list:
        return [typed(inner) for inner in value]
    if kind is tuple:
        return {"tuple": [typed(inner) for inner in value]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is dict:
        return {"dict": [[typed(name), typed(inner)] for name, inner in sorted_items(value)]}
    raise Uncacheable(f"a {kind.__module__}.{kind.__qualname__}, which is no JSON value")


def sorted_items(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    """By name; names are text."""
    for name in value:
        if type(name) is not str:
            raise Uncacheable(f"a name that is no string, {name!r:.40}")
    return sorted(value.items())


def same(a: Any, b: Any) -> bool:
    """Equal, with all types within. NaN is the same as nothing, and so is not kept."""
    if type(a) is not type(b):
        return False
    if type(a) is list:
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return a.keys() == b.keys() and all(type(name) is str and same(a[name], b[name]) for name in a)
    return bool(a == b) and repr(a) == repr(b)  # 0.0 and −0.0 are equal, and differ


def as_json(result: Any, name: str, said: set[str]) -> bytes | None:
    """The result as JSON; None, and a word in the log, where it would not come back the same."""
    try:
        text = orjson.dumps(result)
        if same(orjson.loads(text), result):
            return text
        reason = "JSON does not give it back as it was"
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    if name not in said and len(said) < 1000:
        said.add(name)
        log.warning("a result of %.100s is not kept: %s", name, reason)
    return None


def name_of(function: Callable[..., Any]) -> str:
    """Module and name: two functions of one name in different places do not share answers."""
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        raise InvalidInput(f"{function!r} has no name: give it one, cached(name=…)")
    if not isinstance(getattr(function, "__self__", None), (ModuleType, type(None))):
        raise InvalidInput(f"{name} belongs to an object, and others have one of that name: cached(name=…)")
    return module_of(function) + name


def module_of(function: Callable[..., Any]) -> str:
    """`module.`, or `script.py:` for functions of a script; typed in, they have neither, and share `__main__.`."""
    module = str(function.__module__)
    if module not in MAIN:
        return f"{module}."
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"{spec.name}."
    return f"{Path(file).name}:" if isinstance(file, str) else "__main__."


def enclosed(function: Callable[..., Any]) -> str:
    """A digest of the data that a function closes over; empty where there is none."""
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            found[name] = typed(cell.cell_contents)
        except (ValueError, Uncacheable, RecursionError):  # not bound yet, or no data
            continue
    try:
        spelled = orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a character, or a number beyond 64 bits
        spelled = repr(sorted(found.items())).encode(errors="surrogatepass")
    return hashlib.blake2b(spelled, digest_size=16).hexdigest() if found else ""


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by parameter, defaults filled in, typed; TypeError where the function could not be called so."""
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    found = {}
    for name, value in given.arguments.items():
        try:
            found[name] = typed(value)
        except Uncacheable as error:
            raise Uncacheable(error.reason, f"argument {name}") from None
    return found


class Functions:
    """Calls of plain functions, on their way through the cache."""

    def __init__(self, engine: RequestEngine, keyer: Keyer) -> None:
        self._engine, self._keyer = engine, keyer
        self._said: set[str] = set()

    def request(self, name: str, arguments: dict[str, Any], tenant: str) -> KeyedRequest:
        """The key of a call, or Uncacheable."""
        return KeyedRequest(None, self._keyer.call(name, arguments, tenant), tenant, f"{MODEL} {name}")

    def call(self, request: KeyedRequest, function: Callable[[], Any], ttl: float | None) -> Any:
        """A kept result, or a new one."""
        made: list[Any] = []

        def reply() -> Reply:
            made.append(function())
            return self._reply(made[-1], request, ttl)

        answer = self._engine.fetch(request, reply, FetchOptions())
        if made:
            return made[-1]
        return orjson.loads(answer.payload) if answer.payload else function()

    async def call_async(self, request: KeyedRequest, function: Callable[[], Awaitable[Any]], ttl: float | None) -> Any:
        """The same for coroutines."""
        made: list[Any] = []

        async def reply() -> Reply:
            made.append(await function())
            return self._reply(made[-1], request, ttl)

        answer = await self._engine.fetch_async(request, reply, FetchOptions())
        if made:
            return made[-1]
        return orjson.loads(answer.payload) if answer.payload else await function()

    def _reply(self, result: Any, request: KeyedRequest, ttl: float | None) -> Reply:
        payload = as_json(result, request.model, self._said)
        if payload is None:
            # No result is empty text in JSON: who waited for this one sees that, and calls for itself.
            return Reply(b"", cacheable=False)
        return Reply(payload, ttl=ttl)

    def wrapped(self, function: Callable[P, R], given: str | None, tenant: str, ttl: float | None) -> Callable[P, R]:
        """The function, cached. `given`: the caller's name for it."""
        name = given or name_of(function)
        around = "" if given else enclosed(function)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{name} does not say what its arguments are: {error}") from None

        def key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KeyedRequest:
            arguments = bound(signature, args, kwargs)
            if around:
                arguments["<around>"] = around  # no parameter has such a name
            return self.request(name, arguments, tenant)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def cached_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.call_async(key(args, kwargs), lambda: function(*args, **kwargs), ttl)

            return cached_async  # type: ignore[return-value]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"{name} is a generator: what it yields cannot be kept")

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(key(args, kwargs), lambda: function(*args, **kwargs), ttl)  # type: ignore[no-any-return]

        return cached
