"""Cached functions: arguments become a key (`serialize/arguments.py`), results become bytes (`serialize/base.py`).

How arguments are passed does not matter: f(1, b=2) and f(b=2, a=1) are one call, and defaults are filled in. A call
with an argument that cannot be part of a key goes to the function, and the reason is logged once for each function.

A function is identified by module and name. The module of a script is `__main__`, whichever the script, so the name of
its file replaces it; with `python -m` the name by which it would be imported. The whole path does not count: the same
script in a container or on another machine has the same keys.

Where these are not enough, the caller must help. Lambdas and bound methods need a `name`. Data in the closure of an
inner function is part of the key, as of the time when it is decorated. (Clients and the like are not data and do not
count, and neither do globals.) Calls of a function whose closure has an array without a form are not cached.

A result that cannot be stored is returned as it is; that is logged once, as an error that says how to store it. A
stored result that cannot be read (its class is not known here, has changed, or has no serializer any more) is a miss:
the function is called, and its result replaces the stored one. That is logged once, as a warning. Every hit is a fresh
copy.
"""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from knapcache.cache.engine import RequestEngine
from knapcache.cache.serialize.arguments import STANDARD_KINDS, closure_digest, typed, typed_arguments
from knapcache.cache.serialize.base import Serializer, TypedSerializer
from knapcache.cache.serialize.classes import class_name, module_prefix
from knapcache.cache.serialize.kinds import Kinds
from knapcache.cache.values import DEFAULT_OPTIONS, Answer, FetchOptions, Reply
from knapcache.errors import InvalidInput, Uncacheable, Unserializable
from knapcache.keys import Keyer
from knapcache.keys.request import KeyedRequest
from knapcache.tags import checked_tags

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("knapcache.cache")

MODEL = "function"
"""The model of cached functions in the ledger, followed by the function's name."""
MAX_LOGGED = 1000
"""Functions whose problems are logged."""
ATTEMPTS = (DEFAULT_OPTIONS, FetchOptions(refresh=True))
"""A stored result that cannot be read is replaced."""
MAX_UNUSABLE = 10_000
"""Stored results that can neither be read nor replaced, and are remembered."""


def function_name(function: Callable[..., Any]) -> str:
    """Return module and name, so that functions of one name in different modules do not share results."""
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        raise InvalidInput(f"{function!r} has no name: pass one, cached(name=…)")
    if not isinstance(getattr(function, "__self__", None), (ModuleType, type(None))):
        raise InvalidInput(f"{name} is bound to an object, and other objects have it too: pass a name, cached(name=…)")
    return module_prefix(function) + name


def checked_serializer(serializer: Any) -> Serializer:
    """Return a serializer that has both methods."""
    if isinstance(serializer, type) or not isinstance(serializer, Serializer):
        raise InvalidInput(f"serializer must be an object with dumps and loads, not {serializer!r}")
    if serializer is pickle:
        raise InvalidInput(
            "serializer must not be the module pickle: use PickleSerializer(secret), which signs results"
        )
    return serializer


def marked(serializer: Serializer) -> bytes:
    """Return what precedes the results of a serializer: empty for the default, as in 0.1; else its class or module.

    So a result that another serializer wrote is not read.
    """
    if type(serializer) is TypedSerializer:
        return b""
    name = (serializer.__name__ if isinstance(serializer, ModuleType) else class_name(type(serializer))).encode()
    return b"\x02%d:%b," % (len(name), name)


class CallOptions(NamedTuple):
    """How the results of a function are stored."""

    tenant: str
    ttl: float | None
    serializer: Serializer
    tags: tuple[str, ...]


class FunctionCall:
    """The result of one call: made here, or stored."""

    def __init__(self, functions: Functions, request: KeyedRequest, options: CallOptions) -> None:
        self._functions, self._request, self._options = functions, request, options
        self._made = self._unreadable = False
        self.result: Any = None
        """The result, if there is one."""

    def attempts(self) -> Sequence[FetchOptions]:
        """Return the fetches to try, one after another."""
        return ATTEMPTS[1:] if self._request.key.digest in self._functions.unusable else ATTEMPTS

    def reply(self, result: Any) -> Reply:
        """Keep the result of a call that was made, and return it for the cache."""
        self._made, self.result = True, result
        payload = self._functions.dumps(result, self._request.model, self._options.serializer)
        # No payload is empty: a waiter that gets an empty one calls the function itself.
        if not payload:
            if self._unreadable:
                self._functions.remember_unusable(self._request.key.digest)
            return Reply(b"", cacheable=False)
        self._functions.unusable.discard(self._request.key.digest)
        return Reply(payload, ttl=self._options.ttl, tags=self._options.tags)

    def has_result(self, answer: Answer) -> bool:
        """Return whether there is a result; False: the function must be called."""
        if not self._made and answer.payload:
            self._made, self.result = self._functions.loads(
                answer.payload, self._request.model, self._options.serializer
            )
            self._unreadable = not self._made
        return self._made


class Functions:
    """The cached functions of one cache. serializer: the one of functions that have none of their own."""

    def __init__(self, engine: RequestEngine, keyer: Keyer, serializer: Serializer) -> None:
        self._engine, self._keyer, self._serializer = engine, keyer, serializer
        self._logged: set[tuple[str, str]] = set()
        self.unusable: set[bytes] = set()
        """Keys of stored results that can neither be read nor replaced: reading them again would count as hits."""

    def remember_unusable(self, key: bytes) -> None:
        """Do not read the stored result of a key again in this process, until it is replaced."""
        if len(self.unusable) < MAX_UNUSABLE:
            self.unusable.add(key)

    def options(
        self, tenant: str, ttl: float | None, tags: str | Collection[str], serializer: Serializer | None = None
    ) -> CallOptions:
        """Return the options of a function; None: the cache's own serializer."""
        chosen = self._serializer if serializer is None else checked_serializer(serializer)
        return CallOptions(tenant, ttl, chosen, checked_tags(tags))

    def key_request(self, name: str, key: Any, options: CallOptions) -> KeyedRequest:
        """Return a request for the result under a key that the caller chose, or raise Uncacheable (deprecated.py)."""
        return self._request(name, {"key": typed(key, kinds_of(options.serializer))}, options.tenant)

    def _request(self, name: str, arguments: dict[str, Any], tenant: str) -> KeyedRequest:
        return KeyedRequest(None, self._keyer.call(name, arguments, tenant), tenant, f"{MODEL} {name}")

    def call(self, request: KeyedRequest, function: Callable[[], Any], options: CallOptions) -> Any:
        """Return a stored result, or that of `function`."""
        made = FunctionCall(self, request, options)
        for attempt in made.attempts():
            answer = self._engine.fetch(request, lambda: made.reply(function()), attempt)
            if made.has_result(answer):
                return made.result
            if not answer.payload:
                break
        return function()

    async def call_async(
        self, request: KeyedRequest, function: Callable[[], Awaitable[Any]], options: CallOptions
    ) -> Any:
        """Return what `call` returns, for coroutines."""
        made = FunctionCall(self, request, options)

        async def call() -> Reply:
            return made.reply(await function())

        for attempt in made.attempts():
            answer = await self._engine.fetch_async(request, call, attempt)
            if made.has_result(answer):
                return made.result
            if not answer.payload:
                break
        return await function()

    def dumps(self, result: Any, name: str, serializer: Serializer) -> bytes | None:
        """Return a result as it is stored, or log why it is not and return None."""
        try:
            data = serializer.dumps(result)
            if type(data) is bytes:
                return marked(serializer) + data
            reason = f"dumps of {class_name(type(serializer))} returned a {type(data).__name__}, not bytes"
        except Exception as error:  # the serializer may be the caller's: a result is returned whatever it raises
            reason = str(error) or type(error).__name__
        self._log_once(logging.ERROR, name, "result of %.200s is not stored: %.500s", reason)
        return None

    def loads(self, payload: bytes, name: str, serializer: Serializer) -> tuple[bool, Any]:
        """Return whether a stored result can be read, and the result. Log why it cannot."""
        mark = marked(serializer)
        try:
            if not payload.startswith(mark) or (not mark and payload[:1] == b"\x02"):
                raise Unserializable("another serializer wrote it")
            return True, serializer.loads(payload[len(mark) :])
        except Exception as error:  # whatever is in the file, and whatever the caller's serializer raises: a miss
            self._engine.ledger.count("unreadable_results")
            reason = str(error) or type(error).__name__
        message = "a stored result of %.200s cannot be read, the function is called: %.500s"
        self._log_once(logging.WARNING, name, message, reason)
        return False, None

    def _log_once(self, level: int, name: str, message: str, reason: str) -> None:
        if (name, message) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add((name, message))
            log.log(level, message, name, reason)

    def decorate(self, function: Callable[P, R], name: str | None, options: CallOptions) -> Callable[P, R]:
        """Return the cached function. `name` is the caller's name for it, if there is one."""
        kinds = kinds_of(options.serializer)
        full_name = name or function_name(function)
        closure, without_key = "", None
        try:
            closure = "" if name else closure_digest(function, kinds)
        except Uncacheable as error:
            without_key = error
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{full_name} has no signature: {error}") from None
        if isinstance(options.serializer, TypedSerializer):
            options.serializer.known.add_function(function)

        def request(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KeyedRequest | None:
            """Return the call as a request; None if an argument cannot be part of a key."""
            try:
                if without_key is not None:
                    raise Uncacheable(without_key.reason, without_key.path)
                arguments = typed_arguments(signature, args, kwargs, kinds)
                if closure:
                    arguments["<closure>"] = closure  # no parameter has such a name
                return self._request(full_name, arguments, options.tenant)
            except Uncacheable as error:
                label = f"{MODEL} {full_name}"
                self._engine.ledger.add_request("bypasses", label, options.tenant)
                self._log_once(logging.WARNING, label, "a call of %.200s is not cached: %.500s", str(error))
                return None

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def cached_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                keyed = request(args, kwargs)
                if keyed is None:
                    return await function(*args, **kwargs)
                return await self.call_async(keyed, lambda: function(*args, **kwargs), options)

            return cached_async  # type: ignore[return-value]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"{full_name} is a generator: what it yields cannot be stored")

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            keyed = request(args, kwargs)
            if keyed is None:
                return function(*args, **kwargs)
            return self.call(keyed, lambda: function(*args, **kwargs), options)  # type: ignore[no-any-return]

        return cached


def kinds_of(serializer: Serializer) -> Kinds:
    """Return the kinds that arguments may have."""
    return serializer.kinds if isinstance(serializer, TypedSerializer) else STANDARD_KINDS
