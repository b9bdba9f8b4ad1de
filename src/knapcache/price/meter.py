"""From the `usage` of an answer and the seconds it took to what it cost.

    usd  = Σ tokens of a kind · price of the kind        by genai-prices, or by the user's own prices, which win
    cost = w_usd · usd + w_seconds · seconds

Kinds are what the provider bills: input, cached input read and written, output, audio, images, searches. Reasoning is
billed as output, of which it is a part. Anthropic counts cached input beside input, OpenAI within it: the endpoint
tells which. Prices are those that came with the installed genai-prices; nothing here ever asks the network.

Where no price is known, the answer has no dollars (`usd` is None, for a saving must not be made up), and its cost is
taken from the user's fallback: prices of tokens, or dollars per second. Never zero in silence: an answer that costs
nothing is never kept. The default of 0.0002 dollars a second is 20 tokens a second at 10 dollars a million: among
models of known price the unknown one then weighs about what they do. One dollar a second, the seconds as they are,
would give it the whole cache. It is said in the log, once a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from knapcache.errors import InvalidInput, MissingExtra
from knapcache.model import Endpoint
from knapcache.price.flat import Flat, learned, shape_of
from knapcache.price.weights import LARGEST, Weights, amount

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, PriceCalculation, Provider, Usage

log = logging.getLogger("knapcache.price")

USD_PER_SECOND = 0.0002
"""What a second of a model of unknown price is taken for, unless the user says."""
MOST_NAMED = 1000
"""Models that the log has a line for; names come from outside, and memory must not grow with them."""
FLAVORS = {
    Endpoint.CHAT: ("openai", "chat", "chat"),
    Endpoint.COMPLETIONS: ("openai", "chat", "chat"),
    Endpoint.RESPONSES: ("openai", "responses", "responses"),
    Endpoint.EMBEDDINGS: ("openai", "embeddings", "embeddings"),
    Endpoint.MESSAGES: ("anthropic", "default", "anthropic"),
}
"""Whose counting an endpoint follows, what genai-prices calls it there, and what it calls it at other providers."""


class Bill(NamedTuple):
    """What an answer cost."""

    usd: float | None
    """Dollars; None where no price is known, or none was asked for."""
    seconds: float
    cost: float
    """What the policy is told. Finite, never negative."""
    source: str
    """Where `usd` comes from: `prices` (the user's), `genai-prices`, `fallback` (the user's), or `seconds`."""


class Meter:
    """Turns usage into cost.

    cost       "usd", "seconds", "usd + 0.01*seconds", or {"usd": 1, "seconds": 0.01}; with a weight of 0 dollars are
               counted and do not weigh
    prices     {model: {"input": 2.5, "output": 10, "cache_read": 1.25, …}} in dollars per million tokens
    fallback   for models of unknown price: such prices, or dollars per second
    provider   who bills, by the name genai-prices has for it
    base_url   where calls go, which may tell; a model's own name comes next, then the kind of endpoint
    """

    def __init__(
        self,
        cost: str | Mapping[str, float] | Weights = "usd",
        prices: Mapping[str, Mapping[str, float]] | None = None,
        fallback: Mapping[str, float] | float = USD_PER_SECOND,
        provider: str | None = None,
        base_url: str | None = None,
    ) -> None:
        self.weights = Weights.of(cost)
        self.provider, self.base_url = provider, base_url
        self.prices: dict[str, ModelPrice] = {}
        self.fallback: ModelPrice | None = None
        self.rate = USD_PER_SECOND
        self._said: set[str] = set()
        self._flat: dict[Any, tuple[Flat | None, str]] = {}
        self._find = lru_cache(maxsize=MOST_NAMED)(self._search)
        if self.weights.usd is None:
            return  # seconds: genai-prices need not be there
        need_genai_prices()
        self.prices = {model: price_of(f"model {model}", given) for model, given in (prices or {}).items()}
        if isinstance(fallback, Mapping):
            self.fallback = price_of("the fallback", fallback)
        else:
            self.rate = amount("fallback, in dollars per second,", fallback)
            if not self.rate:
                raise InvalidInput("fallback must not be 0: what costs nothing is never kept")
        if provider is not None:
            try:
                find_provider(provider)
            except LookupError:
                raise InvalidInput(f"provider {provider!r} is none that genai-prices knows") from None

    def bill(
        self,
        endpoint: Endpoint,
        model: str,
        usage: Mapping[str, Any] | None,
        seconds: float,
        *,
        service_tier: str | None = None,
        batch: bool = False,
        at: datetime | None = None,
    ) -> Bill:
        """What an answer cost.

        usage          the `usage` of the answer; None where there is none
        service_tier   that of the answer, where it says one beside its usage; "batch" is the same as batch=True
        batch          by the provider's batch interface
        at             when; now by default. Prices change, some with the time of day
        """
        seconds = amount("seconds", seconds)
        if not isinstance(model, str):
            raise InvalidInput(f"model must be a name, not {model!r}")
        if self.weights.usd is None:
            return Bill(None, seconds, self.weights.seconds * seconds, "seconds")
        counted = usage if isinstance(usage, Mapping) else {}
        said = counted.get("service_tier")  # Anthropic's usage says so itself
        tier = service_tier or said
        context = {"service_tier": tier} if isinstance(tier, str) and tier else {}
        if batch or "batch" in (service_tier, said):
            context["processing"] = "batch"
        usd, source = (
            self._known_usd(endpoint, model, counted, context)
            if at is None
            else (self._usd(endpoint, model, counted, context, at))
        )
        weighed = seconds * self.rate if usd is None else usd
        return Bill(usd, seconds, self.weights.usd * weighed + self.weights.seconds * seconds, source)

    def time(self, seconds: float) -> Bill:
        """What so many seconds cost where nobody sends a bill: the fallback's dollars per second, or the seconds."""
        seconds = amount("seconds", seconds)
        weight = self.weights.seconds + (self.weights.usd or 0.0) * self.rate
        return Bill(None, seconds, weight * seconds, "seconds")

    def _known_usd(
        self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str]
    ) -> tuple[float | None, str]:
        """The same as of now, without asking genai-prices where its answer is known to be a sum of products."""
        shaped = shape_of(usage)
        if shaped is None:
            return self._usd(endpoint, model, usage, context, None)
        shape, numbers = shaped
        key = endpoint, model, tuple(context.items()), shape
        flat, source = self._flat.get(key, (None, ""))
        usd = flat.usd(numbers) if flat is not None else None
        if usd is not None and 0.0 < usd <= LARGEST:
            return usd, source
        usd, source = self._usd(endpoint, model, usage, context, None)
        if key not in self._flat and len(self._flat) < MOST_NAMED:
            flat = None
            if usd and self._is_flat(endpoint, model):
                flat = learned(usage, shape, lambda other: self._sure(endpoint, model, other, context))
            self._flat[key] = flat, source
        return usd, source

    def _is_flat(self, endpoint: Endpoint, model: str) -> bool:
        """So much a token, at any time and for any number."""
        if model in self.prices:
            return True
        found = self._find(model, endpoint)
        price = found[1].prices if found else self.fallback
        return not isinstance(price, (list, type(None))) and not any(
            value is not None and not isinstance(value, (Decimal, int)) for value in vars(price).values()
        )

    def _sure(self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str]) -> float:
        usd, _ = self._usd(endpoint, model, usage, context, None)
        if usd is None:
            raise ValueError("no price")
        return usd

    def _usd(
        self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str], at: datetime | None
    ) -> tuple[float | None, str]:
        """Dollars and where they come from."""
        found = self._find(model, endpoint)
        seconds = f"its cost is taken as {self.rate} dollars a second"
        try:
            counted = count(endpoint, usage, found[0] if found else None)
            if model in self.prices:
                usd, source = total(self.prices[model].calc_price(counted)["total_price"]), "prices"
            elif found and prices_tokens((priced := self._priced(found, counted, context, at)).model_price):
                usd, source = total(priced.total_price), "genai-prices"
            elif self.fallback is not None:
                usd, source = total(self.fallback.calc_price(counted)["total_price"]), "fallback"
                self._say(model, "has no known price: billed at the fallback's")
            else:
                self._say(model, f"has no known price: {seconds}")
                return None, "seconds"
        except (ValueError, ArithmeticError) as error:
            self._say(model, f"answers with a usage that cannot be billed ({error}): {seconds}")
            return None, "seconds"
        if not usd:
            self._say(model, "is billed at 0 dollars: what costs nothing is never kept")
        return usd, source

    def _priced(
        self, found: tuple[Provider, ModelInfo], counted: Usage, context: dict[str, str], at: datetime | None
    ) -> PriceCalculation:
        provider, model = found
        return model.calc_price(counted, provider, genai_request_timestamp=at, price_context=context or None)

    def _search(self, model: str, endpoint: Endpoint) -> tuple[Provider, ModelInfo] | None:
        """Who bills this model, and the model: by setting or address; else by prefix (`openai/gpt-4o`), name, endpoint.

        Where setting or address tell who bills, a model unknown there is unknown: elsewhere it has another price.
        """
        for known in ({"provider": self.provider}, {"url": self.base_url}):
            try:
                billing = find_provider(**known)
            except LookupError:
                continue
            return find_model(model, billing)
        prefix, slash, rest = model.partition("/")
        for name, hint in (
            (rest, {"provider": prefix if slash else None}),
            (model, {"model": model}),
            (model, {"provider": FLAVORS[endpoint][0]}),
        ):
            try:
                found = find_model(name, find_provider(**hint))
            except LookupError:
                continue
            if found:
                return found
        return None

    def _say(self, model: str, what: str) -> None:
        """Once a model."""
        if model not in self._said and len(self._said) < MOST_NAMED:
            self._said.add(model)
            log.warning("model %.100r %s", model, what)
            if len(self._said) == MOST_NAMED:
                log.warning("%d models without a bill in dollars were named; further ones are not", MOST_NAMED)


def need_genai_prices() -> None:
    """The package with the prices, or a word on how to get it."""
    try:
        import genai_prices  # noqa: F401 - the import is the question
    except ImportError:
        raise MissingExtra("dollars are counted with genai-prices: pip install 'knapcache[price]'") from None


def find_provider(provider: str | None = None, url: str | None = None, model: str | None = None) -> Provider:
    """Who is meant by one of these, or LookupError."""
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot().find_provider(model and model.lower(), provider, url)


def find_model(model: str, provider: Provider) -> tuple[Provider, ModelInfo] | None:
    """A model among those of a provider."""
    from genai_prices.data_snapshot import get_snapshot

    info = provider.find_model(model, all_providers=get_snapshot().providers) if model else None
    return (provider, info) if info else None


def count(endpoint: Endpoint, usage: Mapping[str, Any], provider: Provider | None) -> Usage:
    """Tokens by kind, or ValueError. Providers may count in their own way: xAI has reasoning beside output."""
    owner, flavor, elsewhere = FLAVORS[endpoint]
    if not usage:
        raise ValueError("there is none")
    if provider and provider.id != owner and any(elsewhere == e.api_flavor for e in provider.extractors or ()):
        try:
            return provider.extract_usage({"usage": usage}, api_flavor=elsewhere)[1]
        except ValueError:
            pass  # it speaks as the owner of the endpoint does, after all
    return find_provider(owner).extract_usage({"usage": usage}, api_flavor=flavor)[1]


def prices_tokens(price: ModelPrice) -> bool:
    """Some models are billed by the hour or the picture: tokens would come out as free."""
    return any(kind.endswith("_mtok") and value is not None for kind, value in vars(price).items())


def price_of(what: str, given: Mapping[str, float]) -> ModelPrice:
    """A user's prices per million tokens."""
    from genai_prices.types import ModelPrice, Usage

    if not isinstance(given, Mapping) or "input" not in given:
        shape = '{"input": 2.5, "output": 10}'
        raise InvalidInput(f"prices of {what} must be dollars per million tokens such as {shape}, not {given!r}")
    prices = {}
    for kind, price in given.items():
        if not isinstance(kind, str) or not hasattr(ModelPrice(), f"{kind}_mtok"):
            known = "input, output, cache_read, cache_write, input_audio, output_audio and others of genai-prices"
            raise InvalidInput(f"prices of {what} name {kind!r}; kinds of tokens are {known}")
        prices[f"{kind}_mtok"] = Decimal(repr(amount(f"the price of {what} for {kind}", price)))
    found = ModelPrice(**prices)
    try:
        found.calc_price(Usage())
    except ValueError as error:
        raise InvalidInput(f"prices of {what} do not go together: {error}") from None
    return found


def total(sum_: Decimal) -> float:
    """Dollars that can be reckoned with."""
    usd = float(sum_)
    if not 0 <= usd <= LARGEST:
        raise ValueError(f"{usd} dollars")
    return usd
