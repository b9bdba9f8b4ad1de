"""The semantic tier in the proxy: after an exact miss, a stored answer to a question of the same meaning."""
