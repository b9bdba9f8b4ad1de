"""A policy for blocks that form chains: the KV cache of an inference server."""
