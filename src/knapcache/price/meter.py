"""The meter: from the `usage` of an answer and the seconds it took to its cost.

    usd  = Σ tokens of a kind · price of the kind        by the user's prices, or else by genai-prices
    cost = w_usd · usd + w_seconds · seconds

Kinds are what providers bill: input, cached input read and written, output, audio, images, searches. Reasoning is part
of the output. OpenAI counts cached input as part of the input, Anthropic beside it: the endpoint says which. Prices are
those of the installed genai-prices; nothing here uses the network.

Dollars shown to people and the cost for the policy are two numbers. If no price is known, or the model is free, `usd`
is None, because a saving must not be made up. The policy still needs a cost to compare answers, and gets an estimate:
the user's fallback, which is token prices or dollars per second. It is never silently zero: an answer that costs
nothing is never admitted. The default of 0.0002 dollars per second is 20 tokens a second at 10 dollars per million, so
a model of unknown price weighs about as much as others do. With one dollar per second it would fill the whole cache.
These estimated dollars are not displayed. Each model of unknown price is logged once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from knapcache.errors import InvalidInput, MissingExtra, install_command, public_text
from knapcache.model import Endpoint
from knapcache.price.flat_rate import FlatRate, learn, shape_of
from knapcache.price.input_tokens import HIT, MAX_TOKENS, InputTokens, input_tokens, with_details
from knapcache.price.weights import MAX_AMOUNT, Weights, amount

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, PriceCalculation, Provider, Usage

log = logging.getLogger("knapcache.price")

USD_PER_SECOND = 0.0002
"""Default of the estimate for the policy: cost of a second of a model without a price."""
TOKEN_FIELDS = frozenset((
    "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_creation_input_tokens",
    "cache_read_input_tokens",
))  # fmt: skip
"""Fields whose sum is the total of a usage without `total_tokens`. Anthropic counts cached input beside other input."""
UNBILLABLE = "unbillable"
"""Source of a bill without dollars because of its usage."""
MAX_LENGTH = 1024
"""Characters of a model's name that is looked up. No longer name has a price."""
MAX_MODELS = 1000
"""Models that are logged or cached. Their names come from clients, so memory must not grow with them."""
PRICE_STEP = 8000
"""Tokens. Providers' limits between prices are multiples of it: 128,000, 200,000, 256,000, 272,000."""
SECONDS_CACHED = 3600
"""The price of an input token is looked up again after this time. Some prices depend on the time of day."""
PLAIN_NAMES = frozenset({Endpoint.MESSAGES, Endpoint.RESPONSES})
"""Endpoints whose usage has `input_tokens` and `output_tokens`; others have `prompt_tokens` and `completion_tokens`."""
FLAVORS = {
    Endpoint.CHAT: ("openai", "chat", "chat"),
    Endpoint.COMPLETIONS: ("openai", "chat", "chat"),
    Endpoint.RESPONSES: ("openai", "responses", "responses"),
    Endpoint.EMBEDDINGS: ("openai", "embeddings", "embeddings"),
    Endpoint.MESSAGES: ("anthropic", "default", "anthropic"),
}
"""By endpoint: the provider whose usage format it has, its flavor in genai-prices there, and at other providers."""


class Bill(NamedTuple):
    """The cost of an answer."""

    usd: float | None
    """US dollars; None: the price is unknown, or dollars are not computed."""
    seconds: float
    cost: float
    """The cost for the policy: finite, never negative."""
    source: str
    """Where `usd` comes from: `prices` (the user's), `genai-prices`, `fallback` (the user's), `seconds` (unknown or
    free), `unbillable` (there is no usage, or it contradicts itself), `reply` (the caller's) or `stored` (an entry)."""
    tokens: int = 0
    """Tokens of request and answer together; 0: unknown."""
    input: InputTokens | None = None
    """Tokens of the request by what the provider bills for them; None: unknown, or the answer came from the cache."""

    @property
    def known(self) -> bool:
        """Whether the usage says what was paid: dollars, or tokens of a model without a price."""
        return self.usd is not None or (self.tokens > 0 and self.source != UNBILLABLE)


class Meter:
    """Computes the cost of answers.

    cost       "usd", "seconds", "usd + 0.01*seconds", or {"usd": 1, "seconds": 0.01}; with a weight of 0, dollars are
               computed but are not part of the cost
    prices     {model: {"input": 2.5, "output": 10, "cache_read": 1.25, …}} in dollars per million tokens. None in place
               of such prices: the model is free, so it has no dollars, and the policy weighs its seconds
    fallback   for models of unknown price: such prices, or dollars per second
    provider   the provider that bills, by its name in genai-prices
    base_url   the upstream's URL, if it tells the provider; otherwise the model's name does, then the endpoint
    """

    def __init__(
        self,
        cost: str | Mapping[str, float] | Weights = "usd",
        prices: Mapping[str, Mapping[str, float] | None] | None = None,
        fallback: Mapping[str, float] | float = USD_PER_SECOND,
        provider: str | None = None,
        base_url: str | None = None,
    ) -> None:
        self.weights = Weights.of(cost)
        self.provider, self.base_url = provider, base_url
        self.prices: dict[str, ModelPrice] = {}
        self.free = frozenset(model for model, price in (prices or {}).items() if price is None)
        self.fallback: ModelPrice | None = None
        self.usd_per_second = USD_PER_SECOND
        self._logged: set[str] = set()
        self._flat_rates: dict[Any, tuple[FlatRate | None, str]] = {}
        self._find = lru_cache(maxsize=MAX_MODELS)(self._search)
        self._input_price = lru_cache(maxsize=MAX_MODELS)(self._find_input_price)
        if self.weights.usd is None:
            return  # genai-prices need not be installed
        require_genai_prices()
        self.prices = {
            model: model_price(f"model {model}", price) for model, price in (prices or {}).items() if price is not None
        }
        if isinstance(fallback, Mapping):
            self.fallback = model_price("the fallback", fallback)
        else:
            self.usd_per_second = amount("fallback, in dollars per second,", fallback)
            if not self.usd_per_second:
                raise InvalidInput("fallback must not be 0: an answer that costs nothing is never admitted")
        if provider is not None:
            try:
                find_provider(provider)
            except LookupError:
                raise InvalidInput(f"provider must be known to genai-prices, not {provider!r}") from None

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
        """Return what an answer cost.

        usage          the `usage` of the answer, or None
        service_tier   of the answer, if it has one outside its usage; "batch" is the same as batch=True
        batch          the call was made through the provider's batch API
        at             time of the call; default: now. Prices change, some with the time of day
        """
        seconds = amount("seconds", seconds)
        if not isinstance(model, str):
            raise InvalidInput(f"model must be a str, not {model!r}")
        counted = usage if isinstance(usage, Mapping) else {}
        tokens, sent = token_count(counted), input_tokens(endpoint, counted)
        if self.weights.usd is None:
            return Bill(None, seconds, self.weights.seconds * seconds, "seconds", tokens, sent)
        if HIT in counted:
            counted = with_details(counted)
        usage_tier = counted.get("service_tier")  # Anthropic puts it into the usage
        tier = service_tier or usage_tier
        context = {"service_tier": tier} if isinstance(tier, str) and tier else {}
        if batch or "batch" in (service_tier, usage_tier):
            context["processing"] = "batch"
        usd, source = (
            self._usd_now(endpoint, model, counted, context)
            if at is None
            else self._usd(endpoint, model, counted, context, at)
        )
        dollars = seconds * self.usd_per_second if usd is None else usd
        return Bill(usd, seconds, self.weights.usd * dollars + self.weights.seconds * seconds, source, tokens, sent)

    def bill_seconds(self, seconds: float) -> Bill:
        """Return the cost of a call that has no price: at the fallback's dollars per second."""
        seconds = amount("seconds", seconds)
        weight = self.weights.seconds + (self.weights.usd or 0.0) * self.usd_per_second
        return Bill(None, seconds, weight * seconds, "seconds")

    def _usd_now(
        self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str]
    ) -> tuple[float | None, str]:
        """Return dollars at current prices, and their source. Calls genai-prices only where no flat rate is known."""
        shaped = shape_of(usage)
        if shaped is None or len(model) > MAX_LENGTH:
            return self._usd(endpoint, model, usage, context, None)
        shape, numbers = shaped
        key = endpoint, model, tuple(context.items()), shape
        rate, source = self._flat_rates.get(key, (None, ""))
        usd = rate.usd(numbers) if rate is not None else None
        if usd is not None and 0.0 < usd <= MAX_AMOUNT:
            return usd, source
        usd, source = self._usd(endpoint, model, usage, context, None)
        if key not in self._flat_rates and len(self._flat_rates) < MAX_MODELS:
            rate = None
            if usd and self._is_flat(endpoint, model):
                rate = learn(usage, shape, lambda other: self._usd_or_raise(endpoint, model, other, context))
            self._flat_rates[key] = rate, source
        return usd, source

    def _is_flat(self, endpoint: Endpoint, model: str) -> bool:
        """Return whether a model's price per token depends on nothing else."""
        if model in self.prices:
            return True
        found = self._find(model, endpoint)
        price = found[1].prices if found else self.fallback
        return not isinstance(price, (list, type(None))) and not any(
            value is not None and not isinstance(value, (Decimal, int)) for value in vars(price).values()
        )

    def _usd_or_raise(self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str]) -> float:
        """Return dollars, or raise ValueError or ArithmeticError. Logs nothing: no answer has this usage."""
        usd, _ = self._price(endpoint, model, usage, context, None)
        if usd is None:
            raise ValueError("no price")
        return usd

    def input_price(self, endpoint: Endpoint, model: str, tokens: int = 0) -> float | None:
        """Return the dollars of one plain input token, or None if its price is unknown.

        tokens   of the input, because some models cost more above a limit; they are rounded down to PRICE_STEP
        """
        return self._input_price(endpoint, model, tokens // PRICE_STEP, int(time.time() // SECONDS_CACHED))

    def _find_input_price(self, endpoint: Endpoint, model: str, steps: int, _hour: int) -> float | None:
        tokens = steps * PRICE_STEP + 1
        names = ("input_tokens", "output_tokens") if endpoint in PLAIN_NAMES else ("prompt_tokens", "completion_tokens")
        if self.weights.usd is None or model in self.free:
            return None
        try:
            return self._usd_or_raise(endpoint, model, dict(zip(names, (tokens, 0), strict=True)), {}) / tokens
        except (ValueError, ArithmeticError):
            return None

    def _usd(
        self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str], at: datetime | None
    ) -> tuple[float | None, str]:
        """Return dollars and their source. Logs why there are none."""
        if model in self.free:
            return None, "seconds"
        seconds = (
            "its savings are shown in seconds and tokens, not in dollars; the policy counts a second of it like "
            f"{self.usd_per_second:g} dollars"
        )
        try:
            usd, source = self._price(endpoint, model, usage, context, at)
        except (ValueError, ArithmeticError) as error:
            self._warn(model, f"answers with a usage that cannot be billed ({public_text(error)}): {seconds}")
            return None, UNBILLABLE
        if usd is None:
            self._warn(model, f"has no known price (`prices` can set one): {seconds}")
        elif source == "fallback":
            self._warn(model, "has no known price: billed at the fallback's")
        elif not usd:
            self._warn(model, "is billed at 0 dollars: an answer that costs nothing is never admitted")
        return usd, source

    def _price(
        self, endpoint: Endpoint, model: str, usage: Mapping[str, Any], context: dict[str, str], at: datetime | None
    ) -> tuple[float | None, str]:
        """Return dollars and their source, or raise ValueError or ArithmeticError for a usage that has no price."""
        found = self._find(model, endpoint) if len(model) <= MAX_LENGTH else None
        counted = count_tokens(endpoint, usage, found[0] if found else None)
        if model in self.prices:
            return checked_total(self.prices[model].calc_price(counted)["total_price"]), "prices"
        if found and has_token_price((priced := self._priced(found, counted, context, at)).model_price):
            return checked_total(priced.total_price), "genai-prices"
        if self.fallback is not None:
            return checked_total(self.fallback.calc_price(counted)["total_price"]), "fallback"
        return None, "seconds"

    def _priced(
        self, found: tuple[Provider, ModelInfo], counted: Usage, context: dict[str, str], at: datetime | None
    ) -> PriceCalculation:
        provider, model = found
        return model.calc_price(counted, provider, genai_request_timestamp=at, price_context=context or None)

    def _search(self, model: str, endpoint: Endpoint) -> tuple[Provider, ModelInfo] | None:
        """Return the provider that bills a model, and the model: by `provider` or `base_url`, or else by the prefix of
        the model's name (`openai/gpt-4o`), by its name, or by the endpoint.

        With `provider` or `base_url`, a model that the provider does not have is unknown: others have other prices.
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

    def _warn(self, model: str, problem: str) -> None:
        """Log a problem, once for each model."""
        if len(model) <= MAX_LENGTH and model not in self._logged and len(self._logged) < MAX_MODELS:
            self._logged.add(model)
            log.warning("model %.100r %s", model, problem)
            if len(self._logged) == MAX_MODELS:
                log.warning("%d models without a price were logged; further ones are not", MAX_MODELS)


def require_genai_prices() -> None:
    """Raise MissingExtra unless genai-prices is installed."""
    try:
        import genai_prices  # noqa: F401 - only whether it succeeds
    except ImportError:
        raise MissingExtra(f"cost in dollars needs genai-prices: {install_command('price')}") from None


def find_provider(provider: str | None = None, url: str | None = None, model: str | None = None) -> Provider:
    """Return a provider by name, URL or model, or raise LookupError."""
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot().find_provider(model and model.lower(), provider, url)


def find_model(model: str, provider: Provider) -> tuple[Provider, ModelInfo] | None:
    """Return a provider's model, with the provider, or None."""
    from genai_prices.data_snapshot import get_snapshot

    info = provider.find_model(model, all_providers=get_snapshot().providers) if model else None
    return (provider, info) if info else None


def count_tokens(endpoint: Endpoint, usage: Mapping[str, Any], provider: Provider | None) -> Usage:
    """Return tokens by kind, or raise ValueError. Some providers count differently: xAI has reasoning beside output."""
    owner, flavor, elsewhere = FLAVORS[endpoint]
    if not usage:
        raise ValueError("there is none")
    if any(isinstance(usage.get(name), float) for name in TOKEN_FIELDS):
        raise ValueError("a number of tokens is not a whole number")
    if input_tokens(endpoint, usage) is None:
        raise ValueError("its input tokens are missing or contradict each other")
    if provider and provider.id != owner:
        try:
            return provider.extract_usage({"usage": usage}, api_flavor=elsewhere)[1]
        except ValueError:
            pass  # genai-prices has no flavor of this provider, or the usage has the format of the endpoint's owner
    return find_provider(owner).extract_usage({"usage": usage}, api_flavor=flavor)[1]


def token_count(usage: Mapping[str, Any]) -> int:
    """Return the tokens of request and answer together, or 0 if the usage does not say."""
    total = usage.get("total_tokens")
    counts = [n for name in TOKEN_FIELDS & usage.keys() if type(n := usage[name]) is int]
    return min(MAX_TOKENS, max(0, total if type(total) is int else 0, sum(counts)))


def has_token_price(price: ModelPrice) -> bool:
    """Return whether tokens have a price; a model billed by the hour or picture would seem free otherwise."""
    return any(kind.endswith("_mtok") and value is not None for kind, value in vars(price).items())


def model_price(what: str, prices: Mapping[str, float]) -> ModelPrice:
    """Return a user's prices per million tokens."""
    from genai_prices.types import ModelPrice, Usage

    if not isinstance(prices, Mapping) or "input" not in prices:
        shape = '{"input": 2.5, "output": 10}'
        raise InvalidInput(f"prices of {what} must be dollars per million tokens such as {shape}, not {prices!r}")
    fields = {}
    for kind, price in prices.items():
        if not isinstance(kind, str) or not hasattr(ModelPrice(), f"{kind}_mtok"):
            known = "input, output, cache_read, cache_write, input_audio, output_audio and others of genai-prices"
            raise InvalidInput(f"prices of {what} name {kind!r}; kinds of tokens are {known}")
        fields[f"{kind}_mtok"] = Decimal(repr(amount(f"the price of {what} for {kind}", price)))
    found = ModelPrice(**fields)
    try:
        found.calc_price(Usage())
    except ValueError as error:
        raise InvalidInput(f"prices of {what} are inconsistent: {error}") from None
    return found


def checked_total(price: Decimal) -> float:
    """Return dollars, or raise ValueError if they are out of range."""
    usd = float(price)
    if not 0 <= usd <= MAX_AMOUNT:
        raise ValueError(f"{usd} dollars")
    return usd
