"""The proxy: `knapcache serve`."""
