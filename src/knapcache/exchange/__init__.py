"""One HTTP exchange between a caller and a provider, as the cache sees it: shared by the transports and the proxy."""
