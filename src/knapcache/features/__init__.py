"""Features of the proxy: parts that can be left out, one folder each (`knapcache/proxy/features.py`)."""
