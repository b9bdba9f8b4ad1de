"""The arguments of a cache, in groups. Each group checks its arguments and builds the objects that they describe."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from knapcache.cache.coordinator import AdmissionOpener
from knapcache.cache.ledger import Ledger
from knapcache.cache.options import DEFAULT_CAPACITY, DEFAULT_SECRET, EncryptionKey, checked_capacity, seal_secret
from knapcache.cache.quotas import checked_quotas
from knapcache.cache.shadow import parse_shadow
from knapcache.errors import InvalidInput
from knapcache.keys import Keyer, Rules
from knapcache.keys.canonical import RequestKeyer
from knapcache.policy import registry as policies
from knapcache.price import Meter
from knapcache.price.meter import USD_PER_SECOND
from knapcache.price.weights import Weights
from knapcache.store import registry as stores
from knapcache.store.base import Clock, Store, StoreOptions
from knapcache.store.encryption import checked_keys


@dataclass(frozen=True, kw_only=True)
class StoreSource:
    """Where entries are stored: in a given store, or in one that is opened."""

    store: Store | None = None
    path: str | os.PathLike[str] | None = None
    capacity: int | str | None = None
    synchronous: str = "normal"
    encryption_key: EncryptionKey = field(default=None, repr=False)
    exclusive: bool = False
    """The folder of the file is the cache's own: a file that is damaged beyond recognition is set aside."""

    def __post_init__(self) -> None:
        path = self.path
        if path is not None and not (isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)):
            raise InvalidInput(f"path must be text or a pathlib.Path, not {path!r}")

    def open(self, secret: bytes | None, clock: Clock) -> Store:
        """Return the given store, or open one: as its owner, or as a reader while another process owns it."""
        if self.store is not None:
            if self.path is not None or self.capacity is not None:
                name = "capacity" if self.path is None else "path"
                raise InvalidInput(f"store and {name} cannot be combined: a store has its own place and capacity")
            if self.encryption_key is not None:
                raise InvalidInput("store and encryption_key cannot be combined: give the key to the store")
            return self.store
        keys = checked_keys(self.encryption_key)
        if keys and (self.path is None or stores.split_url(self.path)[0] == "memory"):
            raise InvalidInput("encryption_key needs a path: a cache in memory writes nothing")
        options = StoreOptions(
            size_limit=checked_capacity(DEFAULT_CAPACITY if self.capacity is None else self.capacity),
            secret=seal_secret(secret),
            clock=clock,
            synchronous=self.synchronous,
            encryption_keys=keys,
            exclusive=self.exclusive,
        )
        return stores.open_store("memory:" if self.path is None else self.path, options)


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The policy, the shadows, the number of keys that it remembers, and the quotas of namespaces."""

    name: str = "adaptive"
    shadows: Sequence[str] = ()
    ids: int | None = None
    quotas: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if not policies.find(self.name).online:
            raise InvalidInput(
                f"{self.name!r} needs to know future requests: it can be replayed, but not run in a cache"
            )
        if not isinstance(self.shadows, (tuple, list)):  # a str would be a sequence of letters
            raise InvalidInput(
                f"shadows must be a tuple of policies, such as ('lru', 'adaptive@2x'), not {self.shadows!r}"
            )
        for shadow in self.shadows:
            parse_shadow(shadow)
        if self.ids is not None and (isinstance(self.ids, bool) or not isinstance(self.ids, int) or self.ids < 1):
            raise InvalidInput(f"ids must be a number of keys, at least 1, or None, not {self.ids!r}")
        checked_quotas(self.quotas or {})

    def opener(self, ledger: Ledger, clock: Clock) -> AdmissionOpener:
        """Return what opens the admission controller, in a process that is or becomes the owner."""
        quotas = checked_quotas(self.quotas or {})
        return AdmissionOpener(self.name, tuple(self.shadows), ledger, self.ids, quotas, clock)


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """The prices of calls, and the cost that the policy saves."""

    cost: str | Mapping[str, float] | Weights = "usd"
    prices: Mapping[str, Mapping[str, float] | None] | None = None
    fallback: Mapping[str, float] | float | None = None

    def meter(self) -> Meter:
        """Return the meter. InvalidInput, MissingExtra."""
        return Meter(self.cost, self.prices, USD_PER_SECOND if self.fallback is None else self.fallback)


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The secret, the rules and the default namespace of keys."""

    secret: bytes | None = field(default=None, repr=False)
    rules: Rules | None = None
    namespace: str = ""

    def __post_init__(self) -> None:
        if self.rules is not None and not isinstance(self.rules, Rules):
            raise InvalidInput(f"rules must be knapcache.keys.Rules, or None, not {self.rules!r}")

    def keyer(self) -> RequestKeyer:
        """Return what computes keys. InvalidInput."""
        return RequestKeyer(Keyer(DEFAULT_SECRET if self.secret is None else self.secret, self.rules), self.namespace)
