"""Several worker processes on one port and one store."""
