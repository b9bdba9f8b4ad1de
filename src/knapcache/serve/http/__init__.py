"""The way of a request: who asks, what, of whom; kept, fetched or passed on."""
