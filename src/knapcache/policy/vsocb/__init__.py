"""The policies of the paper: VSOCB and the Berkeley baselines."""
