"""Demo traffic for a running proxy."""
