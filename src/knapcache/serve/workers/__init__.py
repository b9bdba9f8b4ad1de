"""Several proxy processes on one port and one store."""
