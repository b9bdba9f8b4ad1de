"""Sample traffic for a running proxy (`knapcache demo`)."""
