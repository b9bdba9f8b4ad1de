"""What a call costs: tokens into dollars, or seconds, or both."""

from knapcache.price.meter import Bill, Meter
from knapcache.price.weights import Weights

__all__ = ["Bill", "Meter", "Weights"]
