"""One HTTP exchange between a caller and a provider, as the cache sees it. Shared by the transports and the proxy. No I/O."""
