"""The cost of a call: dollars for tokens, seconds, or a weighted sum."""

from knapcache.price.input_tokens import InputTokens
from knapcache.price.meter import Bill, Meter
from knapcache.price.weights import Weights

__all__ = ["Bill", "InputTokens", "Meter", "Weights"]
