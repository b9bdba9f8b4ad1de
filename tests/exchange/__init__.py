"""What is between a transport and the cache."""
