"""One exchange over HTTP between caller and provider, as the cache sees it: for transports and proxy. No I/O."""
