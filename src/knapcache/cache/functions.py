"""Cached functions: arguments become a key, results become JSON.

Arguments are typed: 1, 1.0, True and "1" are four arguments, (1, 2) and [1, 2] are two, because a function can tell
them apart. How they are passed does not matter: f(1, b=2) and f(b=2, a=1) are one call, and defaults are filled in. An
argument that cannot be part of a key raises Uncacheable: a function that is silently never cached would be a trap.

A function is identified by module and name. The module of a script is `__main__`, whichever the script, so the name of
its file replaces it; with `python -m` the name by which it would be imported. The whole path does not count: the same
script in a container or on another machine has the same keys.

Where these are not enough, the caller must help. Lambdas and bound methods need a `name`. Data in the closure of an
inner function is part of the key, as of the time when it is decorated. (Clients and the like are not data and do not
count, and neither do globals.)

A result is stored if JSON returns it exactly, types included. Otherwise the caller gets it as it is, and the reason is
logged once. Every hit is a fresh copy.
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

from knapcache.cache.engine import RequestEngine
from knapcache.cache.values import DEFAULT_OPTIONS, Answer, Reply
from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys import Keyer
from knapcache.keys.request import KeyedRequest

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("knapcache.cache")

MODEL = "function"
"""The model of cached functions in the ledger, followed by the function's name."""
MAIN = ("__main__", "__mp_main__")
"""Names of a script's module, in its process and in those that multiprocessing spawns."""
MAX_LOGGED = 1000
"""Functions whose results are logged as not cacheable."""


def typed(value: Any) -> Any:
    """Return a value as JSON that includes its types: JSON's own as they are, others as an object with one name."""
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
    raise Uncacheable(f"a {kind.__module__}.{kind.__qualname__} is not a JSON value")


def sorted_items(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    """Return the items of a dict by name; Uncacheable unless all names are strings."""
    for name in value:
        if type(name) is not str:
            raise Uncacheable(f"a dict key must be a string, not {name!r:.40}")
    return sorted(value.items())


def equal_with_types(a: Any, b: Any) -> bool:
    """Return whether two values are equal, with all types inside. NaN equals nothing."""
    if type(a) is not type(b):
        return False
    if type(a) is list:
        return len(a) == len(b) and all(map(equal_with_types, a, b))
    if type(a) is dict:
        return a.keys() == b.keys() and all(type(name) is str and equal_with_types(a[name], b[name]) for name in a)
    return bool(a == b) and repr(a) == repr(b)  # 0.0 and −0.0 are equal, and differ


def function_name(function: Callable[..., Any]) -> str:
    """Return module and name, so that functions of one name in different modules do not share results."""
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        raise InvalidInput(f"{function!r} has no name: pass one, cached(name=…)")
    if not isinstance(getattr(function, "__self__", None), (ModuleType, type(None))):
        raise InvalidInput(f"{name} is bound to an object, and other objects have it too: pass a name, cached(name=…)")
    return module_prefix(function) + name


def module_prefix(function: Callable[..., Any]) -> str:
    """Return `module.`, `script.py:` for a function of a script, or `__main__.` for one typed in."""
    module = str(function.__module__)
    if module not in MAIN:
        return f"{module}."
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"{spec.name}."
    return f"{Path(file).name}:" if isinstance(file, str) else "__main__."


def closure_digest(function: Callable[..., Any]) -> str:
    """Return a digest of the data in a function's closure, or "" when there is none."""
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            found[name] = typed(cell.cell_contents)
        except (ValueError, Uncacheable, RecursionError):  # not bound yet, or not data
            continue
    try:
        text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, or a number beyond 64 bits
        text = repr(sorted(found.items())).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest() if found else ""


def typed_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by parameter, with defaults; TypeError if the function cannot be called with them."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found = {}
    for name, value in bound.arguments.items():
        try:
            found[name] = typed(value)
        except Uncacheable as error:
            raise Uncacheable(error.reason, f"argument {name}") from None
    return found


class FunctionCall:
    """The result of one call: made here, or stored."""

    def __init__(self, functions: Functions, request: KeyedRequest, ttl: float | None) -> None:
        self._functions, self._request, self._ttl = functions, request, ttl
        self._made = False
        self._result: Any = None

    def reply(self, result: Any) -> Reply:
        """Keep the result of a call that was made, and return it for the cache."""
        self._made, self._result = True, result
        payload = self._functions.to_json(result, self._request.model)
        # No JSON text is empty: a waiter that gets an empty payload calls the function itself.
        return Reply(b"", cacheable=False) if payload is None else Reply(payload, ttl=self._ttl)

    def has_result(self, answer: Answer) -> bool:
        """Return whether there is a result; False: the function must be called."""
        if not self._made and answer.payload:
            self._made, self._result = True, orjson.loads(answer.payload)
        return self._made

    @property
    def result(self) -> Any:
        """The result, if there is one."""
        return self._result


class Functions:
    """The cached functions of one cache."""

    def __init__(self, engine: RequestEngine, keyer: Keyer) -> None:
        self._engine, self._keyer = engine, keyer
        self._logged: set[str] = set()

    def request(self, name: str, arguments: dict[str, Any], tenant: str) -> KeyedRequest:
        """Return a call as a request with its key, or raise Uncacheable."""
        return KeyedRequest(None, self._keyer.call(name, arguments, tenant), tenant, f"{MODEL} {name}")

    def call(self, request: KeyedRequest, function: Callable[[], Any], ttl: float | None) -> Any:
        """Return a stored result, or that of `function`."""
        made = FunctionCall(self, request, ttl)
        answer = self._engine.fetch(request, lambda: made.reply(function()), DEFAULT_OPTIONS)
        return made.result if made.has_result(answer) else function()

    async def call_async(self, request: KeyedRequest, function: Callable[[], Awaitable[Any]], ttl: float | None) -> Any:
        """Do the same for coroutines."""
        made = FunctionCall(self, request, ttl)

        async def call() -> Reply:
            return made.reply(await function())

        answer = await self._engine.fetch_async(request, call, DEFAULT_OPTIONS)
        return made.result if made.has_result(answer) else await function()

    def to_json(self, result: Any, name: str) -> bytes | None:
        """Return a result as JSON, or log why it is not stored and return None."""
        try:
            text = orjson.dumps(result)
            if equal_with_types(orjson.loads(text), result):
                return text
            reason = "JSON does not return it exactly"
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error)
        if name not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(name)
            log.warning("result of %.100s is not stored: %s", name, reason)
        return None

    def decorate(self, function: Callable[P, R], name: str | None, tenant: str, ttl: float | None) -> Callable[P, R]:
        """Return the cached function. `name` is the caller's name for it, if there is one."""
        full_name = name or function_name(function)
        closure = "" if name else closure_digest(function)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{full_name} has no signature: {error}") from None

        def request(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KeyedRequest:
            arguments = typed_arguments(signature, args, kwargs)
            if closure:
                arguments["<closure>"] = closure  # no parameter has such a name
            return self.request(full_name, arguments, tenant)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def cached_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.call_async(request(args, kwargs), lambda: function(*args, **kwargs), ttl)

            return cached_async  # type: ignore[return-value]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"{full_name} is a generator: what it yields cannot be stored")

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(request(args, kwargs), lambda: function(*args, **kwargs), ttl)  # type: ignore[no-any-return]

        return cached
